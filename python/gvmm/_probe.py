"""What a device can do here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import _gvmm


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

    def __getitem__(self, name: str) -> Capability:
        return self.capabilities[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.capabilities)

    def __len__(self) -> int:
        return len(self.capabilities)


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
    answers, memory, reservable, granularity, peers, numa_nodes = _gvmm._probe(device)
    capabilities = {
        name: Capability(ok, call, status, _in_python(advice), text) for name, ok, call, status, advice, text in answers
    }
    return Probe(capabilities, memory, reservable, granularity, peers, numa_nodes)
