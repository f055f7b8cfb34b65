"""What counts as a stream, and how long its object lives."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
import support
from support import ON_GPU, assert_waits, handle_of

import gvmm


class Protocol:
    """Anything with __cuda_stream__."""

    def __init__(self, stream):
        self.stream = stream

    def __cuda_stream__(self):
        return 0, handle_of(self.stream)


class Old:
    """The protocol when it was a property."""

    def __init__(self, stream):
        self.__cuda_stream__ = (0, handle_of(stream))


class Torch:
    def __init__(self, stream):
        self.cuda_stream = handle_of(stream)


class CuPy:
    def __init__(self, stream):
        self.ptr = handle_of(stream)


@pytest.mark.parametrize("form", [lambda s: s, Protocol, Old, Torch, CuPy, handle_of])
def test_forms_of_streams(resource, stream, G, form):
    buffer = resource.allocate(G, stream=form(stream))
    assert_waits(buffer.close, stream, buffer.handle)
    buffer = resource.allocate(G)
    assert_waits(lambda: buffer.close(form(stream)), stream, buffer.handle)
    buffer = resource.allocate(G)
    buffer.set_deallocation_stream(form(stream))
    assert_waits(buffer.close, stream, buffer.handle)


@pytest.mark.parametrize("token", [0, 1, 2])
def test_default_streams(resource, host, G, token):
    buffer = resource.allocate(G, stream=token)
    assert_waits(buffer.close, 1, buffer.handle)
    host.allocate(G, stream=token).close()
    resource.allocate(G).close(token)


@pytest.mark.parametrize("thing", ["stream", 1.5, object(), True, [1], Protocol])
def test_what_is_no_stream(resource, thing):
    with pytest.raises(TypeError):
        resource.allocate(1, stream=thing)
    buffer = resource.allocate(1)
    with pytest.raises(TypeError):
        buffer.close(thing)
    with pytest.raises(TypeError):
        buffer.set_deallocation_stream(thing)
    with pytest.raises(TypeError):
        buffer.fill(0, stream=thing)
    assert not buffer.is_closed


def test_none_is_no_deallocation_stream(resource):
    with pytest.raises(TypeError):
        resource.allocate(1).set_deallocation_stream(None)


def test_protocol_versions_and_failures(resource):
    class Future:
        def __cuda_stream__(self):
            return 1, 0

    class Broken:
        def __cuda_stream__(self):
            raise KeyError("mine")

    class Shapeless:
        def __cuda_stream__(self):
            return 5

    for thing, kind in [(Future(), ValueError), (Broken(), KeyError), (Shapeless(), TypeError)]:
        with pytest.raises(kind):
            resource.allocate(1, stream=thing)


def test_closed_streams(resource, stream, new_stream, G):
    closed = new_stream()
    closed.close()
    buffer = resource.allocate(G, stream=stream)
    for call in (
        lambda: resource.allocate(G, stream=closed),
        lambda: buffer.close(closed),
        lambda: buffer.set_deallocation_stream(closed),
        lambda: buffer.fill(0, stream=closed),
    ):
        with pytest.raises(RuntimeError):
            call()
    assert_waits(buffer.close, stream, buffer.handle)


def test_what_derives_from_a_stream_speaks_for_itself(resource, stream, G):
    """Only of gvmm.Stream itself is the handle read past the protocol."""

    class Named(gvmm.Stream):
        def __init__(self, of):
            self._handle = 0  # its own is closed, and it stands for another
            self.of = of

        def __cuda_stream__(self):
            return self.of.__cuda_stream__()

    buffer = resource.allocate(G, stream=Named(stream))
    assert_waits(buffer.close, stream, buffer.handle)
    pool = gvmm.Pool(resource)
    address = pool.malloc(512, Named(stream))
    pool.free(address, stream)
    assert pool.malloc(512, stream) == address and pool.stats().reuses == 1  # it was the same stream
    pool.free(address, Named(stream))


def test_a_closed_stream_of_cuda_core_says_0(resource):
    closed = type("Stream", (), {"__module__": "cuda.core._stream", "__cuda_stream__": lambda self: (0, 0)})()
    with pytest.raises(RuntimeError, match="closed"):
        resource.allocate(1, stream=closed)
    default = type("Stream", (), {"__module__": "torch.cuda.streams", "__cuda_stream__": lambda self: (0, 0)})()
    resource.allocate(1, stream=default).close()


@pytest.mark.skipif(ON_GPU, reason="about the simulator's streams; the driver crashes if this goes wrong")
def test_the_buffer_keeps_its_stream_alive(resource, G):
    stream = gvmm.Stream()
    alive = weakref.ref(stream)
    buffer = resource.allocate(G, stream=stream)
    longer = resource.modify_allocation(buffer, 2 * G)
    del stream
    gc.collect()
    assert alive() is not None
    buffer.close()
    gc.collect()
    assert alive() is not None  # longer records it too
    longer.set_deallocation_stream(1)
    assert alive() is None
    longer.close()


@pytest.mark.skipif(ON_GPU, reason="about the simulator's streams")
def test_in_a_cycle_the_buffer_is_released_before_its_stream(G):
    """The collector takes the cycle apart in whatever order; the wait comes first."""
    for _ in range(3):
        resource = gvmm.VirtualMemoryResource(0)

        class Engine:
            pass

        engine = Engine()
        engine.stream = gvmm.Stream()  # has a finalizer that destroys it
        engine.buffer = resource.allocate(G, stream=engine.stream)
        engine.buffer.fill(1, stream=engine.stream)
        engine.me = engine
        del engine
        gc.collect()
        assert gvmm.stats().buffers == 0
        assert gvmm.sim.findings() == []


def test_the_given_stream_is_kept_only_as_long_as_needed(resource, stream, G):
    count = sys.getrefcount(stream)
    buffer = resource.allocate(G, stream=stream)
    assert sys.getrefcount(stream) == count + 1
    buffer.close()
    assert sys.getrefcount(stream) == count
    resource.allocate(G).close(stream)
    assert sys.getrefcount(stream) == count
    with support.capturing(stream):
        with pytest.raises(RuntimeError):
            resource.allocate(0).close(stream)
    assert sys.getrefcount(stream) == count
