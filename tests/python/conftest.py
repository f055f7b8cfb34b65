"""Where the tests run, and the check after each that nothing is left."""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import support

import gvmm

if not support.ON_GPU:
    os.environ.pop("GVMM_FAULTS", None)


def pytest_configure(config: pytest.Config) -> None:
    # A release never raises: a warning that nobody expected turns up as an unraisable exception, which fails the test.
    config.addinivalue_line("filterwarnings", "error::gvmm.CUDAWarning")
    config.addinivalue_line("filterwarnings", "error::pytest.PytestUnraisableExceptionWarning")
    config.addinivalue_line("filterwarnings", "error::pytest.PytestUnhandledThreadExceptionWarning")
    config.addinivalue_line("markers", "sim: about the simulated driver, or with injected faults")
    config.addinivalue_line("markers", "slow: builds a package or runs a type checker")


def pytest_report_header() -> str:
    return f"gvmm {gvmm.__version__} from {gvmm.__file__}, on {'a GPU' if support.ON_GPU else 'the simulated driver'}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if support.ON_GPU and item.get_closest_marker("sim"):
        pytest.skip("the simulated driver only")


def _alive() -> dict[str, int]:
    now = gvmm.stats()
    names = ("physical_bytes", "mapped_bytes", "reserved_bytes", "buffers", "mappings", "memories", "reservations")
    return {name: getattr(now, name) for name in names}


def _nothing_left(before: dict[str, int]) -> None:
    gc.collect()
    for _ in range(400):  # what a graph held goes some time after it
        gvmm.drain()
        if _alive() == before:
            break
        time.sleep(0.005)
    assert _alive() == before
    if not support.ON_GPU:
        # A resource keeps events to use again; should one stay behind, the next test's simulate() says so.
        left = {kind: count for kind, count in gvmm.sim.census().items() if count and kind != "event"}
        assert left == {}, gvmm.sim.report()
        assert gvmm.sim.findings(clear=True) == []


def _forget_failures() -> None:
    """The frames of a test that failed hold its buffers: one failure shall not become that of all tests after it."""
    last = getattr(sys, "last_traceback", None)
    if last is not None:
        traceback.clear_frames(last)
    for name in ("last_traceback", "last_value", "last_exc", "last_type"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()
    gvmm.drain()


@pytest.fixture(autouse=True)
def machine() -> Iterator[None]:
    """A new simulated machine with two devices for every test, or the GPU."""
    _forget_failures()
    if not support.ON_GPU:
        gvmm.simulate(devices=2, memory=128 << 30)
        gvmm.sim.quiet()
    gvmm.Device(0).set_current()
    before = _alive()
    yield
    gvmm.sim.faults(None)
    _nothing_left(before)


@pytest.fixture
def resource() -> gvmm.VirtualMemoryResource:
    return gvmm.VirtualMemoryResource(0)


@pytest.fixture
def waiting() -> gvmm.VirtualMemoryResource:
    """One whose buffers wait for their stream also when they end without a close."""
    return gvmm.VirtualMemoryResource(0, {"release_mode": "sync"})


@pytest.fixture
def G(resource: gvmm.VirtualMemoryResource) -> int:
    """The granularity."""
    return resource.granularity


@pytest.fixture
def host() -> gvmm.VirtualMemoryResource:
    return gvmm.VirtualMemoryResource(0, {"location_type": "host", "handle_type": None})


def make_stream(blocking: bool = False) -> Any:
    """On a GPU a stream of cuda.core where that is installed, so that the tests are about those."""
    if not support.ON_GPU:
        return gvmm.Stream(0, blocking=blocking)
    try:
        from cuda.core import Device, StreamOptions
    except ImportError:
        return gvmm.Stream(0, blocking=blocking)
    device = Device(0)
    device.set_current()
    return device.create_stream(options=StreamOptions(nonblocking=not blocking))


@pytest.fixture
def new_stream() -> Iterator[Any]:
    made: list[Any] = []

    def new(blocking: bool = False) -> Any:
        made.append(make_stream(blocking))
        return made[-1]

    yield new
    for stream in made:
        stream.close()


@pytest.fixture
def stream(new_stream: Any) -> Any:
    """A non-blocking stream."""
    return new_stream()


@pytest.fixture
def blocking_stream(new_stream: Any) -> Any:
    return new_stream(blocking=True)
