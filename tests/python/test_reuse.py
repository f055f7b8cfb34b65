"""Kept memory: ended buffers handed out again in stream order (``reuse_limit``)."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest
from support import (
    MiB,
    begin_capture,
    capturing,
    end_capture,
    gate,
    handle_of,
    is_filled,
    is_mapped,
    is_released,
    wait_until_gone,
    write,
)
from test_exchange import Consumer

import gvmm
from gvmm import VirtualMemoryResource, VirtualMemoryResourceOptions
from gvmm._cuda import driver_call

G = 2 * MiB
LIMIT = 8 * G
NOT_READY = 600


def keeper(**options) -> VirtualMemoryResource:
    return VirtualMemoryResource(0, {"reuse_limit": LIMIT, **options})


@pytest.fixture
def keeping() -> Iterator[VirtualMemoryResource]:
    resource = keeper()
    assert resource.granularity == G
    yield resource
    resource.trim()  # pytest holds it until all is looked at


def kept(resource: VirtualMemoryResource) -> int:
    return gvmm.stats(resource).kept_bytes


def reused(resource: VirtualMemoryResource) -> int:
    return gvmm.stats(resource).reused


def leave(resource: VirtualMemoryResource, size: int = G, stream=None) -> int:
    """Makes a buffer and lets it end; where it was."""
    return resource.allocate(size, stream=stream).handle


def is_done(stream) -> bool:
    try:
        driver_call("cuStreamQuery", handle_of(stream))
    except gvmm.CUDAError as error:
        assert error.code == NOT_READY
        return False
    return True


def finish(stream) -> None:
    driver_call("cuStreamSynchronize", handle_of(stream))


# ---- to whom ----


def test_the_same_stream_has_it_at_once(keeping, stream):
    first = keeping.allocate(G, stream=stream)
    address, gone = first.handle, weakref.ref(first)
    with gate(stream):  # nobody waits for this
        del first
        assert gone() is None
        assert (kept(keeping), gvmm.stats(keeping).buffers, is_mapped(address)) == (G, 0, True)
        second = keeping.allocate(G, stream=stream)
        assert (second.handle, second.size, second.is_closed) == (address, G, False)
        assert second.memory_resource is keeping
        figures = gvmm.stats(keeping)
        assert (figures.reused, figures.kept_bytes, figures.allocations, figures.buffers) == (1, 0, 2, 1)
    second.close()
    assert is_released(address, G)


@pytest.mark.sim
def test_the_same_stream_is_not_made_to_wait(keeping, stream):
    """The call that would do it, and those that make memory, would fail and be seen."""
    address = leave(keeping, stream=stream)
    for call in ("cuStreamWaitEvent", "cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemUnmap", "cuStreamSynchronize"):
        with gvmm.sim.faults(f"{call}:1") as faults:
            assert leave(keeping, stream=stream) == address
            assert faults.injected == 0
    assert reused(keeping) == 6


@pytest.mark.parametrize("outlive", [False, True])
def test_another_stream_waits(stream, new_stream, outlive):
    keeping, other = keeper(streams_outlive=outlive), new_stream()
    first = keeping.allocate(G, stream=stream)
    address = first.handle
    with gate(stream) as g:
        first.fill(1, stream=stream)
        del first
        second = keeping.allocate(G, stream=other)  # which waits for nothing
        assert (second.handle, reused(keeping)) == (address, 1)
        second.fill(2, stream=other)
        assert not is_done(other)
        g.open()
        finish(other)
    assert is_filled(second, 2)
    second.close()


def test_a_replaced_stream_counts(keeping, stream, new_stream):
    """The memory comes back as used on the stream that was recorded last."""
    other = new_stream()
    for replace in (lambda b: b.set_deallocation_stream(other), lambda b: b.close(other, wait=False)):
        before = reused(keeping)
        buffer = keeping.allocate(G, stream=stream)
        address = buffer.handle
        with gate(other) as g:
            buffer.fill(1, stream=other)
            replace(buffer)
            del buffer
            again = keeping.allocate(G, stream=stream)
            assert (again.handle, reused(keeping)) == (address, before + 1)
            again.fill(2, stream=stream)
            assert not is_done(stream)
            g.open()
            finish(stream)
        assert is_filled(again, 2)
        again.close()


@pytest.mark.sim
def test_a_threads_own_default_stream_is_none_of_anothers(keeping):
    """The token 2 is another stream in each thread, and is recorded as the legacy one: who comes with it has to wait."""
    for token, waits in ((None, 0), (1, 0), (2, 1)):
        leave(keeping, stream=2)
        with gvmm.sim.faults("cuStreamWaitEvent:1") as faults:
            keeping.allocate(G, stream=token).close()
            assert faults.injected == waits, token
        gvmm.drain()


@pytest.mark.parametrize("outlive", [False, True])
def test_the_stream_object_is_not_kept(stream, outlive):
    keeping = keeper(streams_outlive=outlive)
    count = sys.getrefcount(stream)
    leave(keeping, stream=stream)
    assert (kept(keeping), sys.getrefcount(stream)) == (G, count)


def test_a_new_stream_with_an_old_handle_waits(keeping, new_stream):
    """Without the promise that streams outlive the resource a stream may go, and its handle be another's."""
    first = new_stream()
    address = leave(keeping, stream=first)
    first.close()
    second = new_stream()
    buffer = keeping.allocate(G, stream=second)
    assert (buffer.handle, reused(keeping)) == (address, 1)
    buffer.fill(1, stream=second)
    finish(second)
    assert is_filled(buffer, 1)


