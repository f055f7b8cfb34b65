"""What a resource's on_residency is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from ._gvmm import VirtualMemoryBuffer


class ResidencyEvent(NamedTuple):
    """Memory is going, or coming back.

    >>> def told(event: gvmm.ResidencyEvent) -> None:
    ...     if event.what == "before_evict":
    ...         deregister()
    ...     elif event.what == "after_restore":
    ...         register()
    >>> resource.on_residency = told
    """

    what: Literal["before_evict", "after_evict", "evict_failed", "before_restore", "after_restore", "restore_failed"]
    """``"before_evict"``: the memory is still there, deregister it. ``"after_restore"``: new pages at the old addresses, register them.
    ``"evict_failed"``: all is as it was. ``"restore_failed"``: still evicted."""
    buffer: VirtualMemoryBuffer | None
    """The one that is evicted or restored; None if it is the resource."""
    tag: int | None
    """Asked for, or the resource's own; None: any."""
    bytes: int
    """Concerned."""


ResidencyEvent.__module__ = "gvmm"
