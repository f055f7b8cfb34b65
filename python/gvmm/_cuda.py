"""Devices, streams and graphs, as far as tests and examples need them where there is no cuda.core: small, over the driver table
that gvmm uses, the simulated one too. With a GPU, use cuda.core's, PyTorch's or CuPy's."""

from __future__ import annotations

import ctypes
from typing import Any

from . import _gvmm
from ._errors import CUDAError
from ._options import device_ordinal

_MODES = {"global": 0, "thread_local": 1, "relaxed": 2}
_NON_BLOCKING = 1


def driver_call(name: str, *args: Any) -> None:
    """Calls a function of gvmm's driver table; ints are passed in 64 bits. The interpreter lock is released meanwhile.

    Raises CUDAError.
    """
    function = ctypes.CFUNCTYPE(ctypes.c_int)(_gvmm._driver_function(name))
    status = function(*(ctypes.c_uint64(arg) if isinstance(arg, int) else arg for arg in args))
    if status:
        raise CUDAError(f"{name}: {_gvmm._status_name(status)}", status, name)


def driver_value(name: str, *args: Any) -> int:
    """The same for a function whose first parameter points to its result: a handle, an address or a number."""
    value = ctypes.c_uint64(0)
    driver_call(name, ctypes.byref(value), *args)
    return value.value


class Device:
    """A device by its ordinal.

    >>> gvmm.Device(0).set_current()
    """

    def __init__(self, device_id: int = 0) -> None:
        self._device_id = device_ordinal(device_id)

    @property
    def device_id(self) -> int:
        """The ordinal."""
        return self._device_id

    def set_current(self) -> None:
        """Makes the device's primary context current on this thread; it is held until the process ends. Raises CUDAError."""
        driver_call("cuCtxSetCurrent", driver_value("cuDevicePrimaryCtxRetain", self._device_id))

    def create_stream(self, *, blocking: bool = False) -> Stream:
        """A new stream. Raises CUDAError."""
        return Stream(self, blocking=blocking)

    def sync(self) -> None:
        """Waits for all work of the current context. Raises CUDAError."""
        driver_call("cuCtxSynchronize")

    def __int__(self) -> int:
        return self._device_id

    def __index__(self) -> int:
        return self._device_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Device, int)) and self._device_id == int(other)

    def __hash__(self) -> int:
        return hash(self._device_id)

    def __repr__(self) -> str:
        return f"<Device {self._device_id}>"


class Stream:
    """A stream of one device, destroyed by close() or with the object.

    blocking
        The legacy default stream waits for it, and it for that.

    >>> with gvmm.Stream() as stream:
    ...     buffer.fill(0, stream=stream)
    ...     stream.sync()
    """

    def __init__(self, device: Device | int = 0, *, blocking: bool = False) -> None:
        self._handle = 0
        self._device = device_ordinal(device)
        context = driver_value("cuDevicePrimaryCtxRetain", self._device)
        try:
            driver_call("cuCtxPushCurrent", context)
            try:
                self._handle = driver_value("cuStreamCreate", 0 if blocking else _NON_BLOCKING)
            finally:
                driver_value("cuCtxPopCurrent")
        except CUDAError:
            driver_call("cuDevicePrimaryCtxRelease", self._device)
            raise

    @property
    def handle(self) -> int:
        """The driver's handle; 0 when closed."""
        return self._handle

    @property
    def is_closed(self) -> bool:
        return not self._handle

    def __cuda_stream__(self) -> tuple[int, int]:
        if not self._handle:
            raise RuntimeError("stream has been closed")
        return 0, self._handle

    def sync(self) -> None:
        """Waits for its work. Raises CUDAError."""
        driver_call("cuStreamSynchronize", self.__cuda_stream__()[1])

    @property
    def is_capturing(self) -> bool:
        status = ctypes.c_int(0)
        driver_call("cuStreamIsCapturing", self.__cuda_stream__()[1], ctypes.byref(status))
        return status.value == 1

    def begin_capture(self, mode: str = "global") -> None:
        """Records the work queued from here on into a graph. ``mode``: "global", "thread_local" or "relaxed". Raises CUDAError."""
        driver_call("cuStreamBeginCapture", self.__cuda_stream__()[1], _MODES[mode])

    def end_capture(self) -> Graph:
        """The graph of what was captured. Raises CUDAError if the capture was lost."""
        graph = ctypes.c_uint64(0)
        driver_call("cuStreamEndCapture", self.__cuda_stream__()[1], ctypes.byref(graph))
        return Graph(graph.value)

    def close(self) -> None:
        """Destroys the stream; its work goes on. Closing again does nothing."""
        handle, self._handle = self._handle, 0
        if handle:
            driver_call("cuStreamDestroy", handle)
            driver_call("cuDevicePrimaryCtxRelease", self._device)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # at exit the driver, or this module, may be gone
            pass

    def __repr__(self) -> str:
        return f"<Stream {self._handle:#x}>" if self._handle else "<Stream, closed>"


_gvmm._own_streams(Stream)


class Graph:
    """A graph: an empty one, or one that a capture made. Destroyed by close() or with the object, with its executable.

    >>> graph = stream.end_capture()
    >>> graph.launch(stream)
    """

    def __init__(self, handle: int | None = None) -> None:
        self._exec = 0
        self._handle = 0
        self._handle = driver_value("cuGraphCreate", 0) if handle is None else handle

    @property
    def handle(self) -> int:
        """The driver's handle; 0 when closed."""
        return self._handle

    def launch(self, stream: Stream) -> None:
        """Queues the graph's work. The first launch instantiates it. Raises CUDAError."""
        if not self._exec:
            self._exec = driver_value("cuGraphInstantiateWithFlags", self._handle, 0)
        driver_call("cuGraphLaunch", self._exec, stream.__cuda_stream__()[1])

    def close(self) -> None:
        """Destroys graph and executable; launches in flight go on."""
        exec_, self._exec = self._exec, 0
        handle, self._handle = self._handle, 0
        if exec_:
            driver_call("cuGraphExecDestroy", exec_)
        if handle:
            driver_call("cuGraphDestroy", handle)

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # as for streams
            pass


class _Borrowed(Stream):
    """A stream that is somebody else's to destroy."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def close(self) -> None:
        self._handle = 0


def stream_of(handle: int) -> Stream:
    """An object for a handle, for resources that want one. It does not own the stream."""
    return _Borrowed(handle)
