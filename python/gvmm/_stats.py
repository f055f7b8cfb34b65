"""Figures of a resource or of the process."""

from __future__ import annotations

from typing import NamedTuple

from . import _gvmm


class Stats(NamedTuple):
    """What is alive, in bytes and pieces, and what has happened since the start."""

    physical_bytes: int
    """Memory created and not released; not what was imported."""
    mapped_bytes: int
    """Sum of live mappings: memory mapped twice counts twice."""
    reserved_bytes: int
    """Addresses."""
    buffers: int
    """Open buffers."""
    mappings: int
    memories: int
    """Physical chunks."""
    reservations: int
    allocations: int
    """Buffers made by allocate(), but for empty ones."""
    grows_in_place: int
    grows_moved: int
    aliases: int
    """Grows that needed no memory."""
    driver_calls: int
    """Of the process only; 0 for a resource."""
    releases_waiting: int
    """Given up and not yet back at the driver, and what else gvmm's thread has to do, as making chunks ahead; of the process only."""
    reused: int
    """Of the allocations, those that needed no memory, as kept memory was there."""
    kept_bytes: int
    """Kept for reuse now; also counted in physical_bytes."""
    imported_bytes: int
    """Memory of other processes that is held here."""
    pinned_bytes: int
    """Host memory that is pinned for evicts: what keeps contents, and what prepare_evict() made."""


def stats(resource: _gvmm.VirtualMemoryResource | None = None) -> Stats:
    """Figures of one resource, or of the process.

    Each is true at some moment during the call; together they are no snapshot while other threads work. Raises TypeError for what
    is no resource.

    >>> gvmm.stats().physical_bytes
    0
    """
    return Stats(**_gvmm._stats(resource))
