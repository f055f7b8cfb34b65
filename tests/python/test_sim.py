"""gvmm.simulate and gvmm.sim: what tests of user code with no GPU stand on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support import Gate, read, run_python, write

import gvmm
from gvmm import CUDAError, CUDAMemoryError, CUDAValueError, VirtualMemoryResource

pytestmark = pytest.mark.sim


def test_the_machine_is_as_asked():
    gvmm.simulate(devices=3, memory=8 << 20, granularity=1 << 16)
    resource = VirtualMemoryResource(2)
    assert resource.granularity == 1 << 16
    buffer = resource.allocate(8 << 20)
    with pytest.raises(CUDAMemoryError):
        resource.allocate(1)
    buffer.close()
    with pytest.raises(CUDAError):
        VirtualMemoryResource(3)


def test_a_new_machine_needs_an_empty_one(resource, G):
    with pytest.raises(CUDAValueError, match="resource is alive"):
        gvmm.simulate()
    with pytest.raises(RuntimeError):
        gvmm.simulate()
    buffer = resource.allocate(G)
    assert buffer.size == G


def test_a_stream_alive_is_named():
    stream = gvmm.Stream()
    with pytest.raises(ValueError, match="stream"):
        gvmm.simulate()
    stream.close()
    gvmm.simulate()


def test_values_out_of_range():
    for wrong in ({"devices": 0}, {"devices": 17}, {"granularity": 5000}, {"numa_nodes": 9}):
        with pytest.raises(ValueError):
            gvmm.simulate(**wrong)


def test_census_and_report(resource, G):
    buffer = resource.allocate(G)
    census = gvmm.sim.census()
    assert (census["mapping"], census["reservation"], census["stream"]) == (1, 1, 0)
    [mapping] = [item for item in gvmm.sim.items() if item.kind == "mapping"]
    assert (mapping.address, mapping.size, mapping.made_by) == (buffer.handle, G, "cuMemMap")
    assert f"{buffer.handle:012x}" in gvmm.sim.report()
    assert json.loads(gvmm.sim.report(json=True))
    buffer.close()
    assert not any(gvmm.sim.census().values())


def test_faults(resource, G):
    for plan in ("cuMemCreate:1", "cuMemAddressReserve:1", "cuMemMap:1", "cuMemSetAccess:1"):
        with gvmm.sim.faults(plan) as faults:
            with pytest.raises(CUDAError) as caught:
                resource.allocate(G)
            assert faults.injected == 1 and caught.value.call == plan.split(":")[0]
        resource.allocate(G).close()
    gvmm.sim.faults("cuMemMap:2=INVALID_VALUE")
    first = resource.allocate(G)
    with pytest.raises(CUDAError) as caught:
        resource.allocate(G)
    assert caught.value.code == 1
    gvmm.sim.faults(None)
    assert first.size == G


@pytest.mark.parametrize("onwards", ["", "+"])
@pytest.mark.filterwarnings("ignore::gvmm.CUDAWarning")  # what fails while it is undone
def test_every_call_of_a_grow_may_fail(onwards):
    """The input is as it was, nothing is left, and the same call then succeeds."""
    resource = VirtualMemoryResource(0)
    G = resource.granularity
    small = resource.allocate(G)
    write(small.handle, b"intact")
    nth, failed, fired = 0, 0, 1
    while fired:
        nth += 1
        before = gvmm.stats()
        with gvmm.sim.faults(f"{nth}{onwards}") as faults:
            try:
                resource.modify_allocation(small, 3 * G)
            except CUDAError:
                failed += 1
            fired = faults.injected
        gvmm.drain()
        assert gvmm.stats().physical_bytes == before.physical_bytes
        assert small.size == G and read(small.handle, 6) == b"intact"
    assert failed >= (4 if onwards else 1)  # a single failure in place ends in a move
    assert resource.modify_allocation(small, 3 * G).size == 3 * G


def test_wrong_plans():
    for plan in ("", "0", "cuMemMap", "nonsense:1", "1=NONSENSE"):
        with pytest.raises(CUDAValueError):
            gvmm.sim.faults(plan)


def test_faults_without_simulate():
    program = """
import gvmm
gvmm.sim.faults("cuMemMap:1")
r = gvmm.VirtualMemoryResource(0)
try: r.allocate(1)
except gvmm.CUDAError as e: print(e.call)
"""
    assert run_python(program).stdout == "cuMemMap\n"
    assert run_python(program.replace('"cuMemMap:1"', "None"), GVMM_FAULTS="cuMemMap:1").stdout == "cuMemMap\n"


def test_findings(resource, G):
    stream = gvmm.Stream()
    buffer = resource.allocate(G)
    work = Gate(stream)
    buffer.fill(1, stream=stream)
    buffer.close()  # waits for the default stream, which is another
    work.open()
    with pytest.raises(CUDAError, match="ILLEGAL_ADDRESS"):
        stream.sync()
    findings = gvmm.sim.findings()
    assert len(findings) == 1 and "0x" in findings[0]
    assert gvmm.sim.findings(clear=True) == findings
    assert gvmm.sim.findings() == []
    with pytest.raises(CUDAError):  # the context is lost, as on a GPU
        stream.close()


def test_stats(resource, G):
    buffer = resource.allocate(G)
    figures = gvmm.stats(resource)
    assert (figures.physical_bytes, figures.mapped_bytes, figures.buffers, figures.allocations) == (G, G, 1, 1)
    assert gvmm.stats().driver_calls > 0 and figures.driver_calls == 0
    with pytest.raises(TypeError):
        gvmm.stats(buffer)
    header = Path(__file__).parents[2] / "include" / "gvmm.h"
    if header.exists():
        [struct] = re.findall(r"typedef struct gvmm_stats \{(.*?)\} gvmm_stats;", header.read_text(), re.DOTALL)
        names = re.findall(r"^\s*uint64_t (\w+);", struct, re.MULTILINE)
        assert set(names) >= set(gvmm.Stats._fields)