@pytest.mark.sim
def test_with_the_promise_no_event_is_recorded(stream):
    keeping = keeper(streams_outlive=True)
    with gvmm.sim.faults("cuEventRecord:1") as faults:
        address = leave(keeping, stream=stream)
        assert leave(keeping, stream=stream) == address
        assert faults.injected == 0


def test_only_the_same_size(keeping, stream):
    address = leave(keeping, 2 * G, stream)
    keeping.allocate(G, stream=stream).close()
    keeping.allocate(2 * G, stream=stream, capacity=4 * G).close()  # its addresses are not enough
    assert reused(keeping) == 0
    assert leave(keeping, 2 * G - 1, stream) == address


def test_host_memory(stream):
    keeping = keeper(location_type="host", handle_type=None)
    address = leave(keeping)
    again = keeping.allocate(G)
    assert (again.handle, reused(keeping)) == (address, 1)
    memoryview(again)[:4] = b"here"
    del again
    gc.collect()
    assert bytes(memoryview(keeping.allocate(G, stream=stream))[:4]) == b"here"


# ---- what it contains ----


def test_what_was_left_in_it(keeping, stream):
    first = keeping.allocate(G, stream=stream)
    first.fill(7, stream=stream)
    del first
    second = keeping.allocate(G, stream=stream)
    finish(stream)
    assert reused(keeping) == 1 and is_filled(second, 7)


def test_zero_reused(stream, new_stream):
    keeping, other = keeper(zero_reused=True), new_stream()
    for use in (stream, other, 1, stream):
        buffer = keeping.allocate(G, stream=use)
        finish(use)
        assert is_filled(buffer, 0)
        buffer.fill(7, stream=use)
        del buffer
    assert reused(keeping) == 3


def test_zero_reused_is_for_device_memory():
    with pytest.raises(ValueError, match="zero_reused"):
        keeper(location_type="host", handle_type=None, zero_reused=True)


# ---- which ends keep ----


def test_close_does_not_keep(keeping, stream):
    buffer = keeping.allocate(G, stream=stream)
    address = buffer.handle
    buffer.close()
    assert kept(keeping) == 0 and is_released(address, G)
    with keeping.allocate(G, stream=stream) as buffer:
        pass
    assert (kept(keeping), reused(keeping)) == (0, 0)


@pytest.mark.parametrize("mode", ["deferred", "sync"])
def test_close_without_waiting_keeps(stream, mode):
    keeping = keeper(release_mode=mode)
    old = keeping.allocate(G, stream=stream)
    address = old.handle
    old.close(wait=False)
    assert (old.is_closed, old.handle, old.size, kept(keeping)) == (True, 0, 0, G)
    new = keeping.allocate(G, stream=stream)
    assert (new is not old, new.handle, reused(keeping)) == (True, address, 1)
    old.close()  # is not new's
    del old
    write(address, b"mine")
    assert not new.is_closed and is_mapped(address)


def test_a_waiting_end_does_not_keep(stream):
    keeping = keeper(release_mode="sync")
    address = leave(keeping, stream=stream)
    assert kept(keeping) == 0 and is_released(address, G)


def test_the_collector_keeps(keeping, stream):
    holder = [keeping.allocate(G, stream=stream)]
    holder.append(holder)
    del holder
    gc.collect()
    assert kept(keeping) == G


def test_other_views(keeping, stream):
    """Memory that somebody else shows is not kept; the last view of what is as new is."""
    small = keeping.allocate(G, stream=stream)
    alias = keeping.modify_allocation(small, G)
    del small
    gvmm.drain()
    assert kept(keeping) == 0
    del alias
    assert kept(keeping) == G
    large = keeping.modify_allocation(keeping.allocate(G, stream=stream), 3 * G)
    del large  # two chunks, where an allocation has one
    assert kept(keeping) == 0


