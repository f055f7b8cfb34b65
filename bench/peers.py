"""The allocators that bench_peers.py and replay.py measure, each behind the same few methods.

A peer that is not on the machine raises Missing when it is made, with the reason. Peers are made inside a worker process, one
process for each `home`, so that one that crashes or leaks does it alone.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
Loop = Callable[[int], None]


class Missing(Exception):
    """The peer cannot be measured here; the text says why."""


def need(module: str) -> Any:
    """The module; Missing if it is not installed or does not work."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # a library that lacks another raises whatever it likes
        raise Missing(f"{module}: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from None


class Peer:
    """One way to allocate and free.

    name      as the lines name it; several peers may share it if they differ in `through`
    through   what runs the loop: "c", or "python", whose calls are then part of the figure
    home      the process that it is measured in
    most      bytes that all rounds in one process may allocate together; for a peer that leaks
    settings  environment of that process
    """

    name = ""
    through = "python"
    home = ""
    most: int | None = None
    settings: dict[str, str] = {}

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}

    def ready(self) -> bool:
        """That it was made."""
        return True

    def loop(self, size: int) -> Loop:
        """A function that allocates and frees `size` bytes so many times, with as little around it as can be."""
        raise NotImplementedError

    def sample(self, size: int, group: int, count: int) -> list[float]:
        """Times of `count` groups, in microseconds of one round. Before them a round that is not counted."""
        run, clock = self.loop(size), time.perf_counter_ns
        run(1)
        out = []
        for _ in range(count):
            start = clock()
            run(group)
            out.append((clock() - start) / 1000 / group)
        return out


# ---- C ----


def library_path() -> Path:
    """libgvmm_peers.so, which CMake builds: GVMM_PEERS_LIBRARY, else that of the release or the dev preset."""
    given = os.environ.get("GVMM_PEERS_LIBRARY")
    places = [Path(given)] if given else [HERE.parent / "build" / preset / "bench/libgvmm_peers.so" for preset in ("release", "dev")]
    for place in places:
        if place.exists():
            return place
    raise Missing(f"no {places[0]} (cmake --build --preset release --target gvmm_peers)")


class Library:
    """peers_loop.c. One for the process."""

    _only: Library | None = None

    def __init__(self) -> None:
        self._lib = ctypes.CDLL(str(library_path()))
        self._lib.peers_why.restype = ctypes.c_char_p
        self._lib.peers_open()

    @classmethod
    def get(cls) -> Library:
        if cls._only is None:
            cls._only = cls()
        return cls._only

    def _ask(self, status: int) -> None:
        if status:
            raise Missing(self._lib.peers_why().decode())

    def sample(self, side: str, functions: tuple[int, int], size: int, group: int, count: int) -> list[float]:
        us = (ctypes.c_double * count)()
        self._ask(self._lib.peers_sample(side.encode(), *_arguments(functions, size, group, count), us))
        return list(us)

    def threads(self, side: str, functions: tuple[int, int], size: int, window_us: int, threads: int) -> float:
        us = ctypes.c_double()
        self._ask(self._lib.peers_threads(side.encode(), *_arguments(functions, size, window_us, threads), ctypes.byref(us)))
        return us.value

    def grow(self, way: str, step: int, steps: int) -> list[float]:
        us = (ctypes.c_double * steps)()
        self._ask(self._lib.peers_grow(way.encode(), ctypes.c_size_t(step), ctypes.c_size_t(steps), us))
        return list(us)

    def function(self, name: str, result: Any, *arguments: Any) -> Any:
        """One of its other functions; Missing if it has none of that name."""
        try:
            function = getattr(self._lib, name)
        except AttributeError:
            raise Missing("this gvmm has no pools") from None
        function.restype, function.argtypes = result, arguments
        return function


def _arguments(functions: tuple[int, int], *sizes: int) -> list[Any]:
    return [*(ctypes.c_void_p(f or None) for f in functions), *(ctypes.c_size_t(size) for size in sizes)]


class InC(Peer):
    """A side of peers_loop.c."""

    through = "c"
    home = "c"
    side = ""
    functions = (0, 0)

    def __init__(self) -> None:
        super().__init__()
        self._library = Library.get()

    def sample(self, size: int, group: int, count: int) -> list[float]:
        return self._library.sample(self.side or self.name, self.functions, size, group, count)

    def threads(self, size: int, window_us: int, threads: int) -> float:
        return self._library.threads(self.side or self.name, self.functions, size, window_us, threads)

    def grow(self, way: str, step: int, steps: int) -> list[float]:
        return self._library.grow(way, step, steps)


class Raw(InC):
    """Reserve, create, map, set access; wait; unmap, release, address free."""

    name = "raw"


