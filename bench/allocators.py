"""The allocators that replay.py gives traces to, each behind the same few methods, and the replay itself.

An allocator that is not on the machine raises Missing when it is made. Each is made in a process of its own, so its figures
begin at zero and its settings (an environment) are its own.
"""

from __future__ import annotations

import bisect
import ctypes
import time
from collections.abc import Iterable
from typing import Any

import traces
from lines import median, quantile, rounded
from peers import Library, Missing, need, need_torch, torch_settings


class Allocator:
    """Addresses by malloc and free, on streams that are numbered from 0. Each number has a stream of its own."""

    name = ""
    through = "python"
    settings: dict[str, str] = {}
    most = None

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self._streams: dict[int, Any] = {}

    def new_stream(self) -> Any:
        raise NotImplementedError

    def stream(self, number: int) -> Any:
        if number not in self._streams:
            self._streams[number] = self.new_stream()
        return self._streams[number]

    def malloc(self, size: int, stream: Any) -> int:
        raise NotImplementedError

    def free(self, address: int, stream: Any) -> None:
        raise NotImplementedError

    def physical_peak(self) -> int:
        """The most bytes of device memory that it held at any time."""
        raise NotImplementedError

    def replay(self, path: str) -> dict[str, Any]:
        """What a worker is asked for."""
        return replay(traces.read(path), self)


class OfGvmm(Allocator):
    """What uses gvmm's streams."""

    def __init__(self) -> None:
        super().__init__()
        self._gvmm = need("gvmm")
        self._gvmm.Device(0).set_current()

    def new_stream(self) -> Any:
        return self._gvmm.Stream(0)


class GvmmPool(OfGvmm):
    name = "gvmm_pool"

    def __init__(self) -> None:
        super().__init__()
        self._pool = self._gvmm.Pool(0)

    def malloc(self, size: int, stream: Any) -> int:
        return int(self._pool.malloc(size, stream))

    def free(self, address: int, stream: Any) -> None:
        self._pool.free(address, stream)

    def physical_peak(self) -> int:
        return int(self._pool.stats().physical_peak)


class GvmmPoolInC(Allocator):
    """The same pool by its C functions, past the Python package."""

    name = "gvmm_pool"
    through = "c"

    def __init__(self) -> None:
        super().__init__()
        library, u64, size, stream = Library.get(), ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
        self.new_stream = library.function("peers_new_stream", stream)  # type: ignore[method-assign]
        self._malloc = library.function("peers_pool_malloc", ctypes.c_int, ctypes.POINTER(u64), size, stream)
        self._free = library.function("peers_pool_free", ctypes.c_int, u64, stream)
        self._peak = library.function("peers_pool_peak", u64)

    def malloc(self, size: int, stream: Any) -> int:
        address = ctypes.c_uint64()
        if result := self._malloc(ctypes.byref(address), size, stream):
            raise MemoryError(f"gvmm_pool_malloc of {size} bytes: result {result}")
        return address.value

    def free(self, address: int, stream: Any) -> None:
        if result := self._free(address, stream):
            raise RuntimeError(f"gvmm_pool_free: result {result}")

    def physical_peak(self) -> int:
        return int(self._peak())


class GvmmBuffers(OfGvmm):
    """A buffer for each allocation, which rounds it up to whole chunks: what a pool is needed for."""

    name = "gvmm_buffers"

    def __init__(self) -> None:
        super().__init__()
        self._resource = self._gvmm.VirtualMemoryResource(0)
        self._buffers: dict[int, Any] = {}
        self._now = self._peak = 0

    def malloc(self, size: int, stream: Any) -> int:
        buffer = self._resource.allocate(size, stream=stream)
        self._buffers[buffer.handle] = buffer
        self._now += buffer.size
        self._peak = max(self._peak, self._now)
        return int(buffer.handle)

    def free(self, address: int, stream: Any) -> None:
        buffer = self._buffers.pop(address)
        self._now -= buffer.size
        buffer.close(stream)

    def physical_peak(self) -> int:
        return self._peak


class MemAllocAsync(OfGvmm):
    """The device's own pool, told to keep everything."""

    name = "cuMemAllocAsync"
    _THRESHOLD, _RESERVED_HIGH = 4, 6  # CUmemPool_attribute

    def __init__(self) -> None:
        super().__init__()
        from gvmm._cuda import driver_call, driver_value

        self._call, self._value = driver_call, driver_value
        self._pool = driver_value("cuDeviceGetDefaultMemPool", ctypes.c_int(0))
        self._set(self._THRESHOLD, (1 << 64) - 1)
        self._set(self._RESERVED_HIGH, 0)

    def _set(self, attribute: int, value: int) -> None:
        self._call("cuMemPoolSetAttribute", self._pool, ctypes.c_int(attribute), ctypes.byref(ctypes.c_uint64(value)))

    def malloc(self, size: int, stream: Any) -> int:
        return int(self._value("cuMemAllocAsync", size, stream.handle))

    def free(self, address: int, stream: Any) -> None:
        self._call("cuMemFreeAsync", address, stream.handle)

    def physical_peak(self) -> int:
        high = ctypes.c_uint64(0)
        self._call("cuMemPoolGetAttribute", self._pool, ctypes.c_int(self._RESERVED_HIGH), ctypes.byref(high))
        return high.value


