"""release_mode="deferred", the default: the end of a buffer neither waits nor warns, and nothing is unmapped early."""

from __future__ import annotations

import gc
import sys
import time

import pytest
from support import assert_waits, begin_capture, capturing, end_capture, gate, is_mapped, is_released, wait_until_gone

import gvmm


@pytest.fixture(params=[None, {"release_mode": "deferred"}], ids=["default", "asked for"])
def deferred(request) -> gvmm.VirtualMemoryResource:
    return gvmm.VirtualMemoryResource(0, request.param)


def test_collecting_does_not_wait(deferred, stream, G):
    buffer = deferred.allocate(G, stream=stream)
    address = buffer.handle
    with gate(stream):
        started = time.monotonic()
        del buffer
        assert time.monotonic() - started < 1
        assert is_mapped(address)
    wait_until_gone(address, G)


def test_close_waits_all_the_same(deferred, stream, G):
    buffer = deferred.allocate(G, stream=stream)
    address = buffer.handle
    assert_waits(buffer.close, stream, address)
    assert is_released(address, G)


def test_the_stream_may_go_at_once(deferred, new_stream, G):
    stream = new_stream()
    buffer = deferred.allocate(G, stream=stream)
    address = buffer.handle
    count = sys.getrefcount(stream)
    buffer.fill(1, stream=stream)
    del buffer
    assert sys.getrefcount(stream) == count - 1
    wait_until_gone(address, G)


def test_while_its_stream_captures_the_graph_holds_it(deferred, stream, G):
    buffer = deferred.allocate(G, stream=stream)
    address = buffer.handle
    begin_capture(stream)
    buffer.fill(2, stream=stream)
    del buffer
    graph = end_capture(stream)
    assert is_mapped(address)
    graph.launch(stream)
    graph.close()
    wait_until_gone(address, G)


def test_the_default_stream_while_a_blocking_stream_captures(deferred, blocking_stream, G):
    buffer = deferred.allocate(G)
    address = buffer.handle
    with capturing(blocking_stream):
        del buffer
        gc.collect()
        assert is_mapped(address)
    wait_until_gone(address, G)