class MemAlloc(InC):
    name = "cuMemAlloc"


class MemAllocAsync(InC):
    """From the device's own pool, which is told to keep everything."""

    name = "cuMemAllocAsync"


class BufferInC(InC):
    name = "gvmm_buffer"


class WarmInC(InC):
    """A buffer of a resource that keeps the memory of closed ones."""

    name = "gvmm_warm"


class WarmOutlivedInC(InC):
    """The same, promised that streams outlive the resource."""

    name = "gvmm_warm_outlived"


class PoolInC(InC):
    name = "gvmm_pool"


class PoolOutlivedInC(InC):
    """A pool that is promised that streams outlive it."""

    name = "gvmm_pool_outlived"


# ---- Python: gvmm ----


class Nothing(Peer):
    """Two calls that do nothing: what Python itself costs in every figure through Python."""

    name = "python_calls"
    home = "python"

    def loop(self, size: int) -> Loop:
        call = size.__index__

        def run(n: int) -> None:
            for _ in repeat(None, n):
                call()
                call()

        return run


class BufferInPython(Peer):
    name = "gvmm_buffer"
    home = "gvmm"

    def __init__(self) -> None:
        super().__init__()
        self._resource = need("gvmm").VirtualMemoryResource(0)

    def loop(self, size: int) -> Loop:
        allocate = self._resource.allocate

        def run(n: int) -> None:
            for _ in repeat(None, n):
                allocate(size).close()

        return run


class PoolInPython(Peer):
    """malloc(size, stream), free(address, stream); the stream by its number, as the others take it."""

    name = "gvmm_pool"
    home = "gvmm"
    streams_outlive = False

    def __init__(self) -> None:
        super().__init__()
        gvmm = need("gvmm")
        self._pool = gvmm.Pool(0, streams_outlive=self.streams_outlive)
        self._stream = gvmm.Stream(0)

    def loop(self, size: int) -> Loop:
        malloc, free, stream = self._pool.malloc, self._pool.free, self._stream.handle

        def run(n: int) -> None:
            for _ in repeat(None, n):
                free(malloc(size, stream), stream)

        return run


class PoolOutlivedInPython(PoolInPython):
    name = "gvmm_pool_outlived"
    streams_outlive = True


# ---- Python: others ----


def torch_settings(expandable: bool) -> dict[str, str]:
    """Under the old name and the new one."""
    value = f"expandable_segments:{expandable}"
    return {"PYTORCH_CUDA_ALLOC_CONF": value, "PYTORCH_ALLOC_CONF": value}


def need_torch() -> Any:
    torch = need("torch")
    if not torch.cuda.is_available():
        raise Missing("PyTorch finds no GPU")
    torch.cuda.init()  # else the first stream is made, and the allocator beneath is asked, before it knows of any device
    return torch


class Torch(Peer):
    """PyTorch's caching allocator by the functions beneath torch.cuda.caching_allocator_alloc, or that itself."""

    name = "torch"
    home = "torch"
    settings = torch_settings(False)

    def __init__(self) -> None:
        super().__init__()
        torch = need_torch()
        self.versions = {"torch": torch.__version__}
        self._stream = torch.cuda.Stream()
        self._torch = torch

    def loop(self, size: int) -> Loop:
        handle, c = self._stream.cuda_stream, self._torch._C
        alloc = getattr(c, "_cuda_cudaCachingAllocator_raw_alloc", None)
        delete = getattr(c, "_cuda_cudaCachingAllocator_raw_delete", None)
        if alloc is None or delete is None:
            public = self._torch.cuda.caching_allocator_alloc
            delete = self._torch.cuda.caching_allocator_delete

            def alloc(size: int, stream: int) -> int:
                return public(size, 0, stream)

        def run(n: int) -> None:
            for _ in repeat(None, n):
                delete(alloc(size, handle))

        return run


class TorchExpandable(Torch):
    name = "torch_expandable"
    home = "torch_expandable"
    settings = torch_settings(True)


