"""The points of test_checklist.c and test_release.c from Python, by their numbers."""

from __future__ import annotations

import gc
import itertools
import threading
import warnings
import weakref
from typing import Any

import pytest
import support
from support import (
    MiB,
    access_of,
    allocate_with_hole_behind,
    assert_waits,
    begin_capture,
    capturing,
    decoy_behind,
    end_capture,
    gate,
    is_filled,
    is_mapped,
    is_released,
    map_by_hand,
    pattern,
    properties_of,
    read,
    wait_until_gone,
    write,
)

import gvmm
from gvmm import Buffer, CUDAError, CUDAWarning, VirtualMemoryBuffer, VirtualMemoryResource, VirtualMemoryResourceOptions
from gvmm._cuda import driver_call, driver_value

# ---- sizes and options ----


def test_01_sizes_are_rounded_up(resource, G):
    for asked, given in [(1, G), (4096, G), (G - 1, G), (G, G), (G + 1, 2 * G), (2 * G + 1, 3 * G)]:
        buffer = resource.allocate(asked)
        assert buffer.size == given
        assert buffer.handle % G == 0
        assert is_filled(buffer, 0)
        write(buffer.handle, pattern(given, 1))
        assert read(buffer.handle, given) == pattern(given, 1)
        buffer.close()
        assert (buffer.size, buffer.handle, buffer.is_closed) == (0, 0, True)


@pytest.mark.parametrize("form", [dict, lambda **options: VirtualMemoryResourceOptions(**options)])
def test_02_options_reach_the_driver(form, G):
    config = form(handle_type=None, granularity="minimum", gpu_direct_rdma=True, addr_align=64 * MiB)
    resource = VirtualMemoryResource(0, config)
    assert resource.config == VirtualMemoryResourceOptions(
        handle_type=None, granularity="minimum", gpu_direct_rdma=True, addr_align=64 * MiB
    )
    buffer = resource.allocate(G)
    assert buffer.handle % (64 * MiB) == 0
    got = properties_of(buffer.handle)
    assert (got.type, got.handle_types, got.location.type, got.location.id, got.rdma) == (1, 0, 1, 0, 1)


def test_02_the_default_options(resource):
    buffer = resource.allocate(1)
    got = properties_of(buffer.handle)
    assert (got.type, got.handle_types, got.location.type, got.rdma) == (1, 1, 1, 0)


def test_03_a_chunk_can_be_read_only(resource, G):
    small = resource.allocate(G)
    large = resource.modify_allocation(small, 2 * G, config={"self_access": "r"})
    assert (access_of(large.handle), access_of(large.handle + G)) == (3, 1)
    with pytest.raises(CUDAError):
        driver_call("cuMemsetD8", large.handle + G, 1, G)
    larger = resource.modify_allocation(large, 3 * G)  # not stored: the next chunk is as the resource says
    assert [access_of(larger.handle + at * G) for at in range(3)] == [3, 1, 3]
    assert resource.config.self_access == "rw"


def test_14_no_access_at_all(G):
    resource = VirtualMemoryResource(0, {"self_access": None})
    small = resource.allocate(G)
    assert access_of(small.handle) == 0
    large = resource.modify_allocation(small, 2 * G)
    assert access_of(large.handle + G) == 0
    with pytest.raises(BufferError):
        large.__dlpack__()


# ---- growing ----


def test_04_a_covered_request_gives_a_full_alias(resource, G):
    original = resource.allocate(G)
    large = resource.modify_allocation(original, 2 * G)
    assert large.size == 2 * G
    for size in (0, 1, G, 2 * G - 1, 2 * G):
        alias = resource.modify_allocation(large, size, {"self_access": "r"})
        assert alias is not large and alias == large and hash(alias) == hash(large)
        assert (alias.handle, alias.size) == (large.handle, 2 * G)
        assert access_of(alias.handle) == 3
        alias.close()
        assert not large.is_closed
        write(large.handle, bytes([size % 251]) * 16)
    large.close()
    write(original.handle, b"x" * G)


