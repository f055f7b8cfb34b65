"""What gvmm raises and warns of, by what the caller can do about it."""

from __future__ import annotations


class CUDAError(RuntimeError):
    """A failure of the driver or of the library. Nothing has changed by it.

    ``code`` is the driver's status (a ``CUresult``; 0 if no driver call failed), ``call`` the name of the driver call that failed
    or None, ``result`` the library's name for what happened, such as ``"GVMM_E_NO_ADDRESS_SPACE"``.

    >>> try:
    ...     resource.allocate(1 << 62)
    ... except gvmm.CUDAError as error:
    ...     print(error.call, error.code)
    cuMemAddressReserve 2
    """

    __module__ = "gvmm"

    code: int
    call: str | None
    result: str

    def __init__(self, message: str, code: int = 0, call: str | None = None, result: str = "GVMM_E_DRIVER") -> None:
        super().__init__(message)
        self.code = code
        self.call = call
        self.result = result


class CUDAValueError(CUDAError, ValueError):
    """An argument or option that the library or the driver refused; the message names it."""

    __module__ = "gvmm"


class CUDAMemoryError(CUDAError, MemoryError):
    """No memory left: the device's, or the host's. ``result`` tells which."""

    __module__ = "gvmm"


class CUDAWarning(RuntimeWarning):
    """Something went wrong while memory was given up, where nothing can be raised. The memory was given up all the same.

    Turned into errors, these go to ``sys.unraisablehook``: a release never raises.
    """

    __module__ = "gvmm"
