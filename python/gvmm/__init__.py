"""GPU virtual memory, managed: device memory that grows without copying, for users of cuda.core.

Sizes and offsets are bytes, addresses ints. A program for cuda.core's VirtualMemoryResource changes one import:

    from gvmm import VirtualMemoryResource, VirtualMemoryResourceOptions

    resource = VirtualMemoryResource(0)
    small = resource.allocate(2 << 20)
    large = resource.modify_allocation(small, 64 << 20)  # the first 2 MiB are small's
    small.close()
    large.close()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _share, sim  # noqa: F401  _share makes buffers known to multiprocessing
from ._errors import CUDAError, CUDAMemoryError, CUDAValueError, CUDAWarning
from ._gvmm import Buffer, Pool, VirtualMemoryBuffer, VirtualMemoryResource, drain
from ._gvmm import version as __version__
from ._options import VirtualMemoryResourceOptions
from ._pool import PoolStats
from ._probe import Capability, CommonProbe, Probe, probe, probe_common
from ._residency import ResidencyEvent
from ._stats import Stats, stats
from ._torch import torch_allocator, torch_stats
from .sim import simulate

if TYPE_CHECKING:
    from ._cuda import Device, Graph, Stream

__all__ = [
    "Buffer",
    "CUDAError",
    "CUDAMemoryError",
    "CUDAValueError",
    "CUDAWarning",
    "Capability",
    "CommonProbe",
    "Device",
    "Graph",
    "Pool",
    "PoolStats",
    "Probe",
    "ResidencyEvent",
    "Stats",
    "Stream",
    "VirtualMemoryBuffer",
    "VirtualMemoryResource",
    "VirtualMemoryResourceOptions",
    "__version__",
    "drain",
    "probe",
    "probe_common",
    "sim",
    "simulate",
    "stats",
    "torch_allocator",
    "torch_stats",
]

_ON_DEMAND = ("Device", "Graph", "Stream")  # they need ctypes, which most programs do without


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        from . import _cuda

        return getattr(_cuda, name)
    raise AttributeError(f"module 'gvmm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
