"""The interpreter lock is free whenever the driver is called: a driver may wait, also for another thread of the program."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import ON_GPU, STANDIN, run_python

DRIVER = os.environ.get("GVMM_TEST_LOCK_DRIVER", "/nowhere")

PROGRAM = """
import ctypes, os
import lock_program

driver = ctypes.CDLL(os.environ["GVMM_DRIVER"])

def calls(with_lock):
    text = ctypes.create_string_buffer(8192)
    assert driver.lock_driver_calls(text, ctypes.c_size_t(len(text)), with_lock)
    return text.value.decode()

lock_program.everything()
print(calls(False))
print(calls(True))
"""


@pytest.mark.sim
@pytest.mark.skipif(ON_GPU or not Path(DRIVER).exists(), reason="needs the driver that knows who has the lock")
def test_no_driver_call_is_made_with_the_interpreter_lock():
    below = str(Path(STANDIN) / "libcuda.so.1")
    result = run_python(PROGRAM, GVMM_DRIVER=DRIVER, LOCK_DRIVER_BELOW=below)
    assert (result.returncode, result.stderr) == (0, "")
    called, with_lock = (line.split() for line in result.stdout.splitlines())
    assert with_lock == []
    # it is that driver which was asked, and by everything that calls one
    assert {
        "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemAddressFree", "cuStreamSynchronize",
        "cuMemHostRegister", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuMemsetD8Async", "cuMemcpyAsync", "cuEventRecord",
        "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuUserObjectCreate", "cuStreamGetCaptureInfo",
    } <= set(called)  # fmt: skip


BESIDE = """
import ctypes, os, threading, time
import gvmm

driver = ctypes.CDLL(os.environ["GVMM_DRIVER"])
driver.lock_driver_is_waiting.restype = ctypes.c_bool
pool = gvmm.Pool(0)
buffer = gvmm.VirtualMemoryResource(0).allocate(4 << 20)
buffer.evict("drop")
blocks = []
driver.lock_driver_shut(ctypes.c_bool(True))
maker = threading.Thread(target={makes_memory})
maker.start()
while not driver.lock_driver_is_waiting():
    time.sleep(0.001)
lookers = []
for look in ({looks}):
    begun = threading.Event()
    lookers.append(threading.Thread(target=lambda look=look, begun=begun: (begun.set(), look())))
    lookers[-1].start()
    begun.wait()
print(driver.lock_driver_is_waiting())
driver.lock_driver_shut(ctypes.c_bool(False))
for thread in (maker, *lookers):
    thread.join()
for block in blocks:
    pool.free(block)
"""


@pytest.mark.sim
@pytest.mark.skipif(ON_GPU or not Path(DRIVER).exists(), reason="needs the driver that takes as long as is wanted")
@pytest.mark.parametrize(
    ("makes_memory", "looks"),
    [
        ("lambda: blocks.append(pool.malloc(4 << 20))", "pool.stats, pool.reset_peaks, lambda: pool.set_limit(None)"),
        ("buffer.restore", "buffer.identities, buffer.segments, lambda: buffer.generation, lambda: buffer.get_access(0)"),
    ],
    ids=["pool", "restore"],
)
def test_a_look_at_what_gets_memory_keeps_no_lock(makes_memory: str, looks: str):
    below = str(Path(STANDIN) / "libcuda.so.1")
    program = BESIDE.format(makes_memory=makes_memory, looks=looks)
    result = run_python(program, GVMM_DRIVER=DRIVER, LOCK_DRIVER_BELOW=below)
    assert (result.stdout, result.stderr) == ("True\n", "")