class Torch(Allocator):
    """PyTorch's caching allocator. Its streams are as many as PyTorch has, 32; further ones are used twice."""

    name = "torch"
    settings = torch_settings(False)

    def __init__(self) -> None:
        super().__init__()
        self._torch = need_torch()
        self.versions = {"torch": self._torch.__version__}
        self._torch.cuda.empty_cache()
        self._torch.cuda.reset_peak_memory_stats()

    def new_stream(self) -> Any:
        return self._torch.cuda.Stream()

    def malloc(self, size: int, stream: Any) -> int:
        return int(self._torch.cuda.caching_allocator_alloc(size, 0, stream))

    def free(self, address: int, stream: Any) -> None:
        self._torch.cuda.caching_allocator_delete(address)

    def physical_peak(self) -> int:
        return int(self._torch.cuda.memory_stats()["reserved_bytes.all.peak"])


class TorchExpandable(Torch):
    name = "torch_expandable"
    settings = torch_settings(True)


class CuPyPool(Allocator):
    name = "cupy_pool"

    def __init__(self) -> None:
        super().__init__()
        self._cupy = need("cupy")
        self._pool = self._cupy.cuda.MemoryPool()
        self._live: dict[int, Any] = {}
        self._peak = 0
        self.versions = {"cupy": self._cupy.__version__}
        try:
            self.stream(0)
        except Exception as error:
            raise Missing(f"CuPy: {error}") from None

    def new_stream(self) -> Any:
        return self._cupy.cuda.Stream(non_blocking=True)

    def malloc(self, size: int, stream: Any) -> int:
        with stream:
            memory = self._pool.malloc(size)
        self._live[memory.ptr] = memory
        self._peak = max(self._peak, self._pool.total_bytes())
        return int(memory.ptr)

    def free(self, address: int, stream: Any) -> None:
        with stream:
            del self._live[address]

    def physical_peak(self) -> int:
        return self._peak


ALLOCATORS: dict[str, type[Allocator]] = {
    kind.name if kind.through == "python" else f"{kind.name}/{kind.through}": kind
    for kind in (GvmmPoolInC, GvmmPool, GvmmBuffers, MemAllocAsync, Torch, TorchExpandable, CuPyPool)
}


class Overlap(RuntimeError):
    """Memory was handed out that somebody still has."""


class Places:
    """Which addresses are handed out; finds those that are twice."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}

    def add(self, address: int, size: int) -> None:
        at = bisect.bisect_right(self._starts, address)
        before = self._starts[at - 1] if at else None
        if before is not None and self._ends[before] > address:
            raise Overlap(f"{size} bytes at {address:#x} reach into {before:#x}..{self._ends[before]:#x}, which is in use")
        if at < len(self._starts) and self._starts[at] < address + size:
            raise Overlap(f"{size} bytes at {address:#x} reach into what is at {self._starts[at]:#x}, which is in use")
        self._starts.insert(at, address)
        self._ends[address] = address + size

    def remove(self, address: int) -> None:
        del self._starts[bisect.bisect_left(self._starts, address)]
        del self._ends[address]


def replay(events: Iterable[traces.Event], allocator: Allocator) -> dict[str, Any]:
    """Gives the events to the allocator, one after the other, and frees at last what is left.

    Returns the peaks, in bytes, and how long the calls took, in microseconds; through Python, so the times are for comparing.
    """
    places, held = Places(), dict[int, tuple[int, int, Any]]()  # id -> address, size, stream
    live = peak = 0
    mallocs: list[float] = []
    frees: list[float] = []
    clock = time.perf_counter_ns

    def give_up(id: int, stream: Any) -> None:
        nonlocal live
        address, size, _ = held.pop(id)
        places.remove(address)
        live -= size
        start = clock()
        allocator.free(address, stream)
        frees.append((clock() - start) / 1000)

    for event in events:
        stream = allocator.stream(event.stream)
        if not event.size:
            give_up(event.id, stream)
            continue
        start = clock()
        address = allocator.malloc(event.size, stream)
        mallocs.append((clock() - start) / 1000)
        places.add(address, event.size)
        held[event.id] = (address, event.size, stream)
        live += event.size
        peak = max(peak, live)
    if not peak:
        raise traces.TraceError("nothing is allocated in it")
    physical = allocator.physical_peak()
    for id, (_, _, stream) in list(held.items()):
        give_up(id, stream)
    return {
        "operations": len(mallocs) + len(frees),
        "peak_live_bytes": peak,
        "peak_physical_bytes": physical,
        "ratio": rounded(physical / peak),
        "malloc_median_us": rounded(median(mallocs)),
        "malloc_p99_us": rounded(quantile(mallocs, 0.99)),
        "free_median_us": rounded(median(frees)),
        "free_p99_us": rounded(quantile(frees, 0.99)),
    }
