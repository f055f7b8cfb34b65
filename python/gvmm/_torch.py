"""The allocator for PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

from . import _gvmm
from ._pool import PoolStats


def torch_allocator() -> Any:
    """A torch.cuda.memory.CUDAPluggableAllocator over a pool for each device.

    >>> torch.cuda.memory.change_current_allocator(gvmm.torch_allocator())  # before the first use of the GPU
    """
    torch: Any = importlib.import_module("torch")  # which need not be there
    return torch.cuda.memory.CUDAPluggableAllocator(_gvmm.__file__, "gvmm_torch_malloc", "gvmm_torch_free")


def torch_stats(device: Any = 0) -> PoolStats | None:
    """Figures of the pool that torch_allocator() uses on a device. None: it has not been used there."""
    return _gvmm._torch_stats(device)