def test_while_a_consumer_holds_it(keeping, stream):
    buffer = keeping.allocate(G, stream=stream)
    address = buffer.handle
    consumer = Consumer(buffer.__dlpack__())
    del buffer
    gc.collect()
    assert (kept(keeping), is_mapped(address)) == (0, True)
    other = keeping.allocate(G, stream=stream)
    assert (other.handle != address, reused(keeping)) == (True, 0)
    consumer.let_go()
    assert kept(keeping) == G
    assert leave(keeping, stream=stream) == address


@pytest.mark.parametrize("wait", [True, False])
def test_while_a_consumer_holds_what_was_closed(keeping, stream, wait):
    buffer = keeping.allocate(G, stream=stream)
    address = buffer.handle
    first, second = Consumer(buffer.__dlpack__()), Consumer(buffer.__dlpack__(max_version=(1, 0)))
    buffer.close(wait=wait)
    gvmm.drain()  # the buffer's own view has gone, if it was still on its way
    first.let_go()
    assert kept(keeping) == 0
    assert keeping.allocate(G, stream=stream).handle != address
    assert is_mapped(address)
    second.let_go()
    assert (kept(keeping), reused(keeping)) == (2 * G, 0)  # the other one is there, too


def test_while_the_array_interface_was_read(keeping, stream):
    buffer = keeping.allocate(G, stream=stream)
    address = buffer.__cuda_array_interface__["data"][0]
    buffer.close(wait=False)
    assert (kept(keeping), is_mapped(address)) == (0, True)
    assert keeping.allocate(G, stream=stream).handle != address
    assert reused(keeping) == 0


# ---- captures ----


def test_a_capturing_stream_is_given_new_memory(keeping, stream):
    address = leave(keeping, stream=stream)
    with capturing(stream):
        buffer = keeping.allocate(G, stream=stream)
        assert buffer.handle != address
    assert reused(keeping) == 0


def test_what_a_capture_may_use_is_not_kept(keeping, stream):
    buffer = keeping.allocate(G, stream=stream)
    address = buffer.handle
    begin_capture(stream)
    buffer.fill(7, stream=stream)
    del buffer
    graph = end_capture(stream)
    assert kept(keeping) == 0
    gvmm.drain()
    assert is_mapped(address)
    graph.close()
    wait_until_gone(address, G)


# ---- how much, and how long ----


def test_trim(keeping, stream):
    buffers = [keeping.allocate(G, stream=stream) for _ in range(3)]
    addresses = [buffer.handle for buffer in buffers]
    with gate(stream):
        while buffers:
            del buffers[0]
        assert kept(keeping) == gvmm.stats().kept_bytes == 3 * G
        assert keeping.trim(4 * G) == 0
        assert keeping.trim(keep=2 * G) == G  # at once, but it goes in stream order
        assert (kept(keeping), is_mapped(addresses[0])) == (2 * G, True)
    gvmm.drain()
    assert [is_mapped(address) for address in addresses] == [False, True, True]  # the oldest
    assert keeping.trim() == 2 * G
    gvmm.drain()
    assert all(is_released(address, G) for address in addresses)
    assert keeping.trim() == 0


def test_another_limit(keeping, resource, stream):
    buffers = [keeping.allocate(G, stream=stream) for _ in range(3)]
    while buffers:
        del buffers[0]
    keeping.set_reuse_limit(2 * G)
    assert kept(keeping) == 2 * G
    keeping.set_reuse_limit(0)
    assert kept(keeping) == 0
    leave(keeping)
    assert kept(keeping) == 0
    with pytest.raises(ValueError, match="reuse_limit"):
        resource.set_reuse_limit(G)
    for wrong, kind in (("x", TypeError), (None, TypeError), (-1, OverflowError)):
        with pytest.raises(kind):
            keeping.set_reuse_limit(wrong)


def test_trim_of_what_keeps_nothing(resource):
    leave(resource)
    assert resource.trim() == 0
    for wrong, kind in (("x", TypeError), (None, TypeError), (1.5, TypeError), (-1, OverflowError), (1 << 64, OverflowError)):
        with pytest.raises(kind):
            resource.trim(wrong)
    with pytest.raises(TypeError):
        resource.trim(0, 0)


def test_the_oldest_goes_when_the_limit_is_reached(stream):
    keeping = keeper(reuse_limit=2 * G)
    buffers = [keeping.allocate(G, stream=stream) for _ in range(3)]
    addresses = [buffer.handle for buffer in buffers]
    while buffers:
        del buffers[0]
    assert kept(keeping) == 2 * G
    gvmm.drain()
    assert [is_mapped(address) for address in addresses] == [False, True, True]
    leave(keeping, 3 * G, stream)  # more than the limit
    assert kept(keeping) == 2 * G