def build_for_torch(torch: Any, folder: str) -> Path:
    """peers_torch.cpp, compiled against this PyTorch; Missing if that is not to be had."""
    root = Path(torch.__file__).parent
    cuda = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include", *root.parent.glob("nvidia/*/include")]
    headers = [root / "include", root / "include/torch/csrc/api/include", *cuda]
    out = Path(folder) / "libpeers_torch.so"
    libraries = [f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}", "-lc10", "-lc10_cuda"]
    compiler = os.environ.get("CXX", "c++")
    failure = "?"
    for standard in ("c++20", "c++17"):
        command = [compiler, f"-std={standard}", "-O2", "-w", "-shared", "-fPIC", *(f"-I{place}" for place in headers)]
        command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
        try:
            done = subprocess.run(
                [*command, str(HERE / "peers_torch.cpp"), "-o", str(out), *libraries], capture_output=True, text=True, timeout=300
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Missing(f"no loop in C for PyTorch: {error}") from None
        if done.returncode == 0:
            return out
        failure = next((line for line in done.stderr.splitlines() if "error" in line), "it does not compile")
    raise Missing(f"no loop in C for PyTorch: {failure}")


class TorchInC(InC):
    """PyTorch's caching allocator by its C++ functions, compiled here for the purpose."""

    name = "torch"
    home = "torch_c"
    side = "pluggable"
    settings = torch_settings(False)

    def __init__(self) -> None:
        torch = need_torch()
        torch.empty(1, device="cuda")
        with tempfile.TemporaryDirectory() as folder:
            lib = ctypes.CDLL(str(build_for_torch(torch, folder)))
        self.functions = tuple(  # type: ignore[assignment]
            ctypes.cast(getattr(lib, name), ctypes.c_void_p).value or 0 for name in ("peers_torch_malloc", "peers_torch_free")
        )
        super().__init__()
        self.versions = {"torch": torch.__version__}


class TorchExpandableInC(TorchInC):
    name = "torch_expandable"
    home = "torch_expandable_c"
    settings = torch_settings(True)


class CuPyPool(Peer):
    name = "cupy_pool"
    home = "cupy"

    def __init__(self) -> None:
        super().__init__()
        cupy = need("cupy")
        try:
            self._stream = cupy.cuda.Stream(non_blocking=True)
        except Exception as error:
            raise Missing(f"CuPy: {error}") from None
        self._pool = cupy.cuda.MemoryPool()
        self.versions = {"cupy": cupy.__version__}

    def loop(self, size: int) -> Loop:
        malloc, stream = self._pool.malloc, self._stream

        def run(n: int) -> None:
            with stream:
                for _ in repeat(None, n):
                    malloc(size)  # what it returns is dropped at once, and that frees it

        return run


def need_cuda_core() -> tuple[Any, Any]:
    """cuda.core (under its older name too) and its device 0, current."""
    try:
        core = need("cuda.core")
        device_type = core.Device
    except (Missing, AttributeError) as first:
        try:
            core = need("cuda.core.experimental")
            device_type = core.Device
        except (Missing, AttributeError):
            raise Missing(str(first)) from None
    try:
        device = device_type(0)
        device.set_current()
    except Exception as error:
        raise Missing(f"cuda.core: {error}") from None
    return core, device


class CudaCorePool(Peer):
    """cuda.core's DeviceMemoryResource, which is the device's own pool."""

    name = "cuda_core_pool"
    home = "cuda_core"

    def __init__(self) -> None:
        super().__init__()
        core, device = need_cuda_core()
        self.versions = {"cuda.core": core.__version__}
        self._stream = device.create_stream()
        self._resource = device.memory_resource

    def loop(self, size: int) -> Loop:
        allocate, stream = self._resource.allocate, self._stream

        def run(n: int) -> None:
            for _ in repeat(None, n):
                allocate(size, stream=stream).close(stream)

        return run


class CudaCoreVmm(Peer):
    """cuda.core's VirtualMemoryResource. Up to 1.2 it gives nothing back."""

    name = "cuda_core_vmm"
    home = "cuda_core_vmm"
    most = 8 << 30

    def __init__(self) -> None:
        super().__init__()
        core, device = need_cuda_core()
        if not hasattr(core, "VirtualMemoryResource"):
            raise Missing(f"cuda.core {core.__version__} has no VirtualMemoryResource")
        self.versions = {"cuda.core": core.__version__}
        options = core.VirtualMemoryResourceOptions(handle_type="posix_fd")
        self._resource = core.VirtualMemoryResource(device, config=options)

    def loop(self, size: int) -> Loop:
        allocate = self._resource.allocate

        def run(n: int) -> None:
            for _ in repeat(None, n):
                allocate(size).close()

        return run


PEERS: dict[str, type[Peer]] = {
    f"{peer.name}/{peer.through}": peer
    for peer in (
        Raw,
        MemAlloc,
        MemAllocAsync,
        BufferInC,
        WarmInC,
        WarmOutlivedInC,
        PoolInC,
        PoolOutlivedInC,
        TorchInC,
        TorchExpandableInC,
        Nothing,
        BufferInPython,
        PoolInPython,
        PoolOutlivedInPython,
        Torch,
        TorchExpandable,
        CuPyPool,
        CudaCorePool,
        CudaCoreVmm,
    )
}