@pytest.mark.parametrize("options", [{}, {"addr_align": 64 * MiB}])
def test_05_in_place_keeps_the_pointer(options, G):
    small = allocate_with_hole_behind(2 * G, 4 * G)
    write(small.handle, pattern(2 * G, 5))
    before = gvmm.stats()
    large = small.memory_resource.modify_allocation(small, 6 * G, options or None)
    assert gvmm.stats().grows_in_place == before.grows_in_place + 1
    assert gvmm.stats().grows_moved == before.grows_moved
    assert large.handle == small.handle
    assert read(large.handle, 2 * G) == pattern(2 * G, 5)
    write(large.handle, pattern(6 * G, 6))
    assert read(small.handle, 2 * G) == pattern(6 * G, 6)[: 2 * G]
    address = small.handle
    small.close()  # frees nothing: the memory is large's too
    assert read(address, 6 * G) == pattern(6 * G, 6)
    large.close()
    assert is_released(address, 2 * G) and is_released(address + 2 * G, 4 * G)


def test_06_writes_are_seen_both_ways(resource, G):
    small = resource.allocate(2 * G)
    write(small.handle, pattern(2 * G, 1))
    large = resource.modify_allocation(small, 5 * G)
    assert read(large.handle, 2 * G) == pattern(2 * G, 1)
    assert read(large.handle + 2 * G, 3 * G) == bytes(3 * G)
    write(large.handle, pattern(2 * G, 2))
    assert read(small.handle, 2 * G) == pattern(2 * G, 2)
    write(small.handle, pattern(2 * G, 3))
    assert read(large.handle, 2 * G) == pattern(2 * G, 3)


def test_07_a_forced_move(G):
    with decoy_behind(2 * G) as small:
        old = small.handle
        write(old, pattern(2 * G, 7))
        large = small.memory_resource.modify_allocation(small, 4 * G)
        moved = large.handle
        assert moved != old
        assert read(moved, 2 * G) == pattern(2 * G, 7)
        write(moved, pattern(4 * G, 8))
        assert read(old, 2 * G) == pattern(4 * G, 8)[: 2 * G]
        large.close()  # the result first: the input goes on
        assert is_released(moved, 4 * G)
        assert read(old, 2 * G) == pattern(4 * G, 8)[: 2 * G]
        small.close()
        assert is_released(old, 2 * G)


def test_08_closes_in_every_order(resource, G):
    for order in itertools.permutations(range(5)):
        first = resource.allocate(1)
        second = resource.modify_allocation(first, G + 1)
        third = resource.modify_allocation(second, 3 * G - 1)
        other = resource.modify_allocation(first, 2 * G + 5)  # a chunk of its own
        alias = resource.modify_allocation(third, 3 * G)
        buffers = [first, second, third, other, alias]
        for buffer in buffers:
            write(buffer.handle, b"abc")
        for at in order:
            buffers[at].close()
            for buffer in buffers:
                if not buffer.is_closed:
                    assert read(buffer.handle, 3) == b"abc"
        assert gvmm.stats().physical_bytes == 0


