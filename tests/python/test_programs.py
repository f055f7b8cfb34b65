"""Programs for cuda.core with only the import changed (programs/)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import ON_GPU, assert_silent, has_cuda_core_on_standin, run_python

from gvmm._cuda import driver_call

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))

# cuda.core's Device and graph builder, as far as the programs use them, over gvmm's small ones.
STAND_IN = """
import sys, types
import gvmm

class GraphBuilder:
    def __init__(self, stream):
        self._stream = stream
    def __cuda_stream__(self):
        return self._stream.__cuda_stream__()
    def begin_building(self):
        self._stream.begin_capture("relaxed")
        return self
    def end_building(self):
        self._graph = self._stream.end_capture()
        return self
    def complete(self):
        return self._graph
    def close(self):
        pass

gvmm.Stream.create_graph_builder = lambda self: GraphBuilder(self)
cuda, core = types.ModuleType("cuda"), types.ModuleType("cuda.core")
cuda.core, core.Device = core, gvmm.Device
sys.modules.update({"cuda": cuda, "cuda.core": core})
"""

ENDING = """
import gc
for name in [name for name in globals() if not name.startswith("__") and name not in ("gc", "sys")]:
    del globals()[name]
gc.collect()
import gvmm, time
for _ in range(400):
    gvmm.drain()
    if not gvmm.stats().mappings:
        break
    time.sleep(0.005)
left = gvmm.stats()
assert not (left.buffers or left.physical_bytes or left.mapped_bytes or left.reserved_bytes), left
assert not gvmm.sim.findings(), gvmm.sim.findings()
"""


def device_count() -> int:
    import ctypes

    count = ctypes.c_int(0)
    driver_call("cuDeviceGetCount", ctypes.byref(count))
    return count.value


def run(program: Path, start: str, **where: Any) -> None:
    text = program.read_text()
    if "numpy" in text:
        pytest.importorskip("numpy")
    source = f"{start}\nexec(compile({text!r}, {str(program)!r}, 'exec'))\n{ENDING}"
    assert_silent(run_python(source, "-W", "error::gvmm.CUDAWarning", GVMM_SIM="devices=2", **where))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program(program):
    if "Device(1)" in program.read_text() and device_count() < 2:
        pytest.skip("hardware: one device")
    run(program, "" if ON_GPU else STAND_IN)


@pytest.mark.skipif(not has_cuda_core_on_standin(), reason="no cuda.core, or no stand-in driver")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program_with_cuda_core_on_the_standin(program):
    run(program, "", standin=True)


CONSUMERS = """
import gvmm
from cuda.core import Buffer, Device
from cuda.core.utils import StridedMemoryView

device = Device(0)
device.set_current()
stream = device.create_stream()
mr = gvmm.VirtualMemoryResource(device)
buffer = mr.allocate(1 << 21, stream=stream)

for view in (
    StridedMemoryView.from_any_interface(buffer, stream_ptr=-1),
    StridedMemoryView.from_dlpack(buffer, stream_ptr=-1),
    StridedMemoryView.from_cuda_array_interface(buffer, stream_ptr=-1),
):
    assert (view.ptr, view.shape, view.is_device_accessible) == (buffer.handle, (1 << 21,), True), view

theirs = device.memory_resource.allocate(1 << 21, stream=stream)
buffer.fill(5, stream=stream)
assert buffer.copy_to(theirs, stream=stream) is theirs
buffer.copy_from(theirs, stream=stream)
stream.sync()
theirs.close(stream)

wrapped = Buffer.from_handle(buffer.handle, buffer.size, owner=buffer)
assert wrapped.handle == buffer.handle
wrapped.close()

closed = device.create_stream()
closed.close()
try:
    mr.allocate(1, stream=closed)
except RuntimeError:
    pass
else:
    raise AssertionError("a closed stream was accepted")
del view, wrapped, theirs, buffer, mr
"""


def test_consumers_of_cuda_core():
    """What of cuda.core takes any buffer takes ours."""
    if not ON_GPU and not has_cuda_core_on_standin():
        pytest.skip("no cuda.core, or no stand-in driver")
    assert_silent(run_python(CONSUMERS, standin=not ON_GPU))


def test_there_are_programs():
    assert len(PROGRAMS) >= 7


# ---- examples ----


def test_example_growing_array():
    result = run_python((EXAMPLES / "growing_array.py").read_text())
    assert_silent(result)
    assert result.stdout.startswith("120 MiB in ")


def test_example_sleep_and_wake():
    result = run_python((EXAMPLES / "sleep_and_wake.py").read_text())
    assert_silent(
        result,
        "all asleep: 0 MiB of memory, 264 MiB of addresses\nsmall awake: 32 MiB, 3 pieces registered anew\nwoken 4 times\n",
    )


@pytest.mark.sim
def test_example_of_tests_without_a_gpu():
    result = run_python("import pytest, sys; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', sys.argv[1]]))",
                        arguments=[str(EXAMPLES / "test_without_gpu.py")])  # fmt: skip
    assert result.returncode == 0, result.stdout


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_example_torch():
    pytest.importorskip("torch")
    result = run_python((EXAMPLES / "torch_growing.py").read_text())
    assert_silent(result, "sum of 33554432 values: 33554432\n")