def test_nothing_is_kept_without_a_limit(resource, stream):
    address = leave(resource, stream=stream)
    gvmm.drain()
    assert (kept(resource), is_released(address, G)) == (0, True)


def test_the_resource_takes_it_along(stream):
    keeping = keeper()
    addresses = {leave(keeping, stream=stream), leave(keeping, 2 * G)}
    holder = keeping.allocate(4 * G)
    del keeping
    gc.collect()
    assert gvmm.stats().kept_bytes == 3 * G  # a buffer holds its resource
    del holder
    gc.collect()
    gvmm.drain()
    assert gvmm.stats().kept_bytes == gvmm.stats().physical_bytes == 0
    assert not any(is_mapped(address) for address in addresses)


@pytest.mark.sim
def test_it_goes_when_memory_is_short():
    gvmm.simulate(memory=16 * MiB)
    keeping, other = keeper(), VirtualMemoryResource(0)
    buffers = [keeping.allocate(G) for _ in range(6)]
    buffers.clear()
    assert kept(keeping) == 6 * G
    assert other.allocate(8 * G).size == 8 * G
    assert kept(keeping) == 0


def test_it_is_not_worth_saving(keeping, stream):
    leave(keeping, stream=stream)
    buffer = keeping.allocate(2 * G, stream=stream)
    keeping.evict(stream=stream)
    assert (kept(keeping), buffer.evicted_bytes) == (0, 2 * G)
    keeping.restore()


# ---- threads, faults, options ----


def test_threads(keeping, new_stream):
    """Each on its own stream; what a thread leaves, others may have after its end."""
    failures: list[BaseException] = []
    streams = [new_stream() for _ in range(4)]

    def work(number: int) -> None:
        try:
            gvmm.Device(0).set_current()
            for _ in range(200):
                buffer = keeping.allocate(G, stream=streams[number])
                buffer.fill(number + 1, stream=streams[number])
                del buffer
            buffer = keeping.allocate(G, stream=streams[number])
            buffer.fill(number + 1, stream=streams[number])
            finish(streams[number])
            assert is_filled(buffer, number + 1)
        except BaseException as failure:  # told by the test's thread
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    figures = gvmm.stats(keeping)
    assert figures.buffers == 0 and 0 < figures.kept_bytes <= 4 * G
    assert figures.reused + figures.kept_bytes // G == figures.allocations == 4 * 201
    leave(keeping, stream=streams[0])
    assert reused(keeping) == figures.reused + 1


@pytest.mark.sim
@pytest.mark.parametrize("onwards", ["", "+"])
@pytest.mark.parametrize("outlive", [False, True])
@pytest.mark.filterwarnings("ignore::gvmm.CUDAWarning")  # what fails while memory is given up
def test_every_call_may_fail(stream, new_stream, onwards, outlive):
    """Keeping and taking never fail for it: the memory goes back, or is made anew. Nothing is left."""
    keeping, other = keeper(zero_reused=True, streams_outlive=outlive), new_stream()
    nth, fired = 0, 1
    while fired:
        nth += 1
        leave(keeping, stream=stream)
        with gvmm.sim.faults(f"{nth}{onwards}") as faults:
            try:
                buffer = keeping.allocate(G, stream=other)
                finish(other)
                assert is_filled(buffer, 0)
                del buffer
                keeping.trim(0)
            except gvmm.CUDAError:
                pass
            fired = faults.injected
        buffer = None
        keeping.trim()
        gvmm.drain()
        assert (kept(keeping), gvmm.stats(keeping).physical_bytes, gvmm.stats(keeping).buffers) == (0, 0, 0)
    assert nth > 5
    assert is_filled(keeping.allocate(G, stream=other), 0)


def test_options():
    for wrong, kind in ((-1, ValueError), (1 << 64, ValueError), ("much", TypeError), (1.5, TypeError)):
        with pytest.raises(kind):
            VirtualMemoryResourceOptions(reuse_limit=wrong)
    config = VirtualMemoryResourceOptions(reuse_limit=G, streams_outlive=True, zero_reused=True)
    assert VirtualMemoryResource(0, config).config == config
    everything = VirtualMemoryResource(0, {"reuse_limit": (1 << 64) - 1, "optional": "rdma", "gpu_direct_rdma": True})
    assert everything.config.reuse_limit == (1 << 64) - 1
    leave(everything)
    assert kept(everything) == G
