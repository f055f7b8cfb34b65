"""Elastic buffers: capacity, shrinking, composing, access, evicting and restoring, deferred closing, the probe."""

from __future__ import annotations

import gc
import pickle
import sys
import threading
import time

import pytest
from support import (
    ON_GPU,
    MiB,
    access_of,
    assert_silent,
    begin_capture,
    capturing,
    end_capture,
    gate,
    is_mapped,
    is_released,
    pattern,
    properties_of,
    read,
    run_python,
    wait_until_gone,
    write,
)
from test_exchange import Consumer
from test_exit import SUBINTERPRETER, has_subinterpreters
from test_refs import assert_stable, ignoring

import gvmm
from gvmm import Buffer, VirtualMemoryBuffer, VirtualMemoryResource, VirtualMemoryResourceOptions

HOST = {"location_type": "host", "handle_type": None}


def chunked(**options):
    return VirtualMemoryResource(0, {"chunk_size": 2 * MiB, **options})


def numbered(resource, chunks):
    """A buffer each of whose chunks begins with its number."""
    buffer = resource.allocate(chunks * 2 * MiB)
    for n in range(chunks):
        write(buffer.handle + n * 2 * MiB, bytes([n + 1]))
    return buffer


def numbers(buffer):
    return [read(buffer.handle + at, 1)[0] for at in range(0, buffer.size, 2 * MiB)]


# ---- options ----


def test_the_new_options_are_by_name_only():
    with pytest.raises(TypeError):
        VirtualMemoryResourceOptions(*[getattr(VirtualMemoryResourceOptions(), n) for n in OLD], 1 << 30)
    options = VirtualMemoryResourceOptions(capacity="all", stripe=0, optional="rdma", tag=-3)
    assert (options.stripe, options.optional) == ((0,), ("rdma",))
    assert pickle.loads(pickle.dumps(options)) == options


OLD = [
    "allocation_type", "location_type", "handle_type", "granularity", "gpu_direct_rdma", "addr_hint", "addr_align", "peers",
    "self_access", "peer_access", "numa_node", "release_mode",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("capacity", ["some", -1, 1 << 64]),
        ("chunk_size", [-1, 1 << 64]),
        ("ahead_count", [-1]),
        ("tag", [-(1 << 31), 1 << 31]),
        ("numa_node", [-(1 << 31), 1 << 31]),
        ("optional", ["everything", ("rdma", "x")]),
    ],
)
def test_values_that_are_not_allowed(name, values):
    for value in values:
        with pytest.raises(ValueError, match=name):
            VirtualMemoryResource(0, {name: value})


def test_options_of_another_type_are_named():
    for name in ("addr_align", "capacity", "chunk_size", "numa_node", "reuse_limit", "tag"):
        with pytest.raises(TypeError, match=f"{name} must be an integer, not 1.5"):
            VirtualMemoryResourceOptions(**{name: 1.5})
    for size in (-1, 1 << 64):
        with pytest.raises(OverflowError, match=f"not {size}"):
            VirtualMemoryResource(0).allocate(size)


def test_options_that_contradict_each_other():
    for config in ({"stripe": (0,)}, {"ahead_count": 1}, {"stripe": (0, 77), "chunk_size": 1}):
        with pytest.raises(ValueError, match=next(iter(config))):
            VirtualMemoryResource(0, config)
    with pytest.raises(TypeError):
        VirtualMemoryResource(0, {"stripe": 1.5})


@pytest.mark.sim
def test_why_it_is_another_handle_type():
    """The simulated machine has no fabric, as most have none."""
    resource = VirtualMemoryResource(0, {"handle_type": "fabric", "optional": "fabric"})
    answer = resource.handle_answer
    assert isinstance(answer, gvmm.Capability)
    assert (bool(answer), answer.call, answer.status) == (False, "cuMemCreate", 800)
    assert "nvidia-imex" in answer.advice and "optional='fabric'" in answer.advice
    assert "handle_type" in answer.text
    never = ({"location_type": "host", "optional": "handle"}, {"handle_type": "win32", "optional": "handle"})
    for config in (None, {"handle_type": None}, {"optional": "fabric"}, *never):
        answer = VirtualMemoryResource(0, config).handle_answer
        assert (answer.ok, answer.call, answer.status, answer.advice) == (True, None, 0, None)
    with pytest.raises(AttributeError):
        resource.handle_answer = answer
    with pytest.raises(RuntimeError, match="not initialised"):
        VirtualMemoryResource.__new__(VirtualMemoryResource).handle_answer



