"""How to test a program that uses gvmm on a machine with no GPU.

    python -m pytest examples/test_without_gpu.py
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gvmm


def make_cache(resource: gvmm.VirtualMemoryResource, layers: int) -> list[gvmm.VirtualMemoryBuffer]:
    """The code under test: all of the buffers, or none."""
    made: list[gvmm.VirtualMemoryBuffer] = []
    try:
        for _ in range(layers):
            made.append(resource.allocate(1 << 20))
    except gvmm.CUDAError:
        for buffer in made:
            buffer.close()
        raise
    return made


@pytest.fixture(autouse=True)
def simulated_machine() -> Iterator[None]:
    """A new machine for each test, which must be empty at its end."""
    gvmm.simulate(devices=2, memory=64 << 20)
    yield
    gvmm.drain()  # buffers that ended without close() go back when their stream's work is done
    assert not any(gvmm.sim.census().values()), gvmm.sim.report()
    assert not gvmm.sim.findings()


def test_the_cache_fits() -> None:
    for buffer in make_cache(gvmm.VirtualMemoryResource(0), layers=4):
        assert buffer.size == 2 << 20
        buffer.close()


def test_too_many_layers_leave_nothing() -> None:
    with pytest.raises(gvmm.CUDAMemoryError):
        make_cache(gvmm.VirtualMemoryResource(0), layers=100)
    assert gvmm.stats().physical_bytes == 0


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"])
def test_any_call_may_fail(call: str) -> None:
    with gvmm.sim.faults(f"{call}:3"), pytest.raises(gvmm.CUDAError):
        make_cache(gvmm.VirtualMemoryResource(0), layers=4)
    assert gvmm.stats().physical_bytes == 0
