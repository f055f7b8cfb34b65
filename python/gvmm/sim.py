"""The simulated driver: real bytes, real errors, no GPU. For tests of programs that use gvmm.

    gvmm.simulate(devices=2, memory=16 << 30)   # before first use; or GVMM_DRIVER=sim in the environment
    ...
    assert not any(gvmm.sim.census().values())  # nothing leaked
    assert not gvmm.sim.findings()              # nothing ran over unmapped memory

This module may change in a minor release, as may what it shows of the simulator.
"""

from __future__ import annotations

import tempfile
from typing import NamedTuple

from . import _gvmm

__all__ = ["Faults", "Item", "census", "faults", "findings", "items", "quiet", "report", "simulate"]


def simulate(
    devices: int = 1,
    memory: int = 0,
    *,
    numa_nodes: int = 1,
    address_space: int = 0,
    granularity: int = 0,
    descriptors: int = 0,
    peers: bool = True,
    latency: bool = False,
) -> None:
    """Makes gvmm use a new simulated machine. The one before is forgotten; it must be empty but for contexts.

    devices
        1 to 16.
    memory, address_space, granularity
        Bytes of each device, bytes of addresses in all, and the unit of sizes; 0: 80 GiB, 64 TiB, 2 MiB.
    numa_nodes
        1 to 8.
    descriptors
        Exported descriptors open at a time; 0: what the system gives.
    peers
        Every device can access every other.
    latency
        Each call takes as long as it did on an H200.

    Raises CUDAValueError (also a ValueError) while a resource, a stream or a graph is alive, and for a value out of range.

    >>> gvmm.simulate(devices=2, memory=1 << 30)
    """
    _gvmm._simulate(devices, numa_nodes, memory, address_space, granularity, descriptors, peers, latency)


class Item(NamedTuple):
    """One thing alive in the simulated driver."""

    kind: str
    address: int
    """Device address, or the handle's value where there is none."""
    size: int
    references: int
    call: int
    """Number of the driver call that made it, counted from 1."""
    made_by: str
    """Name of that call."""


def census() -> dict[str, int]:
    """What is alive in the simulated driver, per kind: "memory", "reservation", "mapping", "stream" and so on. "memory" counts
    handles that somebody owes a release; memory that is mapped shows under "mapping".

    >>> gvmm.sim.census()["mapping"]
    0
    """
    return _gvmm._census()


def items() -> list[Item]:
    """Each thing alive, with the call that made it, oldest first within its kind.

    >>> [item.made_by for item in gvmm.sim.items()]
    []
    """
    return [Item(*item) for item in _gvmm._items()]


def findings(*, clear: bool = False) -> list[str]:
    """What a GPU could not tell: work that touched memory unmapped under it, destroyed streams used, double releases.

    clear
        Forget them afterwards.

    >>> gvmm.sim.findings()
    []
    """
    return _gvmm._findings(clear)


def quiet(yes: bool = True) -> None:
    """Whether findings are kept from standard error when they are made.

    >>> gvmm.sim.quiet()
    """
    _gvmm._quiet(yes)


def report(*, json: bool = False) -> str:
    """The leak report: everything alive, as text or as JSON.

    >>> print(gvmm.sim.report())
    """
    with tempfile.TemporaryFile("w+b") as file:
        _gvmm._report(file.fileno(), json)
        file.seek(0)
        return file.read().decode()


class Faults:
    """A fault plan in force. As a context manager it ends with the block."""

    @property
    def counted(self) -> int:
        """Driver calls and allocations counted since the plan was set."""
        return _gvmm._faults_counted()[0]

    @property
    def injected(self) -> int:
        """How many of them were failed."""
        return _gvmm._faults_counted()[1]

    def __enter__(self) -> Faults:
        return self

    def __exit__(self, *exception: object) -> None:
        _gvmm._faults_set(None)


def faults(plan: str | None) -> Faults:
    """Makes chosen driver calls or host allocations fail, of the simulated or a real driver; None ends it.

    plan
        ``[call:]nth[+][=status]``: ``"3"`` fails the third call from now, ``"3+"`` all from the third on, ``"cuMemMap:2"`` the second
        cuMemMap, ``"cuMemCreate:1=NOT_SUPPORTED"`` with that status. ``"malloc"`` names the library's own allocations.

    Raises CUDAValueError for another text; without simulate(), also while a resource is alive.

    >>> with gvmm.sim.faults("cuMemMap:1"):
    ...     resource.allocate(1)
    Traceback (most recent call last):
    gvmm.CUDAMemoryError: cuMemMap: CUDA_ERROR_OUT_OF_MEMORY, mapping: ...
    """
    _gvmm._faults_set(plan)
    return Faults()