@pytest.mark.sim
def test_what_was_got_of_the_optional_ones():
    """The simulated machine has no fabric, as most have none."""
    with pytest.raises(gvmm.CUDAError):
        VirtualMemoryResource(0, {"handle_type": "fabric"}).allocate(1)
    config = VirtualMemoryResource(0, {"handle_type": "fabric", "optional": "fabric", "tag": 5}).config
    assert (config.handle_type, config.optional, config.tag) == ("posix_fd", ("fabric",), 5)
    resource = VirtualMemoryResource(0, {"peers": (1, 77), "gpu_direct_rdma": True, "optional": ("peers", "rdma")})
    assert (resource.config.peers, resource.config.gpu_direct_rdma) == ((1,), True)
    assert properties_of(resource.allocate(1).handle).rdma == 1


def test_handles_that_host_memory_cannot_have():
    resource = VirtualMemoryResource(0, {"location_type": "host", "optional": ["handle"]})
    assert resource.config.handle_type is None
    assert VirtualMemoryResource(0, {"handle_type": "win32", "optional": ("handle",)}).config.handle_type is None


@pytest.mark.sim
def test_stripes():
    buffer = chunked(stripe=(1, 0)).allocate(8 * MiB)
    assert [device for _, _, _, device in buffer.segments()] == [1, 0, 1, 0]


def test_memory_ahead(G):
    resource = chunked(ahead_count=2, capacity=8 * MiB)
    buffer = resource.allocate(G)
    for _ in range(400):
        if gvmm.stats(resource).memories >= 2:
            break
        time.sleep(0.005)
    assert gvmm.stats(resource).memories >= 2
    assert resource.modify_allocation(buffer, 2 * G).handle == buffer.handle


# ---- capacity ----


def test_growing_up_to_the_capacity_keeps_the_address(resource, G):
    buffer = resource.allocate(G, capacity=8 * G)
    assert (buffer.size, buffer.capacity) == (G, 8 * G)
    address = buffer.handle
    for n in range(2, 9):
        buffer = resource.modify_allocation(buffer, n * G)
        assert buffer.handle == address
    assert buffer.capacity == buffer.size == 8 * G
    assert resource.modify_allocation(buffer, 9 * G).capacity >= 9 * G


def test_capacity_of_the_resource(G):
    resource = VirtualMemoryResource(0, {"capacity": 4 * G})
    assert resource.allocate(1).capacity == 4 * G
    assert resource.allocate(1, capacity=0).capacity == G
    assert resource.allocate(1, capacity=None).capacity == 4 * G
    assert VirtualMemoryResource(0, {"capacity": "all"}).allocate(1).capacity > 1 << 30
    assert VirtualMemoryResource(0, {"capacity": 1 << 63}).allocate(1).capacity >= G
    for bad, error in ((-1, OverflowError), ("all", TypeError), (1 << 64, OverflowError)):
        with pytest.raises(error):
            resource.allocate(1, capacity=bad)


def test_capacity_when_closed_or_wrapped(resource):
    buffer = resource.allocate(1)
    wrapped = VirtualMemoryBuffer.from_handle(buffer.handle, 64, owner=buffer)
    assert wrapped.capacity == 64
    wrapped.close()
    buffer.close()
    assert (buffer.capacity, buffer.evicted_bytes, buffer.generation) == (0, 0, 0)
    assert (wrapped.capacity, wrapped.evicted_bytes, wrapped.generation) == (0, 0, 0)


# ---- views ----


def test_shrink(G):
    large = numbered(chunked(), 4)
    address = large.handle
    short = large.shrink(G + 1)
    assert (short.handle, short.size, numbers(short)) == (address, 2 * G, [1, 2])
    assert short.memory_resource is large.memory_resource
    assert large.shrink(99 * G) == large
    assert large.shrink(0).handle == 0
    large.close()
    gvmm.drain()
    assert is_mapped(address + G) and not is_mapped(address + 2 * G)


