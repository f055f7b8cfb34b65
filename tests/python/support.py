"""What the Python tests share: the driver past gvmm, bytes, buffers in known surroundings, gates, captures.

Everything goes through the driver table that gvmm uses, so the same tests run on the simulated driver and, with
GVMM_TEST_DRIVER=gpu, on a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gvmm
from gvmm._cuda import driver_call, driver_value

MiB = 1 << 20
ON_GPU = os.environ.get("GVMM_TEST_DRIVER") == "gpu"
INVALID_VALUE = 1


# ---- memory ----


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


def is_mapped(address: int) -> bool:
    try:
        handle = driver_value("cuMemRetainAllocationHandle", address)
    except gvmm.CUDAError:
        return False
    driver_call("cuMemRelease", handle)
    return True


def is_released(address: int, size: int) -> bool:
    """No memory is mapped there, and no such reservation exists."""
    if is_mapped(address):
        return False
    try:
        driver_call("cuMemAddressFree", address, size)
    except gvmm.CUDAError:
        return True
    return False


def access_of(address: int, device: int = 0) -> int:
    flags = ctypes.c_uint64(0)
    driver_call("cuMemGetAccess", ctypes.byref(flags), ctypes.byref(Location(1, device)), address)
    return flags.value


def properties_of(address: int) -> Properties:
    handle = driver_value("cuMemRetainAllocationHandle", address)
    out = Properties()
    driver_call("cuMemGetAllocationPropertiesFromHandle", ctypes.byref(out), handle)
    driver_call("cuMemRelease", handle)
    return out


def map_by_hand(size: int) -> int:
    """One reservation, wholly mapped and open to device 0, whose handle has been released."""
    address = driver_value("cuMemAddressReserve", size, 0, 0, 0)
    handle = driver_value("cuMemCreate", size, ctypes.byref(Properties(type=1, location=Location(1, 0))), 0)
    driver_call("cuMemMap", address, size, 0, handle, 0)
    driver_call("cuMemRelease", handle)
    driver_call("cuMemSetAccess", address, size, ctypes.byref(Access(Location(1, 0), 3)), 1)
    return address


def write(address: int, data: bytes) -> None:
    """Until the bytes are there: the copy returns when it has read them, and a buffer that records another stream does not wait for it."""
    driver_call("cuMemcpyHtoD", address, ctypes.c_char_p(data), len(data))
    driver_call("cuStreamSynchronize", 1)  # the legacy default stream, on which it was made


def read(address: int, size: int) -> bytes:
    out = ctypes.create_string_buffer(size)
    driver_call("cuMemcpyDtoH", out, address, size)
    return out.raw


def pattern(size: int, seed: int) -> bytes:
    """Differs at every megabyte, and with the seed."""
    block = bytes((i * 7 + seed * 31) % 251 for i in range(4096))
    return b"".join(bytes([(at + seed) % 256]) + block[1:] for at in range(size // 4096))


def is_filled(buffer: Any, byte: int) -> bool:
    return read(buffer.handle, buffer.size) == bytes([byte]) * buffer.size


# ---- surroundings ----


def allocate_at(address: int, size: int, **options: Any) -> gvmm.VirtualMemoryBuffer:
    """A buffer of a resource of its own, at an address that is known to be free."""
    buffer = gvmm.VirtualMemoryResource(0, {"addr_hint": address, **options}).allocate(size)
    assert buffer.handle == address
    return buffer


def allocate_with_hole_behind(size: int, hole: int, **options: Any) -> gvmm.VirtualMemoryBuffer:
    address = driver_value("cuMemAddressReserve", size + hole, 0, 0, 0)
    driver_call("cuMemAddressFree", address, size + hole)
    return allocate_at(address, size, **options)


@contextlib.contextmanager
def decoy_behind(size: int, **options: Any) -> Iterator[gvmm.VirtualMemoryBuffer]:
    """A buffer whose next address is somebody else's, so that every grow moves."""
    G = 2 * MiB
    address = driver_value("cuMemAddressReserve", size + G, 0, 0, 0)
    driver_call("cuMemAddressFree", address, size + G)
    decoy = driver_value("cuMemAddressReserve", G, 0, address + size, 0)
    assert decoy == address + size
    try:
        yield allocate_at(address, size, **options)
    finally:
        driver_call("cuMemAddressFree", decoy, G)


