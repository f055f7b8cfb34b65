"""What a device can do here, and what all ranks have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import _gvmm, _options


@dataclass(frozen=True)
class Capability:
    """The answer to one question; true if it is a yes."""

    __module__ = "gvmm"

    ok: bool
    call: str | None
    """Driver call that said no, ``"cuMemCreate"``; None if ok, or if there is nothing to ask about."""
    status: int
    """``CUresult`` of that call; 0 if it is its answer that says no."""
    advice: str | None
    """What to do about it, in one line; None if ok."""
    text: str
    """What was tried, in a few words."""

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True, eq=False)
class Probe(Mapping[str, Capability]):
    """Capabilities by name, and figures."""

    __module__ = "gvmm"

    capabilities: Mapping[str, Capability]
    memory: int
    """Bytes that the device has; 0 if it does not say, here and below."""
    reservable: int
    """Bytes of addresses that can be reserved in one piece, to a factor of two."""
    granularity: int
    """Bytes, of device memory."""
    peers: tuple[int, ...]
    """Ordinals of the devices that can access the memory."""
    numa_nodes: tuple[int, ...]
    """Nodes whose memory can be had."""
    record: bytes = field(repr=False)
    """The same as bytes, for ranks that exchange those: a ``gvmm_probe_record`` of the C library."""

    def __getitem__(self, name: str) -> Capability:
        return self.capabilities[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.capabilities)

    def __len__(self) -> int:
        return len(self.capabilities)


@dataclass(frozen=True, eq=False)
class CommonProbe(Probe):
    """What every rank has: a capability is true if it is on all ranks; else it is the answer of the first rank that has it not.

    ``memory`` and ``reservable`` are the least of all, ``granularity`` a multiple of all, ``numa_nodes`` those that all have.
    ``peers`` are the devices that have or can access every rank's memory, by ordinal.
    """

    __module__ = "gvmm"

    ranks: int
    """How many there are."""
    lacking: Mapping[str, tuple[int, int]]
    """For each capability that some ranks have not: how many have it not, and which is the first of them."""

    def options(self, config: Any = None) -> _options.VirtualMemoryResourceOptions:
        """Options that every rank can have, the same on all.

        What ``config`` has as ``optional`` is kept or left out as all ranks can have it, and is not optional any more. A ``capacity`` of
        ``"all"`` becomes the least memory of all, a ``chunk_size`` a multiple of the common granularity.

        Raises CUDAError if some rank lacks what is asked for and not optional, on every rank alike; the message says which rank. Raises
        ValueError for options that contradict each other.

        >>> config = common.options({"gpu_direct_rdma": True, "optional": "rdma"})
        >>> resource = gvmm.VirtualMemoryResource(rank, config)
        """
        return _options.common(*_gvmm._probe_settle(self.record, config))


_OPTIONS = {"OPTIONAL": "optional", "HANDLE": "handle_type", "LOCATION": "location_type"}


def _in_python(advice: str | None) -> str | None:
    """The library's advice names the options as C does."""

    def option(found: re.Match[str]) -> str:
        value = found[2].lower()
        return f"{_OPTIONS[found[1]]}={None if value == 'none' else repr(value)}"

    return advice and re.sub(r"GVMM_(OPTIONAL|HANDLE|LOCATION)_([A-Z_]+)", option, advice)


def probe(device: Any = 0) -> Probe:
    """Tries each capability of a device with a real chunk of memory and gives everything back.

    Quiet, and without a context; takes some milliseconds. Names: "memory", "posix_fd", "fabric", "rdma", "compressible", "host",
    "host_numa", "peers", "reservation", "pools", "graphs". "Memory is short just now" is an answer like others.

    device
        Ordinal, or an object with a device_id.

    Raises ValueError if there is no such device, TypeError, CUDAError.

    >>> fabric = gvmm.probe(0)["fabric"]
    >>> if not fabric:
    ...     print(fabric.call, fabric.status, fabric.advice)
    """
    answers, memory, reservable, granularity, peers, numa_nodes, record = _gvmm._probe(device)
    return Probe(_capabilities(answers), memory, reservable, granularity, peers, numa_nodes, record)


def probe_common(probes: Iterable[Probe | bytes]) -> CommonProbe:
    """What all ranks have, from each rank's probe: the same answer on every rank that is given the same probes in the same order.

    probes
        One of each rank, in the order of the ranks: as it came from probe(), by pickle (``all_gather_object``, mpi4py's
        ``allgather``), or its ``record``, also from a program in C.

    Raises ValueError if there is none, or one is of another version of gvmm.

    >>> everyone = [None] * dist.get_world_size()
    >>> dist.all_gather_object(everyone, gvmm.probe(rank))
    >>> common = gvmm.probe_common(everyone)
    >>> common["fabric"].ok, common.lacking.get("fabric")
    """
    records = [probe if isinstance(probe, bytes) else probe.record for probe in probes]
    together = b"".join(records)
    answers, memory, reservable, granularity, peers, numa_nodes, counts = _gvmm._probe_common(together)
    capabilities = _capabilities(answers)
    lacking = {name: told for name, told in zip(capabilities, counts) if told[0]}
    figures = (memory, reservable, granularity, peers, numa_nodes)
    return CommonProbe(capabilities, *figures, together, len(records), lacking)


def handle_answer(ok: bool, call: str | None, status: int, advice: str | None) -> Capability:
    """What a resource was told of the handle_type that was asked for: see VirtualMemoryResource.handle_answer."""
    return Capability(ok, call, status, _in_python(advice), "memory with the handle_type that was asked for")


def _capabilities(answers: list[tuple[str, bool, str | None, int, str | None, str]]) -> dict[str, Capability]:
    return {name: Capability(ok, call, status, _in_python(advice), text) for name, ok, call, status, advice, text in answers}
