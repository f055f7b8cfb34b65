"""What the docstrings list under "Raises", once for each method and kind. Values of options and forms of arguments are in
test_objects.py, test_elastic.py, test_share.py and test_streams.py."""

from __future__ import annotations

import socket

import pytest
from support import capturing, map_by_hand

import gvmm
from gvmm import Buffer, CUDAError, CUDAMemoryError, CUDAValueError

CALLS = {
    "fill": lambda b, s: b.fill(0, stream=s),
    "copy_to": lambda b, s: b.copy_to(stream=s),
    "copy_from": lambda b, s: b.copy_from(b, stream=s),
    "set_deallocation_stream": lambda b, s: b.set_deallocation_stream(s),
    "retain_in_graph": lambda b, s: b.retain_in_graph(1),
    "retain_in_capture": lambda b, s: b.retain_in_capture(s),
    "segments": lambda b, s: b.segments(),
    "__dlpack__": lambda b, s: b.__dlpack__(),
    "shrink": lambda b, s: b.shrink(0),
    "ring": lambda b, s: b.ring(),
    "set_access": lambda b, s: b.set_access(0, "r"),
    "get_access": lambda b, s: b.get_access(0),
    "evict": lambda b, s: b.evict(),
    "restore": lambda b, s: b.restore(),
    "identities": lambda b, s: b.identities(),
    "send": lambda b, s: b.send(0),
}
OWN = ["segments", "shrink", "ring", "set_access", "get_access", "evict", "restore", "identities", "send"]


@pytest.mark.parametrize("name", CALLS)
def test_closed_buffers(resource, stream, G, name):
    buffer = resource.allocate(G)
    buffer.close()
    with pytest.raises(RuntimeError, match="closed"):
        if name == "send":
            with socket.socketpair()[0] as end:
                buffer.send(end)
        else:
            CALLS[name](buffer, stream)


@pytest.mark.parametrize("name", OWN)
def test_wrapped_buffers(resource, stream, G, name):
    buffer = gvmm.VirtualMemoryBuffer.from_handle(map_by_hand(G), G, mr=resource)
    try:
        with pytest.raises(TypeError):
            CALLS[name](buffer, stream)
    finally:
        buffer.close()


def test_wrapped_buffers_and_graphs(stream):
    buffer = Buffer.from_handle(0x1000, 16, owner=object())
    with gvmm.Graph() as graph, pytest.raises(ValueError):
        buffer.retain_in_graph(graph)
    with capturing(stream), pytest.raises(ValueError):
        buffer.retain_in_capture(stream)


def test_capturing(resource, stream, G):
    buffer = resource.allocate(G, stream=stream)
    with pytest.raises(CUDAValueError, match="not capturing"):
        buffer.retain_in_capture(stream)
    base = map_by_hand(G)
    with capturing(stream):
        for call in (
            lambda: buffer.close(),
            lambda: buffer.evict(),
            lambda: resource.evict(stream=stream),
            lambda: resource.deallocate(base, G, stream=stream),
        ):
            with pytest.raises(RuntimeError, match="capturing"):
                call()
        assert not buffer.is_closed
    resource.deallocate(base, G, stream=stream)
    with pytest.raises(CUDAError) as caught:
        resource.deallocate(base, G)
    assert caught.value.call == "cuMemUnmap"
    buffer.close()


def test_evicting_while_the_default_stream_must_not_be_waited_for(resource, blocking_stream, G):
    buffer = resource.allocate(G)
    with capturing(blocking_stream), pytest.raises(RuntimeError, match="legacy stream"):
        resource.evict()
    assert not buffer.evicted_bytes
    buffer.close()


@pytest.mark.parametrize("size", [-1, 1 << 64])
def test_sizes_that_overflow(resource, G, size):
    buffer = resource.allocate(G)
    for call in (
        lambda: resource.allocate(size),
        lambda: resource.modify_allocation(buffer, size),
        lambda: resource.trim(size),
        lambda: resource.prepare_evict(size),
        lambda: resource.compose([(buffer, size, None)]),
        lambda: buffer.shrink(size),
    ):
        with pytest.raises(OverflowError):
            call()


def test_sizes_that_are_no_numbers(resource, G):
    buffer = resource.allocate(G)
    for call in (resource.allocate, resource.trim, resource.prepare_evict, buffer.shrink):
        with pytest.raises(TypeError):
            call("1")


def test_pools(resource, stream):
    pool = gvmm.Pool(resource, limit=16 << 20)
    block = pool.malloc(1 << 20, stream)
    with pytest.raises(MemoryError):
        pool.malloc(1 << 30, stream)
    pool.free(block, stream)
    for address in (block, 0x1000):
        with pytest.raises(ValueError):
            pool.free(address, stream)


@pytest.mark.sim
def test_failures_of_the_driver(resource, stream, G):
    buffer = resource.allocate(G, stream=stream)
    graph = gvmm.Graph()
    for plan, call, kind in [
        ("cuMemsetD8Async:1=UNKNOWN", lambda: buffer.fill(0, stream=stream), CUDAError),
        ("cuMemcpyAsync:1=UNKNOWN", lambda: buffer.copy_to(stream=stream), CUDAError),
        ("cuUserObjectCreate:1=UNKNOWN", lambda: buffer.retain_in_graph(graph), CUDAError),
        ("malloc:1", lambda: buffer.shrink(0), CUDAMemoryError),
        ("cuMemMap:1=UNKNOWN", lambda: buffer.ring(), CUDAError),
        ("cuMemSetAccess:1=UNKNOWN", lambda: buffer.set_access(0, "r"), CUDAError),
        ("cuMemMap:1=UNKNOWN", lambda: resource.compose([buffer]), CUDAError),
        ("cuMemMap:1+=UNKNOWN", lambda: resource.modify_allocation(buffer, 2 * G), CUDAError),
        ("malloc:1", lambda: buffer.evict(), CUDAMemoryError),
        ("cuStreamSynchronize:1=UNKNOWN", lambda: buffer.evict(), CUDAError),
        ("malloc:1", lambda: resource.prepare_evict(G), CUDAMemoryError),
        ("cuDevicePrimaryCtxRetain:1=UNKNOWN", lambda: resource.prepare_evict(G), CUDAError),
    ]:
        with gvmm.sim.faults(plan), pytest.raises(kind) as caught:
            call()
        assert isinstance(caught.value, MemoryError) == (kind is CUDAMemoryError), plan
        assert (buffer.size, buffer.evicted_bytes, buffer.get_access(0)) == (G, 0, "rw")
    graph.close()
    buffer.evict()
    for plan, kind in [("cuMemCreate:1+", CUDAMemoryError), ("cuMemMap:1=UNKNOWN", CUDAError)]:
        for call in (buffer.restore, resource.restore):
            with gvmm.sim.faults(plan), pytest.raises(kind):
                call()
            assert buffer.evicted_bytes == G
    buffer.restore()
    buffer.close()
