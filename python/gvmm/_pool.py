"""Figures of a pool."""

from __future__ import annotations

from typing import NamedTuple


class PoolStats(NamedTuple):
    """Bytes and pieces; peaks since the start or Pool.reset_peaks()."""

    live_bytes: int
    """Asked for and not freed."""
    rounded_bytes: int
    """The same as the pool rounds it."""
    physical_bytes: int
    """Memory that the pool has."""
    live_peak: int
    """Most live bytes, as seen when memory was not at hand, and by stats()."""
    physical_peak: int
    """Most physical bytes."""
    blocks: int
    """Live blocks."""
    mallocs: int
    """Since the start."""
    reuses: int
    """Since the start: mallocs that got what had just been freed, without a search."""
    stitches: int
    """Since the start: pieces of free memory that were mapped elsewhere."""
