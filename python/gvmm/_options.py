"""Options: checked when they are built, and brought down to the library's numbers."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
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
_OPTIONAL = {"rdma": 1, "fabric": 2, "handle": 4, "peers": 8}
_ALL = (1 << 64) - 1


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
        What the end of a buffer that was not closed does: ``"deferred"`` never waits and never warns of captures, and the memory goes
        back when the stream's work is done; ``"sync"`` waits as close() does. Of a resource; in a chunk's options without effect.
    capacity
        Bytes of addresses to reserve for a new buffer, so that it grows in place; ``"all"``: as many as the location has memory.
        ``buffer.capacity`` says what was got.
    chunk_size
        Memory is made in chunks of so many bytes, rounded up; 0: one chunk for each allocation and grow.
    stripe
        Ordinals of the devices on which chunks are placed in turn; needs a ``chunk_size``.
    ahead_count
        Chunks of ``chunk_size`` that a thread of gvmm makes ahead of need, for the resource's grows.
    tag
        Any number, by which the resource's evict() and restore() choose.
    optional
        What may be left out where it cannot be had, in place of an error: ``"rdma"``, ``"fabric"`` (then ``"posix_fd"``), ``"handle"`` (any
        handle_type; then None), ``"peers"`` (without those out of reach). The resource's ``config`` tells what was got.
    reuse_limit
        Bytes of ended buffers to keep for allocate(); 0: none. What is kept is the memory of a buffer that ended without waiting (with
        ``close(wait=False)``, or without a close under ``release_mode="deferred"``) and that nobody else shows. An allocation of the same
        size gets it again, without calling the driver for memory: on the same stream at once, on another after making that wait. **It has
        the bytes that were left in it.** It goes, the oldest first, when the limit is reached; all of it when memory is short, before the
        resource's evict(), with the resource, or by trim().
    streams_outlive
        **A promise of yours, which nothing checks: no stream that a buffer of this resource has recorded captures, or is destroyed before
        the resource itself is gone.** It saves an event for each buffer that is kept. The resource keeps no stream objects alive: a
        stream that Python collects, or that a ``with`` block or ``close()`` ends, breaks the promise, and kept memory that was used on
        it then crashes the driver, or is handed to a new stream of the same handle while work still writes to it. Keep such streams in a
        module or an object that outlives the resource, or leave this False.
    zero_reused
        Buffers made of kept memory are zero, too. Device memory only.

    From ``capacity`` on they can be given by name only. Raises ValueError for a value that is not allowed, NotImplementedError for
    ``handle_type="win32"``.

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
    release_mode: str = "deferred"
    capacity: int | str = field(default=0, kw_only=True)
    chunk_size: int = field(default=0, kw_only=True)
    stripe: Iterable[int] = field(default=(), kw_only=True)
    ahead_count: int = field(default=0, kw_only=True)
    tag: int = field(default=0, kw_only=True)
    optional: Iterable[str] = field(default=(), kw_only=True)
    reuse_limit: int = field(default=0, kw_only=True)
    streams_outlive: bool = field(default=False, kw_only=True)
    zero_reused: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        for name in _VALUES:
            _number(self, name)
        optional = (self.optional,) if isinstance(self.optional, str) else tuple(self.optional)
        object.__setattr__(self, "optional", optional)
        if bad := [name for name in optional if name not in _OPTIONAL]:
            raise ValueError(f"optional must be of {', '.join(map(repr, _OPTIONAL))}, not {bad[0]!r}")
        if self.handle_type == "win32" and "handle" not in optional:
            raise NotImplementedError("handle_type 'win32' needs security attributes, which gvmm does not take")
        for name in ("addr_hint", "addr_align", "chunk_size", "ahead_count", "reuse_limit"):
            _address(name, getattr(self, name))
        _capacity(self.capacity)
        for name in ("numa_node", "tag"):
            if not -(1 << 31) < _integer(name, getattr(self, name)) < 1 << 31:
                raise ValueError(f"{name} must be between -2**31 + 1 and 2**31 - 1, not {getattr(self, name)!r}")
        for name in ("peers", "stripe"):
            given = getattr(self, name)
            ordinals = (given,) if hasattr(given, "__index__") else given
            object.__setattr__(self, name, tuple(device_ordinal(ordinal) for ordinal in ordinals))


def _number(options: VirtualMemoryResourceOptions, name: str) -> int:
    """The library's number for a named value. A member of a string enumeration is its string."""
    allowed = _VALUES[name]
    value = getattr(options, name)
    if value is None or isinstance(value, str):
        found = allowed.get(value)
        if found is not None:
            return found
    raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def _integer(name: str, value: int) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {value!r}") from None


def _address(name: str, value: int | None) -> int:
    number = _integer(name, value or 0)
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{name} must fit in 64 bits, not be {value!r}")
    return number


def _capacity(value: int | str) -> int:
    if isinstance(value, str):
        if value == "all":
            return _ALL
        raise ValueError(f"capacity must be bytes or 'all', not {value!r}")
    return min(_address("capacity", value), _ALL - 1)


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
    if options.location_type == "host" and options.handle_type is not None and "handle" not in options.optional:
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
        _capacity(options.capacity),
        _address("chunk_size", options.chunk_size),
        options.stripe,
        _address("ahead_count", options.ahead_count),
        operator.index(options.tag),
        sum(_OPTIONAL[name] for name in set(options.optional)),
        _address("reuse_limit", options.reuse_limit),
        bool(options.streams_outlive),
        bool(options.zero_reused),
    )


def settled(
    options: VirtualMemoryResourceOptions, rdma: bool, handle: int, peers: tuple[int, ...]
) -> VirtualMemoryResourceOptions:
    """Options with what a resource got of the optional ones, from the library's numbers."""
    return replace(options, gpu_direct_rdma=rdma, handle_type=_handle_name(handle), peers=peers)


def _handle_name(number: int) -> str | None:
    [name] = [name for name, known in _VALUES["handle_type"].items() if known == number]
    return name


def common(
    options: VirtualMemoryResourceOptions, rdma: bool, handle: int, peers: tuple[int, ...], capacity: int, chunk_size: int
) -> VirtualMemoryResourceOptions:
    """Options that every rank can have, from the library's numbers."""
    return replace(
        settled(options, rdma, handle, peers),
        capacity="all" if capacity == _ALL else capacity,
        chunk_size=chunk_size,
        optional=(),
    )