# ---- streams ----

_libc = ctypes.CDLL(None)


def handle_of(stream: Any) -> int:
    return stream if isinstance(stream, int) else stream.__cuda_stream__()[1]


def delay(stream: Any, seconds: float) -> None:
    """Work that lasts so long: a host function that sleeps, and enters no Python."""
    sleep = ctypes.cast(_libc.usleep, ctypes.c_void_p).value
    driver_call("cuLaunchHostFunc", handle_of(stream), sleep, int(seconds * 1e6))


class Gate:
    """Work that lasts until it is told to end: a host function that waits for a semaphore, and enters no Python."""

    def __init__(self, stream: Any) -> None:
        self._semaphore = ctypes.create_string_buffer(64)
        self._stream = handle_of(stream)
        self._opened = False
        _libc.sem_init(self._semaphore, 0, 0)
        wait = ctypes.cast(_libc.sem_wait, ctypes.c_void_p).value
        driver_call("cuLaunchHostFunc", self._stream, wait, ctypes.addressof(self._semaphore))

    def open(self) -> None:
        if not self._opened:
            self._opened = True
            _libc.sem_post(self._semaphore)

    def end(self) -> None:
        self.open()
        driver_call("cuStreamSynchronize", self._stream)


@contextlib.contextmanager
def gate(stream: Any) -> Iterator[Gate]:
    g = Gate(stream)
    try:
        yield g
    finally:
        g.end()


def assert_waits(call: Callable[[], Any], stream: Any, address: int) -> None:
    """``call`` returns only after the work on ``stream``; until then nothing is unmapped, and Python goes on."""
    returned = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as failure:  # told by the test's thread
            failures.append(failure)
        returned.set()

    with gate(stream) as g:
        thread = threading.Thread(target=run)
        thread.start()
        assert not returned.wait(0.1)
        assert is_mapped(address)
        g.open()
        thread.join()
    assert not failures, failures


def begin_capture(stream: Any, mode: str = "global") -> None:
    driver_call("cuStreamBeginCapture", handle_of(stream), {"global": 0, "thread_local": 1, "relaxed": 2}[mode])


def end_capture(stream: Any) -> gvmm.Graph:
    """Fails if the capture was lost."""
    graph = ctypes.c_uint64(0)
    driver_call("cuStreamEndCapture", handle_of(stream), ctypes.byref(graph))
    return gvmm.Graph(graph.value)


@contextlib.contextmanager
def capturing(stream: Any, mode: str = "global") -> Iterator[None]:
    """The capture must be intact at the end."""
    begin_capture(stream, mode)
    yield
    end_capture(stream).close()


def wait_until_gone(address: int, size: int) -> None:
    """A graph's destructor runs some time after the graph is gone."""
    for _ in range(2000):
        gvmm.drain()
        if not gvmm.stats().mappings and is_released(address, size):
            return
        time.sleep(0.005)
    raise AssertionError(f"{address:#x} is still mapped")


# ---- other processes ----


STANDIN = os.environ.get("GVMM_TEST_STANDIN", "/nowhere")  # folder of the stand-in libcuda.so.1, where it has been built


def has_cuda_core_on_standin() -> bool:
    """cuda.core itself can run on the simulated driver, under the name of the real one."""
    return (Path(STANDIN) / "libcuda.so.1").exists() and not ON_GPU and importlib.util.find_spec("cuda") is not None


def run_python(
    program: str, *options: str, standin: bool = False, arguments: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program in a fresh interpreter that finds gvmm as this one did; on the stand-in driver if asked."""
    package = str(Path(gvmm.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [package, str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, **environment}
    if standin:
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [STANDIN, os.environ.get("LD_LIBRARY_PATH")]))
        env.pop("GVMM_DRIVER", None)
    elif not ON_GPU and "GVMM_DRIVER" not in environment:
        env["GVMM_DRIVER"] = "sim"
    command = [sys.executable, *options, "-c", program, *arguments]
    return subprocess.run(command, env=env, text=True, capture_output=True, timeout=120)


def assert_silent(result: subprocess.CompletedProcess[str], stdout: str | None = None) -> None:
    assert (result.returncode, result.stderr) == (0, "")
    assert stdout is None or result.stdout == stdout