def test_09_four_threads_grow_aliases(resource):
    MB2 = 2 * MiB
    failures: list[BaseException] = []

    def work(root: VirtualMemoryBuffer, alias: VirtualMemoryBuffer, odd: int, start: threading.Barrier) -> None:
        try:
            start.wait()
            for i in range(6):
                for j in range(8):
                    resource.modify_allocation(root if odd else alias, (8 * i + j + 2) * MB2).close()
        except BaseException as failure:
            failures.append(failure)

    root = resource.allocate(MB2)
    alias = resource.modify_allocation(root, 4 * MB2)
    start = threading.Barrier(4)
    threads = [threading.Thread(target=work, args=(root, alias, n % 2, start)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ---- refusals ----


def test_10_bad_buffers_are_rejected(resource, G):
    sibling = VirtualMemoryResource(0).allocate(G)
    with pytest.raises(TypeError, match="another resource"):
        resource.modify_allocation(sibling, 2 * G)
    for other in (None, 1, "buffer", Buffer.from_handle(0x1000, 16), object()):
        with pytest.raises(TypeError):
            resource.modify_allocation(other, 2 * G)
    closed = resource.allocate(G)
    closed.close()
    with pytest.raises(RuntimeError, match="closed"):
        resource.modify_allocation(closed, 2 * G)
    sibling.close()
    with pytest.raises(RuntimeError, match="closed"):  # closed comes before foreign
        resource.modify_allocation(sibling, 2 * G)
    wrapped = VirtualMemoryBuffer.from_handle(map_by_hand(G), G, mr=resource)
    with pytest.raises(TypeError, match="wrapped"):
        resource.modify_allocation(wrapped, 2 * G)


def test_11_a_config_of_another_location(resource, G):
    buffer = resource.allocate(G)
    write(buffer.handle, b"intact")
    for location in ("host", "host_numa", "host_numa_current"):
        with pytest.raises(ValueError, match="location_type"):
            resource.modify_allocation(buffer, 2 * G, config={"location_type": location, "handle_type": None})
    assert read(buffer.handle, 6) == b"intact"
    assert (buffer.size, buffer.is_closed) == (G, False)


@pytest.mark.sim
def test_11_rdma_unsupported(resource, G):
    buffer = resource.allocate(G)
    buffer.close()
    del buffer, resource
    gc.collect()
    said_no = []
    for nth in range(1, 6):  # whichever question it is: an unknown attribute is a missing capability
        with gvmm.sim.faults(f"cuDeviceGetAttribute:{nth}=INVALID_VALUE"):
            try:
                VirtualMemoryResource(0, {"gpu_direct_rdma": True})
            except RuntimeError as error:
                said_no.append(str(error))
    assert any("GPU Direct RDMA is not supported on this device" in text for text in said_no)


def test_12_host_config(host, G):
    with pytest.raises(ValueError, match="handle_type=None"):
        VirtualMemoryResource(0, {"location_type": "host"})
    assert (host.device, host.device_id) == (None, -1)
    assert (host.is_host_accessible, host.is_device_accessible, host.is_managed) == (True, False, False)
    buffer = host.allocate(G)
    memoryview(buffer)[:3] = b"abc"
    assert bytes(memoryview(buffer)[:3]) == b"abc"
    with pytest.raises(ValueError, match="location_type"):
        host.modify_allocation(buffer, 2 * G, {})
    larger = host.modify_allocation(buffer, 2 * G, {"location_type": "host", "handle_type": None})
    assert larger.size == 2 * G


def test_12_host_memory_with_a_device(G):
    resource = VirtualMemoryResource(0, {"location_type": "host", "handle_type": None, "peers": [0]})
    assert resource.is_device_accessible and resource.is_host_accessible
    buffer = resource.allocate(G)
    memoryview(buffer)[0] = 42
    assert read(buffer.handle, 1) == b"*"


def test_12_numa_memory(G):
    resource = VirtualMemoryResource(0, {"location_type": "host_numa_current"})
    buffer = resource.allocate(G)
    memoryview(buffer)[G - 1] = 7
    assert memoryview(resource.modify_allocation(buffer, 2 * G))[G - 1] == 7
    with pytest.raises(ValueError, match="numa_node"):
        VirtualMemoryResource(0, {"location_type": "host_numa", "numa_node": -1})


def test_13_an_empty_buffer_hands_its_stream_on(resource, stream, G):
    calls = gvmm.stats().driver_calls
    empty = resource.allocate(0, stream=stream)
    assert gvmm.stats().driver_calls == calls
    assert (empty.size, empty.handle, empty.is_closed) == (0, 0, False)
    grown = resource.modify_allocation(empty, G)
    assert_waits(grown.close, stream, grown.handle)
    assert grown.is_closed
    assert resource.modify_allocation(empty, 0).size == 0


def test_19_an_impossible_grow_changes_nothing(resource, G):
    buffer = resource.allocate(G)
    write(buffer.handle, b"here")
    with pytest.raises(CUDAError) as caught:
        resource.modify_allocation(buffer, 1 << 62)
    assert caught.value.call in ("cuMemCreate", "cuMemAddressReserve")
    assert caught.value.code == 2
    assert buffer.size == G and access_of(buffer.handle) == 3 and read(buffer.handle, 4) == b"here"


def test_20_sizes_that_overflow(resource, G):
    buffer = resource.allocate(G)
    for size in (-1, 2**64, 2**64 - 1, 2**64 - G + 1, 10**40):
        with pytest.raises(OverflowError):
            resource.allocate(size)
        with pytest.raises(OverflowError):
            resource.modify_allocation(buffer, size)
    for size in (1.5, "1", None):
        with pytest.raises(TypeError):
            resource.allocate(size)
        with pytest.raises(TypeError):
            resource.modify_allocation(buffer, size)
    assert buffer.size == G


# ---- closing ----


def test_15_close_refuses_a_capturing_stream(resource, stream, new_stream, G):
    other = new_stream()
    buffer = resource.allocate(G, stream=stream)
    address = buffer.handle
    with capturing(stream):  # the recorded stream
        with pytest.raises(RuntimeError, match="capturing stream"):
            buffer.close()
        assert not buffer.is_closed
    with capturing(other):  # the argument
        with pytest.raises(RuntimeError, match="capturing stream"):
            buffer.close(other)
        assert buffer.handle == address
    assert_waits(buffer.close, stream, address)  # what is recorded has not changed
    assert is_released(address, G)


@pytest.mark.parametrize("idle_first", [True, False])
def test_16_close_waits_for_its_own_stream(resource, stream, new_stream, G, idle_first):
    busy = new_stream()
    first = resource.allocate(G, stream=stream)
    second = resource.modify_allocation(first, G)
    second.set_deallocation_stream(busy)
    address = first.handle
    if idle_first:
        with gate(busy):
            first.close()  # does not wait for busy
            assert is_mapped(address)
        assert_waits(second.close, busy, address)
    else:
        assert_waits(second.close, busy, address)
        assert is_mapped(address)
        assert_waits(first.close, stream, address)
    assert is_released(address, G)


def test_16_close_waits_for_the_given_stream(resource, stream, new_stream, G):
    busy = new_stream()
    buffer = resource.allocate(G, stream=stream)
    assert_waits(lambda: buffer.close(busy), busy, buffer.handle)
    by_default = resource.allocate(G)
    assert_waits(by_default.close, 1, by_default.handle)


def test_16_the_end_of_a_buffer_waits_if_asked_to(waiting, stream, G):
    collected = waiting.allocate(G, stream=stream)
    address = collected.handle
    holder = [collected]
    del collected
    assert_waits(holder.clear, stream, address)
    assert is_released(address, G)


def test_16_the_end_of_a_buffer_does_not_wait(resource, stream, G):
    collected = resource.allocate(G, stream=stream)
    address = collected.handle
    holder = [collected]
    del collected
    with gate(stream):
        holder.clear()
        assert is_mapped(address)
    wait_until_gone(address, G)


def test_17_a_wrapped_pointer_is_deallocated(resource, stream, G):
    base = map_by_hand(2 * G)
    buffer = Buffer.from_handle(base, 2 * G, mr=resource)
    assert (buffer.handle, buffer.size, buffer.memory_resource) == (base, 2 * G, resource)
    assert (buffer.device_id, buffer.is_device_accessible, buffer.is_host_accessible) == (0, True, False)
    buffer.set_deallocation_stream(stream)
    assert_waits(buffer.close, stream, base)
    assert is_released(base, 2 * G)
    assert (buffer.handle, buffer.size, buffer.memory_resource) == (0, 0, None)

    assert resource.deallocate(0, G) is None
    assert resource.deallocate(None, G, stream=stream) is None
    assert resource.deallocate(base, 0) is None
    base = map_by_hand(G)
    with capturing(stream, "relaxed"):
        with pytest.raises(RuntimeError, match="capturing stream"):
            resource.deallocate(base, G, stream=stream)
        wrapped = Buffer.from_handle(base, G, mr=resource)
        with pytest.raises(RuntimeError, match="capturing stream"):
            wrapped.close(stream)
        assert not wrapped.is_closed and is_mapped(base)
    wrapped.close()
    assert is_released(base, G)
    with pytest.raises(CUDAError) as caught:
        resource.deallocate(base, G)
    assert caught.value.call == "cuMemUnmap"


def test_17_deallocate_is_never_called_for_our_own(G):
    class Watched(VirtualMemoryResource):
        calls: list[Any] = []

        def deallocate(self, ptr, size, *, stream=None):
            self.calls.append((ptr, size, stream))
            super().deallocate(ptr, size, stream=stream)

    resource = Watched(0)
    small = resource.allocate(G)
    resource.modify_allocation(small, 2 * G).close()
    del small
    gc.collect()
    assert Watched.calls == []
    base = map_by_hand(G)
    Buffer.from_handle(base, G, mr=resource).close()
    assert [(ptr, size) for ptr, size, _ in Watched.calls] == [(base, G)]


# 18 is in test_exit.py


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_21_close_during_an_unrelated_capture(resource, stream, new_stream, G, mode):
    other = new_stream()
    with capturing(other, mode):
        first = resource.allocate(G)
        second = resource.allocate(G, stream=stream)
        third = resource.modify_allocation(first, 2 * G)
        first.close()
        second.close()
        del third
        gc.collect()


def test_21_close_during_a_capture_of_another_thread(resource, stream, new_stream, G):
    other = new_stream()

    def work() -> None:
        small = resource.allocate(G)
        resource.modify_allocation(small, 2 * G).close(stream)
        small.close()

    with capturing(other):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()


def test_22_destruction_while_the_recorded_stream_captures(waiting, stream, G):
    buffer = waiting.allocate(G, stream=stream)
    address = buffer.handle
    with capturing(stream):
        with pytest.warns(CUDAWarning, match="capturing") as caught:
            del buffer
        assert len(caught) == 1
        assert is_released(address, G)


def test_22_a_deferred_destruction_leaves_it_to_the_capture(resource, stream, G):
    buffer = resource.allocate(G, stream=stream)
    address = buffer.handle
    with capturing(stream):
        del buffer  # a warning would fail the test
        gvmm.drain()
        assert is_mapped(address)
    wait_until_gone(address, G)


def test_23_the_default_stream_while_a_blocking_stream_captures(waiting, blocking_stream, G):
    closed, dropped = waiting.allocate(G), waiting.allocate(G)
    first, second = closed.handle, dropped.handle
    with capturing(blocking_stream):
        with pytest.warns(CUDAWarning, match="legacy stream.*capturing") as caught:
            closed.close()
        assert len(caught) == 1 and is_released(first, G)
        with pytest.warns(CUDAWarning, match="legacy stream.*capturing") as caught:
            del dropped
        assert len(caught) == 1 and is_released(second, G)


def test_23_a_deferred_release_is_held_until_the_capture_is_over(resource, blocking_stream, G):
    closed, dropped = resource.allocate(G), resource.allocate(G)
    first, second = closed.handle, dropped.handle
    with capturing(blocking_stream):
        with pytest.warns(CUDAWarning, match="legacy stream.*capturing") as caught:
            closed.close()  # as ever
        assert len(caught) == 1 and is_released(first, G)
        del dropped
        gvmm.drain()
        assert is_mapped(second)
    wait_until_gone(second, G)


def test_24_nothing_is_left_at_any_address(G):
    first = allocate_with_hole_behind(G, G)
    second = first.memory_resource.modify_allocation(first, 2 * G)
    a = second.handle
    with decoy_behind(G) as stuck:
        moved = stuck.memory_resource.modify_allocation(stuck, 3 * G)
        b, c = stuck.handle, moved.handle
        first.close()
        second.close()
        assert is_released(a, G) and is_released(a + G, G)
        stuck.close()
        assert is_released(b, G)
        moved.close()
        assert is_released(c, 3 * G)


def test_25_host_memory_needs_no_context(host, G):
    driver_call("cuCtxSetCurrent", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = host.allocate(G)
        second = host.modify_allocation(first, 2 * G)
        third = host.modify_allocation(second, 5 * G)
        memoryview(third)[:] = b"\3" * (5 * G)
        assert memoryview(first)[G - 1] == 3
        first.close()
        second.close(1)  # a default stream is not waited for
        third.close()
    assert driver_value("cuCtxGetCurrent") == 0


def test_25_device_memory_needs_none_either(resource, stream, G):
    driver_call("cuCtxSetCurrent", 0)
    first = resource.allocate(G)
    second = resource.allocate(G, stream=stream)
    resource.modify_allocation(first, 2 * G).close(stream)
    first.fill(1, stream=stream)
    first.copy_to(second, stream=stream)
    first.close(stream)
    second.close()
    resource.allocate(G).fill(2, stream=1)
    assert driver_value("cuCtxGetCurrent") == 0


class Failing:
    """Someone else's resource, whose deallocate fails."""

    device_id, is_device_accessible, is_host_accessible = 0, True, False

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def deallocate(self, ptr, size, *, stream):
        self.calls.append((ptr, size, stream))
        raise KeyError("nobody home")


def test_26_a_callback_that_fails():
    failing = Failing()
    text = r"mr\.deallocate\(0x1000\) failed during Buffer destruction: KeyError: 'nobody home'"
    with pytest.warns(CUDAWarning, match=text) as caught:
        Buffer.from_handle(0x1000, 77, mr=failing).close()
    assert len(caught) == 1
    with pytest.warns(CUDAWarning, match=text):
        buffer = Buffer.from_handle(0x1000, 77, mr=failing)
        del buffer
    assert [(ptr, size) for ptr, size, _ in failing.calls] == [(0x1000, 77)] * 2
    assert failing.calls[0][2].__cuda_stream__() == (0, 1)


# ---- graphs ----


def captured_fill(buffer: VirtualMemoryBuffer, stream: Any, value: int) -> gvmm.Graph:
    begin_capture(stream)
    buffer.fill(value, stream=stream)
    return end_capture(stream)


def test_27_a_graph_keeps_a_closed_buffer(resource, stream, G):
    buffer = resource.allocate(G)
    address = buffer.handle
    graph = captured_fill(buffer, stream, 5)
    buffer.close()
    assert is_mapped(address)
    graph.launch(stream)
    with gate(stream) as g:
        graph.launch(stream)
        graph.close()
        assert is_mapped(address)  # the launch is in flight
        g.open()
    wait_until_gone(address, G)


def test_27_by_hand(resource, stream, G):
    buffer = resource.allocate(G)
    address = buffer.handle
    with gvmm.Graph() as graph:
        buffer.retain_in_graph(graph)
        buffer.retain_in_graph(graph.handle)
        buffer.close()
        assert is_mapped(address)
        with pytest.raises(RuntimeError, match="closed"):
            buffer.retain_in_graph(graph)
        with pytest.raises(TypeError):
            resource.allocate(1).retain_in_graph("graph")
    wait_until_gone(address, G)


def test_28_across_a_grow_and_the_close_of_every_alias(stream, G):
    with decoy_behind(G) as small:
        resource = small.memory_resource
        address = small.handle
        graph = captured_fill(small, stream, 6)
        moved = resource.modify_allocation(small, 2 * G)
        alias = resource.modify_allocation(small, G)
        small.close()
        alias.close()
        graph.launch(stream)
        driver_call("cuStreamSynchronize", support.handle_of(stream))
        assert read(moved.handle, G) == b"\6" * G  # written through the old address
        new = moved.handle
        moved.close()
        assert is_released(new, 2 * G) and is_mapped(address)
        graph.close()
        wait_until_gone(address, G)


def test_28_retained_in_a_capture(resource, stream, G):
    buffer = resource.allocate(G)
    address = buffer.handle
    with pytest.raises(ValueError, match="not capturing"):
        buffer.retain_in_capture(stream)
    begin_capture(stream)
    driver_call("cuMemsetD8Async", address, 6, G, support.handle_of(stream))
    buffer.retain_in_capture(stream)
    del buffer  # recorded the default stream, which no blocking stream's capture concerns
    graph = end_capture(stream)
    graph.launch(stream)
    driver_call("cuStreamSynchronize", support.handle_of(stream))
    assert read(address, G) == b"\6" * G
    graph.close()
    wait_until_gone(address, G)


# ---- weak references ----


def test_29_weak_references(resource, G):
    buffer = resource.allocate(G)
    gone: list[str] = []
    to_buffer = weakref.ref(buffer, lambda _: gone.append("buffer"))
    to_resource = weakref.ref(resource)
    del resource
    gc.collect()
    assert to_resource() is buffer.memory_resource  # held by its buffers (and by the fixture)
    assert to_buffer() is buffer
    del buffer
    assert to_buffer() is None and gone == ["buffer"]