def test_ring():
    once = numbered(chunked(), 2)
    ring, thrice = once.ring(), once.ring(times=3)
    assert (numbers(ring), numbers(thrice)) == ([1, 2, 1, 2], [1, 2, 1, 2, 1, 2])
    once.close()
    write(ring.handle + ring.size - 1, b"x")
    assert read(ring.handle + ring.size // 2 - 1, 1) == b"x"
    for times in (0, 1025, 1 << 40):
        with pytest.raises(ValueError, match="times"):
            ring.ring(times)


def test_compose(G):
    resource = chunked()
    a, b = numbered(resource, 2), numbered(chunked(), 3)
    everything = resource.compose(iter([b, (a, G, G), (a, 0, None), (b, 0, 0), (b, 3 * G, None), (a, G, None, "rw")]))
    assert numbers(everything) == [1, 2, 3, 2, 1, 2, 2]
    a.close()
    b.close()
    longer = resource.modify_allocation(everything, everything.size + G)
    assert numbers(longer)[:-1] == numbers(everything)
    assert resource.compose(()).size == 0


def test_a_read_only_piece():
    resource = VirtualMemoryResource(0, HOST)
    buffer = resource.allocate(1)
    view = resource.compose([(buffer, 0, None, "r")])
    assert view.get_access("host") == "r" and buffer.get_access("host") == "rw"
    memoryview(buffer)[0] = 7
    assert memoryview(view).readonly and memoryview(view)[0] == 7


def test_what_is_no_piece(resource, G):
    buffer = resource.allocate(2 * G)
    wrapped = VirtualMemoryBuffer.from_handle(buffer.handle, G, owner=buffer)
    for pieces, error in [
        (None, TypeError),
        ([None], TypeError),
        ([(buffer,)], TypeError),
        ([(buffer, 0)], TypeError),
        ([[buffer, 0, 1]], TypeError),
        ([(buffer, "0", G)], TypeError),
        ([wrapped], TypeError),
        ([Buffer.from_handle(1, 1)], TypeError),
        ([(buffer, -1, G)], OverflowError),
        ([(buffer, 0, 2 * G, "w")], ValueError),
        ([buffer, (buffer, 1, G)], ValueError),
        ([(buffer, 3 * G, 0)], ValueError),
    ]:
        with pytest.raises(error):
            resource.compose(pieces)
    with pytest.raises(TypeError, match="stream"):
        resource.compose([buffer], stream="x")
    closed = resource.allocate(1)
    closed.close()
    with pytest.raises(RuntimeError, match="closed"):
        resource.compose([buffer, closed])


def test_views_record_the_stream(resource, new_stream, G):
    stream, other = new_stream(), new_stream()
    count = sys.getrefcount(stream), sys.getrefcount(other)
    buffer = resource.allocate(1, stream=stream)
    views = [buffer.shrink(1), buffer.ring(), resource.compose([buffer], stream=other)]
    assert (sys.getrefcount(stream), sys.getrefcount(other)) == (count[0] + 3, count[1] + 1)
    with gate(stream):
        views.pop().close()  # does not wait for it
    views.clear()
    buffer.close()
    assert (sys.getrefcount(stream), sys.getrefcount(other)) == count


def test_closed_and_wrapped(resource):
    closed = resource.allocate(1)
    closed.close()
    wrapped = VirtualMemoryBuffer.from_handle(0x1000, 64)
    for buffer, error in ((closed, RuntimeError), (wrapped, TypeError)):
        for call in (
            lambda b: b.shrink(1),
            lambda b: b.ring(),
            lambda b: b.set_access(0, "r"),
            lambda b: b.get_access(0),
            lambda b: b.evict(),
            lambda b: b.restore(),
        ):
            with pytest.raises(error):
                call(buffer)


@pytest.mark.sim
@pytest.mark.parametrize("call", ["cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "malloc"])
def test_a_failure_leaves_nothing(resource, call):
    buffer = resource.allocate(1)
    before = gvmm.stats()[:7]
    with gvmm.sim.faults(f"{call}:1+"):
        with pytest.raises(gvmm.CUDAError):
            buffer.ring()
        with pytest.raises(gvmm.CUDAError):
            resource.compose([buffer, (buffer, 0, None, "r")])
    assert gvmm.stats()[:7] == before


# ---- access ----


@pytest.mark.sim
def test_access(resource, G):
    buffer = resource.allocate(1, capacity=4 * G)
    assert (buffer.get_access(0), buffer.get_access(1), buffer.get_access("host")) == ("rw", None, None)
    buffer.set_access(gvmm.Device(1), "r")
    assert buffer.get_access(gvmm.Device(1)) == "r" and access_of(buffer.handle, 1) == 1
    buffer.evict()
    buffer.restore()
    assert access_of(buffer.handle, 1) == 1
    assert resource.modify_allocation(buffer, 2 * G).get_access(1) is None  # the least
    buffer.set_access(device=1, access=None)
    assert buffer.get_access(1) is None and access_of(buffer.handle, 1) == 0
    for device, access, error in [
        (1, "w", ValueError),
        (1, 3, ValueError),
        ("gpu", "r", ValueError),
        (77, "r", ValueError),
        (None, "r", TypeError),
        ("host", "rw", RuntimeError),
    ]:
        with pytest.raises(error):
            buffer.set_access(device, access)
    assert (buffer.get_access(0), access_of(buffer.handle, 0)) == ("rw", 3)


# ---- evict and restore ----


@pytest.mark.parametrize("contents", ["host", "file", "zero", "drop"])
def test_sleep_and_wake(resource, G, contents, tmp_path):
    buffer = resource.allocate(2 * G)
    data = pattern(2 * G, 1)
    write(buffer.handle, data)
    view = buffer.shrink(G)
    address = buffer.handle
    for turn in range(1, 3):
        buffer.evict(contents, directory=tmp_path if contents == "file" else None)
        buffer.evict(contents, directory=tmp_path)
        assert (buffer.evicted_bytes, view.evicted_bytes, buffer.handle) == (2 * G, view.size, address)
        assert gvmm.stats().physical_bytes == 0 and not is_mapped(address)
        view.restore()
        buffer.restore()
        assert (buffer.evicted_bytes, buffer.generation, view.generation) == (0, turn, turn)
        if contents in ("host", "file"):
            assert read(address, 2 * G) == data
        elif contents == "zero":
            assert not any(read(address, 2 * G))
    assert list(tmp_path.iterdir()) == []


def test_evict_arguments(resource, tmp_path):
    buffer = resource.allocate(1)
    for arguments, error in [
        ({"contents": "nothing"}, ValueError),
        ({"contents": None}, ValueError),
        ({"contents": "file"}, ValueError),
        ({"contents": "file", "directory": 3}, TypeError),
        ({"contents": "file", "directory": "a\0b"}, ValueError),
        ({"contents": "file", "directory": tmp_path / "nowhere"}, gvmm.CUDAError),
        ({"stream": "x"}, TypeError),
        ({"tag": "x"}, TypeError),
        ({"directory": tmp_path, "stream": 1.5}, TypeError),
    ]:
        if "tag" not in arguments:
            with pytest.raises(error):
                buffer.evict(**arguments)
        with pytest.raises(error):
            resource.evict(**arguments)
    for tag in (1 << 31, -(1 << 31), 1 << 80):
        with pytest.raises(ValueError, match="tag"):
            resource.evict(tag)
        with pytest.raises(ValueError, match="tag"):
            resource.restore(tag)
    assert buffer.evicted_bytes == 0
    with pytest.raises(RuntimeError, match="contents"):
        VirtualMemoryResource(0, HOST).allocate(1).evict()


def test_prepared(resource, G):
    buffer = resource.allocate(2 * G)
    write(buffer.handle, b"kept")
    before = gvmm.stats().pinned_bytes
    resource.prepare_evict(2 * G - 1)
    gvmm.drain()
    assert (gvmm.stats(resource).pinned_bytes, gvmm.stats().pinned_bytes) == (2 * G, before + 2 * G)
    buffer.evict()
    assert gvmm.stats(resource).pinned_bytes == 2 * G
    buffer.restore()
    gvmm.drain()
    assert gvmm.stats(resource).pinned_bytes == 0
    assert read(buffer.handle, 4) == b"kept"
    resource.prepare_evict(size=G)
    resource.prepare_evict(0)
    gvmm.drain()
    assert gvmm.stats(resource).pinned_bytes == 0


def test_what_cannot_be_prepared(resource):
    for size, error in [(1 << 46, MemoryError), (-1, OverflowError), (1 << 64, OverflowError), ("x", TypeError), (None, TypeError)]:
        with pytest.raises(error):
            resource.prepare_evict(size)
    with pytest.raises(TypeError):
        resource.prepare_evict()
    with pytest.raises(RuntimeError, match="host memory"):
        VirtualMemoryResource(0, HOST).prepare_evict(1)


def test_by_tag(G):
    weights, caches = VirtualMemoryResource(0, {"tag": 1}), VirtualMemoryResource(0, {"tag": 2})
    w, c = weights.allocate(1), caches.allocate(1)
    mixed = weights.modify_allocation(w, 2 * G, {"tag": 7})
    weights.evict(tag=7, contents="drop")
    assert (w.evicted_bytes, mixed.evicted_bytes, c.evicted_bytes) == (0, G, 0)
    weights.evict(99)
    weights.evict()
    assert (w.evicted_bytes, mixed.evicted_bytes, c.evicted_bytes) == (G, 2 * G, 0)
    weights.restore(1)
    assert mixed.evicted_bytes == G
    weights.restore()
    assert mixed.evicted_bytes == 0
    caches.evict(tag=2, contents="zero", stream=1)
    assert c.evicted_bytes == G
    c.close()


def test_evicting_waits_for_the_stream(resource, new_stream, G):
    """The recorded one, as it is now, or the given one; Python goes on."""
    first, second, other = new_stream(), new_stream(), new_stream()
    buffer = resource.allocate(1, stream=first)
    buffer.set_deallocation_stream(second)
    for stream, arguments in ((second, {}), (other, {"stream": other})):
        with gate(stream) as g:
            thread = threading.Thread(target=lambda arguments=arguments: buffer.evict("drop", **arguments))
            thread.start()
            thread.join(0.1)
            assert thread.is_alive() and buffer.evicted_bytes == 0
            g.open()
            thread.join()
        assert buffer.evicted_bytes == G
        buffer.restore()
    with gate(first):
        buffer.evict("drop")
    buffer.restore()


def test_not_while_capturing(resource, stream, blocking_stream):
    buffer = resource.allocate(1, stream=stream)
    with capturing(stream), pytest.raises(gvmm.CUDAError, match="captur") as caught:
        buffer.evict()
    assert caught.value.result == "GVMM_E_CAPTURING"
    del caught  # its frames hold the buffer
    with capturing(blocking_stream), pytest.raises(gvmm.CUDAError):
        resource.evict()
    assert buffer.evicted_bytes == 0


def test_a_graph_replays_after_the_restore(resource, stream, G):
    buffer = resource.allocate(1, stream=stream)
    begin_capture(stream)
    buffer.fill(9, stream=stream)
    graph = end_capture(stream)
    buffer.evict()
    buffer.restore()
    graph.launch(stream)
    buffer.evict()
    buffer.restore()
    assert read(buffer.handle, G) == b"\x09" * G
    graph.close()
    address = buffer.handle
    buffer.close()
    wait_until_gone(address, G)


def test_what_others_were_shown(resource, G):
    """Exports keep their address, and find the bytes again after the restore; also after close()."""
    buffer = resource.allocate(1)
    data = pattern(G, 3)
    write(buffer.handle, data)
    address = buffer.handle
    consumer = Consumer(buffer.__dlpack__())
    buffer.evict()
    assert buffer.__cuda_array_interface__["data"][0] == address
    buffer.close()
    assert not is_mapped(address)
    resource.restore()
    assert read(address, G) == data
    consumer.let_go()
    del buffer
    gc.collect()
    gvmm.drain()
    assert is_released(address, G)


def test_evicted_host_memory_is_not_shown():
    buffer = VirtualMemoryResource(0, HOST).allocate(1)
    buffer.evict("zero")
    with pytest.raises(BufferError, match="evicted"):
        memoryview(buffer)
    buffer.restore()
    assert memoryview(buffer)[0] == 0


@pytest.mark.sim
def test_a_restore_that_fails_is_tried_again(resource, G):
    buffer = resource.allocate(1)
    data = pattern(G, 4)
    write(buffer.handle, data)
    told = []
    resource.on_residency = lambda event: told.append(event.what)
    with gvmm.sim.faults("cuMemHostRegister:1+"), pytest.raises(gvmm.CUDAMemoryError):
        buffer.evict()
    assert buffer.evicted_bytes == 0
    buffer.evict()
    with gvmm.sim.faults("cuMemCreate:1"), pytest.raises(gvmm.CUDAMemoryError):
        buffer.restore()
    assert (buffer.evicted_bytes, buffer.generation) == (G, 0)
    buffer.restore()
    assert read(buffer.handle, G) == data
    assert told == [
        "before_evict", "evict_failed", "before_evict", "after_evict",
        "before_restore", "restore_failed", "before_restore", "after_restore",
    ]  # fmt: skip


# ---- who is told ----


def test_on_residency(G):
    resource = VirtualMemoryResource(0, {"tag": 4})
    assert resource.on_residency is None
    buffer = resource.allocate(1)
    told = []
    resource.on_residency = lambda event: told.append((*event, threading.get_ident(), is_mapped(buffer.handle)))
    buffer.evict()
    resource.restore(4)
    resource.evict()
    buffer.restore()
    me = threading.get_ident()
    assert told == [
        ("before_evict", buffer, 4, G, me, True),
        ("after_evict", buffer, 4, G, me, False),
        ("before_restore", None, 4, G, me, False),
        ("after_restore", None, 4, G, me, True),
        ("before_evict", None, None, G, me, True),
        ("after_evict", None, None, G, me, False),
        ("before_restore", buffer, 4, G, me, False),
        ("after_restore", buffer, 4, G, me, True),
    ]
    assert told[0][1] is buffer
    resource.on_residency = None
    resource.evict()
    resource.restore()
    assert len(told) == 8
    with pytest.raises(TypeError, match="on_residency"):
        resource.on_residency = 1
    told.clear()


@pytest.fixture
def unraisable(monkeypatch):
    caught = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: caught.append((type(args.exc_value), str(args.exc_value))))
    return caught


def test_exceptions_of_the_handler_change_nothing(resource, unraisable, G):
    buffer = resource.allocate(1)
    resource.on_residency = lambda event: 1 / 0
    buffer.evict()
    assert buffer.evicted_bytes == G
    buffer.restore()
    assert [kind for kind, _ in unraisable] == [ZeroDivisionError] * 4


def test_the_handler_must_not_evict_or_restore(resource, unraisable):
    buffer = resource.allocate(1)
    resource.on_residency = lambda event: buffer.restore() if event.what == "before_evict" else resource.evict()
    buffer.evict()
    assert unraisable == [(RuntimeError, "on_residency must not evict or restore")] * 2
    resource.on_residency = lambda event: resource.restore()
    buffer.restore()
    buffer.evict()
    buffer.restore()  # allowed again


def test_the_handler_may_use_everything_else(resource, stream, G):
    buffer = resource.allocate(1)
    made = []

    def handler(event):
        made.append(resource.allocate(1))
        made.append(event.buffer.shrink(1))
        made.pop(0).close()
        event.buffer.evicted_bytes, event.buffer.segments(), gvmm.stats()
        gc.collect()
        resource.on_residency = None if event.what == "after_restore" else handler

    resource.on_residency = handler
    buffer.evict("drop")
    buffer.restore()
    assert len(made) == 4 and resource.on_residency is None
    made.clear()


def test_the_buffer_of_a_composed_view_tells_its_resource(resource):
    theirs = VirtualMemoryResource(0)
    view = theirs.compose([resource.allocate(1)])
    told = []
    resource.on_residency = lambda event: told.append("mine")
    theirs.on_residency = lambda event: told.append("theirs")
    view.evict("drop")
    assert told == ["theirs"] * 2
    view.restore()


def test_other_threads_go_on_while_the_handler_is_called(resource):
    buffers = [resource.allocate(1) for _ in range(4)]
    told = []
    resource.on_residency = lambda event: (time.sleep(0.001), told.append(event.buffer))

    def work(buffer):
        for _ in range(20):
            buffer.evict("drop")
            buffer.restore()

    threads = [threading.Thread(target=work, args=(buffer,)) for buffer in buffers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        buffers[0].evicted_bytes, buffers[1].generation, buffers[2].get_access(0), buffers[3].capacity
    for thread in threads:
        thread.join()
    assert [told.count(buffer) for buffer in buffers] == [80] * 4
    told.clear()


def test_a_handler_that_holds_the_resource_is_collected(resource):
    class Holder:
        def __init__(self):
            self.resource = VirtualMemoryResource(0)
            self.resource.on_residency = self.told

        def told(self, event):
            raise AssertionError

    import weakref

    gone = weakref.ref(Holder())
    gc.collect()
    assert gone() is None


@pytest.mark.skipif(not has_subinterpreters(), reason="this Python has no subinterpreters")
def test_in_a_subinterpreter():
    """Each is told in itself, with a lock of its own where it has one."""
    code = """
import gvmm
resource = gvmm.VirtualMemoryResource(0)
buffer = resource.allocate(1)
told = []
resource.on_residency = told.append
buffer.evict()
buffer.restore()
assert [event.what[:5] for event in told] == ["befor", "after"] * 2, told
assert told[0].buffer is buffer
told.clear()
"""
    program = SUBINTERPRETER + f"import gvmm\nfor own in (False, True, True): assert not run({code!r}, own)\nprint(gvmm.stats().buffers)"
    assert_silent(run_python(program), "0\n")


# ---- deferred ----


def test_close_without_waiting(resource, stream, G):
    buffer = resource.allocate(1, stream=stream)
    address, count = buffer.handle, sys.getrefcount(stream)
    with gate(stream):
        started = time.monotonic()
        buffer.close(wait=False)
        assert time.monotonic() - started < 1
        assert buffer.is_closed and is_mapped(address)
        buffer.close(wait=False)
    assert sys.getrefcount(stream) == count - 1
    gvmm.drain()
    assert is_released(address, G)
    with pytest.raises(TypeError):
        buffer.close(None, False)


def test_close_without_waiting_with_exports(resource, stream, G):
    buffer = resource.allocate(1, stream=stream)
    address = buffer.handle
    consumer = Consumer(buffer.__dlpack__())
    with gate(stream):
        buffer.close(wait=False)
        started = time.monotonic()
        consumer.let_go()
        del buffer
        assert time.monotonic() - started < 1 and is_mapped(address)
    gvmm.drain()
    assert is_released(address, G)


def test_close_without_waiting_while_its_stream_captures(resource, stream, G):
    buffer = resource.allocate(1, stream=stream)
    address = buffer.handle
    begin_capture(stream)
    buffer.fill(1, stream=stream)
    with pytest.raises(RuntimeError):
        buffer.close()
    buffer.close(wait=False)
    graph = end_capture(stream)
    graph.launch(stream)
    assert is_mapped(address)
    graph.close()
    wait_until_gone(address, G)


def test_a_wrapped_mapping_goes_at_once(resource):
    calls = []

    class Theirs:
        def deallocate(self, ptr, size, *, stream):
            calls.append((ptr, size))

    Buffer.from_handle(0x1000, 64, Theirs()).close(wait=False)
    assert calls == [(0x1000, 64)]


# ---- probe ----


def test_probe():
    before = gvmm.stats().physical_bytes
    report = gvmm.probe(gvmm.Device(0))
    assert set(report) >= {"memory", "posix_fd", "fabric", "rdma", "host", "host_numa", "peers", "reservation", "graphs"}
    assert len(report) == len(list(report)) and "fabric" in report and report == gvmm.probe()
    assert report["memory"] and report["memory"].call is None and report["memory"].advice is None
    assert report.granularity == 2 * MiB and report.memory > 1 << 30 and report.reservable >= report.memory
    for capability in report.values():
        assert bool(capability) == capability.ok and capability.text
        assert capability.ok or capability.advice
        assert "GVMM_" not in (capability.advice or "")
    assert gvmm.stats().physical_bytes == before
    with pytest.raises(ValueError, match="device"):
        gvmm.probe(99)
    with pytest.raises(TypeError):
        gvmm.probe("0")


@pytest.mark.sim
def test_what_the_simulated_machine_says():
    report = gvmm.probe()
    assert (report.peers, report.numa_nodes) == ((1,), (0,))
    fabric = report["fabric"]
    assert (fabric.ok, fabric.call, fabric.status) == (False, "cuMemCreate", 800)
    assert "optional='fabric'" in fabric.advice
    with gvmm.sim.faults("cuMemMap:1+"):
        assert gvmm.probe()["memory"].call == "cuMemMap"


# ---- references ----


def rounds_of(resource, stream):
    G = resource.granularity
    buffer = resource.allocate(2 * G)
    resource.on_residency = lambda event: None
    sleepy = VirtualMemoryResource(0)
    sleeper = sleepy.allocate(1)
    empty = resource.allocate(0)
    theirs = VirtualMemoryBuffer.from_handle(0x1000, 64)

    def evict_and_restore():
        buffer.evict("drop", stream=stream)
        buffer.restore()

    def by_tag():
        resource.evict(tag=0, contents="zero", stream=stream, directory="/")
        resource.restore(tag=0)

    def told_with_an_exception():
        hook, sys.unraisablehook = sys.unraisablehook, lambda args: None
        sleepy.on_residency = lambda event: event.nothing
        sleeper.evict("drop")
        sleeper.restore()
        sys.unraisablehook = hook

    def deferred():
        resource.allocate(0, stream=stream, capacity=0).close(wait=False)

    optional = {"optional": ("peers", "rdma"), "peers": (77,), "stripe": 0, "chunk_size": 1}
    return {
        "options": lambda: VirtualMemoryResource(0, optional).config,
        "capacity": lambda: (buffer.capacity, buffer.evicted_bytes, buffer.generation),
        "shrink": lambda: buffer.shrink(1).close(),
        "compose": lambda: resource.compose([empty, (empty, 0, None, "r"), (empty, 0, 0)], stream=stream).close(),
        "ring": lambda: buffer.ring(1).close(),
        "access": lambda: (buffer.set_access(0, "rw"), buffer.get_access(0), buffer.get_access("host")),
        "evict and restore": evict_and_restore,
        "by tag": by_tag,
        "told": told_with_an_exception,
        "deferred": deferred,
        "probe": gvmm.probe,
        "no piece": ignoring(TypeError, lambda: resource.compose([buffer, (buffer, 0)])),
        "bad piece": ignoring(ValueError, lambda: resource.compose([(buffer, 1, 1)], stream=stream)),
        "bad access": ignoring(ValueError, lambda: buffer.set_access(0, "x")),
        "bad contents": ignoring(ValueError, lambda: buffer.evict("x")),
        "bad stream": ignoring(TypeError, lambda: buffer.evict(directory="/", stream="x")),
        "bad tag": ignoring(ValueError, lambda: resource.evict(1 << 40)),
        "bad option": ignoring(ValueError, lambda: VirtualMemoryResource(0, {"stripe": (0, 77), "chunk_size": 1})),
        "bad handler": ignoring(TypeError, lambda: setattr(resource, "on_residency", 1)),
        "wrapped": ignoring(TypeError, lambda: theirs.shrink(1)),
    }


NAMES = [
    "options", "capacity", "shrink", "compose", "ring", "access", "evict and restore", "by tag", "told", "deferred", "probe",
    "no piece", "bad piece", "bad access", "bad contents", "bad stream", "bad tag", "bad option", "bad handler", "wrapped",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_rounds_leave_nothing(resource, stream, name):
    rounds = rounds_of(resource, stream)
    assert list(rounds) == NAMES
    few = (ON_GPU and name in ("ring", "evict and restore", "by tag", "told")) or name == "probe"
    assert_stable(rounds[name], 500 if few else 10_000)
    resource.on_residency = None
