"""Options: checked when they are built, and brought down to the library's numbers."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

_VALUES: dict[str, dict[str | None, int]] = {
    "allocation_type": {"pinned": 1, "managed": 2},
    "location_type": {"device": 1, "host": 2, "host_numa": 3, "host_numa_current": 4},
    "handle_type": {None: 0, "posix_fd": 1, "win32": 2, "win32_kmt": 4, "fabric": 8},
    "granularity": {"minimum": 0, "recommended": 1},
    "self_access": {None: 0, "r": 1, "rw": 3},
    "peer_access": {None: 0, "r": 1, "rw": 3},
    "release_mode": {"sync": 0, "deferred": 1},
}


@dataclass(frozen=True)
class VirtualMemoryResourceOptions:
    """Where memory lies and who may touch it.

    Wherever options are taken, a mapping with these names or None (the defaults) will do, and so will cuda.core's own options.

    allocation_type
        ``"pinned"``, or ``"managed"``, which today's drivers refuse.
    location_type
        ``"device"``; ``"host"`` (needs ``handle_type=None``); ``"host_numa"``, of the node ``numa_node``; ``"host_numa_current"``, of
        the node on which the thread that builds the resource runs.
    handle_type
        How other processes may be given the memory: None, ``"posix_fd"``, ``"win32_kmt"`` or ``"fabric"``.
    granularity
        ``"recommended"`` or ``"minimum"``: which of the driver's two units sizes are rounded up to.
    gpu_direct_rdma
        Network cards may reach the memory.
    addr_hint
        Wished address of a new buffer, a multiple of the granularity; 0 or None: any. Another address may come.
    addr_align
        Alignment of new addresses in bytes, a power of two; 0 or None: the granularity.
    peers
        Ordinals of further devices that may touch the memory.
    self_access, peer_access
        ``"rw"``, ``"r"`` or None: what the memory's own location, and each peer, may do.
    numa_node
        Node for ``"host_numa"``.
    release_mode
        What the end of a buffer that was not closed does: ``"sync"`` waits as close() does; ``"deferred"`` never waits and never warns of
        captures, and the memory goes back when the stream's work is done. Of a resource; in a chunk's options without effect.

    Raises ValueError for a value that is not allowed, NotImplementedError for ``handle_type="win32"``.

    >>> VirtualMemoryResourceOptions(self_access="r", peers=(1,)).peers
    (1,)
    """

    __module__ = "gvmm"

    allocation_type: str = "pinned"
    location_type: str = "device"
    handle_type: str | None = "posix_fd"
    granularity: str = "recommended"
    gpu_direct_rdma: bool = False
    addr_hint: int | None = 0
    addr_align: int | None = None
    peers: Iterable[int] = ()
    self_access: str | None = "rw"
    peer_access: str | None = "rw"
    numa_node: int = 0
    release_mode: str = "sync"

    def __post_init__(self) -> None:
        for name in _VALUES:
            _number(self, name)
        if self.handle_type == "win32":
            raise NotImplementedError("handle_type 'win32' needs security attributes, which gvmm does not take")
        for name in ("addr_hint", "addr_align"):
            _address(name, getattr(self, name))
        peers = (self.peers,) if hasattr(self.peers, "__index__") else self.peers
        object.__setattr__(self, "peers", tuple(device_ordinal(peer) for peer in peers))


def _number(options: VirtualMemoryResourceOptions, name: str) -> int:
    """The library's number for a named value. A member of a string enumeration is its string."""
    allowed = _VALUES[name]
    value = getattr(options, name)
    if value is None or isinstance(value, str):
        found = allowed.get(value)
        if found is not None:
            return found
    raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def _address(name: str, value: int | None) -> int:
    number = operator.index(value or 0)
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{name} must fit in 64 bits, not be {value!r}")
    return number


def device_ordinal(device: Any) -> int:
    """The ordinal of a device that is given as one, or as an object that knows its own: cuda.core, CuPy, PyTorch."""
    for name in ("device_id", "id", "index"):
        number = getattr(device, name, None)
        if isinstance(number, int):
            return number
    return operator.index(device)


def checked(config: Any) -> VirtualMemoryResourceOptions:
    """Options from whatever was given for them."""
    if config is None:
        return VirtualMemoryResourceOptions()
    if isinstance(config, VirtualMemoryResourceOptions):
        return config
    if isinstance(config, Mapping):
        return VirtualMemoryResourceOptions(**config)
    if is_dataclass(config) and not isinstance(config, type):
        return VirtualMemoryResourceOptions(**{field.name: getattr(config, field.name) for field in fields(config)})
    raise TypeError(f"config must be VirtualMemoryResourceOptions, a mapping or None, not {type(config).__name__}")


def pack(config: Any, of: VirtualMemoryResourceOptions | None = None) -> tuple[VirtualMemoryResourceOptions, tuple[Any, ...]]:
    """Options, and their numbers in the order in which the extension reads them. ``of``: the resource whose chunk they are for."""
    options = checked(config)
    if of is not None and options.location_type != of.location_type:
        raise ValueError(f"location_type must be the resource's, {of.location_type!r}, not {options.location_type!r}")
    if options.location_type == "host" and options.handle_type is not None:
        raise ValueError("location_type 'host' cannot be exported and needs handle_type=None")
    named = {name: _number(options, name) for name in _VALUES}
    return options, (
        named["allocation_type"],
        named["location_type"],
        operator.index(options.numa_node),
        named["handle_type"],
        named["granularity"],
        bool(options.gpu_direct_rdma),
        _address("addr_hint", options.addr_hint),
        _address("addr_align", options.addr_align),
        named["self_access"],
        named["peer_access"],
        named["release_mode"],
        options.peers,
    )
