"""Attributes, options, refusals, warnings: what the package promises beyond the checklist."""

from __future__ import annotations

import dataclasses
import enum
import gc
import pickle
import sys
import threading
import warnings
from collections import ChainMap

import pytest
from support import MiB, capturing, gate, is_filled, is_mapped, is_released, map_by_hand, read, write

import gvmm
from gvmm import (
    Buffer,
    CUDAError,
    CUDAMemoryError,
    CUDAValueError,
    CUDAWarning,
    VirtualMemoryBuffer,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
)

HOST = {"location_type": "host", "handle_type": None}

# ---- options ----


def test_defaults():
    options = VirtualMemoryResourceOptions()
    assert dataclasses.asdict(options) == {
        "allocation_type": "pinned",
        "location_type": "device",
        "handle_type": "posix_fd",
        "granularity": "recommended",
        "gpu_direct_rdma": False,
        "addr_hint": 0,
        "addr_align": None,
        "peers": (),
        "self_access": "rw",
        "peer_access": "rw",
        "numa_node": 0,
        "release_mode": "deferred",
        "capacity": 0,
        "chunk_size": 0,
        "stripe": (),
        "ahead_count": 0,
        "tag": 0,
        "optional": (),
        "reuse_limit": 0,
        "streams_outlive": False,
        "zero_reused": False,
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.peers = (1,)
    assert pickle.loads(pickle.dumps(options)) == options
    assert len({options, VirtualMemoryResourceOptions()}) == 1


@pytest.mark.parametrize(
    "field", ["allocation_type", "location_type", "handle_type", "granularity", "self_access", "peer_access", "release_mode"]
)
def test_values_that_are_not_allowed(field):
    for value in ("nonsense", 1, "", ["rw"]):
        with pytest.raises(ValueError, match=field):
            VirtualMemoryResourceOptions(**{field: value})
        with pytest.raises(ValueError, match=field):
            VirtualMemoryResource(0, {field: value})


def test_win32_is_not_implemented():
    with pytest.raises(NotImplementedError, match="win32"):
        VirtualMemoryResource(0, {"handle_type": "win32"})


def test_managed_is_a_clear_error():
    with pytest.raises(RuntimeError, match="allocation_type"):
        VirtualMemoryResource(0, {"allocation_type": "managed"})


class Kind(str, enum.Enum):
    HOST = "host"
    RW = "rw"


@dataclasses.dataclass
class TheirOptions:
    """As cuda.core's own options."""

    location_type: str = Kind.HOST
    handle_type: str | None = None
    self_access: str = Kind.RW


@pytest.mark.parametrize("config", [HOST, ChainMap({}, HOST), VirtualMemoryResourceOptions(**HOST), TheirOptions()])
def test_forms_of_config(config):
    assert VirtualMemoryResource(0, config).device_id == -1
    assert VirtualMemoryResource(0, config=config).config == VirtualMemoryResourceOptions(**HOST)


def test_config_that_is_none_of_these():
    for config in (1, "host", [("location_type", "host")], VirtualMemoryResourceOptions):
        with pytest.raises(TypeError):
            VirtualMemoryResource(0, config)
    with pytest.raises(TypeError, match="colour"):
        VirtualMemoryResource(0, {"colour": "red"})
    with pytest.raises(ValueError, match="addr_hint"):
        VirtualMemoryResource(0, {"addr_hint": -1})


def test_driver_errors_of_options(resource):
    for config, name in [
        ({"addr_align": 3 * MiB}, "addr_align"),
        ({"addr_hint": 12345}, "addr_hint"),
        ({"peers": [77]}, "77"),
    ]:
        with pytest.raises(CUDAError, match=name):
            VirtualMemoryResource(0, config)
        with pytest.raises(ValueError, match=name):
            VirtualMemoryResource(0, config)


def test_no_such_device():
    for device in (99, -1, 1 << 40):
        with pytest.raises(CUDAValueError, match="device"):
            VirtualMemoryResource(device)
    with pytest.raises(TypeError):
        VirtualMemoryResource("0")


@pytest.mark.sim
def test_peers():
    resource = VirtualMemoryResource(0, {"peers": (gvmm.Device(1),), "peer_access": "r"})
    assert resource.config.peers == (1,)
    from support import access_of

    buffer = resource.allocate(1)
    assert (access_of(buffer.handle, 0), access_of(buffer.handle, 1)) == (3, 1)
    none = VirtualMemoryResource(0, {"peers": 1, "peer_access": None}).allocate(1)
    assert (access_of(none.handle, 0), access_of(none.handle, 1)) == (3, 0)


# ---- resources ----


def test_resource_attributes(resource):
    assert (resource.device, resource.device_id) == (0, 0)
    assert resource.config == VirtualMemoryResourceOptions()
    assert (resource.is_device_accessible, resource.is_host_accessible, resource.is_managed) == (True, False, False)
    device = gvmm.Device(0)
    assert VirtualMemoryResource(device).device is device
    for name in ("device", "config", "device_id", "is_managed", "granularity"):
        with pytest.raises(AttributeError):
            setattr(resource, name, 1)
    assert repr(resource) == "<VirtualMemoryResource on device 0>"


def test_resource_may_go_first(G):
    buffer = VirtualMemoryResource(0).allocate(G)
    gc.collect()
    assert buffer.memory_resource.modify_allocation(buffer, 2 * G).size == 2 * G


def test_subclasses(G):
    class Mine(VirtualMemoryResource):
        def __init__(self, name):
            super().__init__(0, {"self_access": "rw"})
            self.name = name

    mine = Mine("mine")
    buffer = mine.allocate(G)
    assert buffer.memory_resource.name == "mine"

    class Lazy(VirtualMemoryResource):
        def __init__(self):
            pass

    for use in (
        lambda lazy: lazy.allocate(1),
        lambda lazy: lazy.is_device_accessible,
        lambda lazy: lazy.deallocate(0, 0),
        lambda lazy: lazy.modify_allocation(buffer, 1),
    ):
        with pytest.raises(RuntimeError, match="not initialised"):
            use(Lazy())
    assert "not initialised" in repr(Lazy())
    with pytest.raises(RuntimeError, match="already"):
        mine.__init__("again")


def test_arguments_of_calls(resource):
    for call in (
        lambda: resource.allocate(),
        lambda: resource.allocate(1, None),
        lambda: resource.allocate(1, size=2),
        lambda: resource.allocate(1, strem=None),
        lambda: resource.modify_allocation(1),
        lambda: resource.deallocate(1),
        lambda: VirtualMemoryResource(),
    ):
        with pytest.raises(TypeError):
            call()
    assert resource.allocate(size=1, stream=None).size == resource.granularity


# ---- buffers ----


def test_buffer_attributes(resource, G):
    buffer = resource.allocate(G)
    assert isinstance(buffer, VirtualMemoryBuffer) and isinstance(buffer, Buffer)
    assert (buffer.size, buffer.is_closed, buffer.memory_resource, buffer.owner) == (G, False, resource, None)
    assert (buffer.device_id, buffer.is_device_accessible, buffer.is_host_accessible, buffer.is_managed) == (0, True, False, False)
    assert type(buffer.handle) is int and buffer.handle
    buffer.close()
    buffer.close()
    assert (buffer.handle, buffer.size, buffer.is_closed, buffer.memory_resource, buffer.owner) == (0, 0, True, None, None)
    for name in ("device_id", "is_device_accessible", "is_host_accessible", "is_managed"):
        with pytest.raises(RuntimeError, match="Buffer has been closed"):
            getattr(buffer, name)
    for call in (
        lambda: buffer.fill(0, stream=1),
        lambda: buffer.copy_to(stream=1),
        lambda: buffer.set_deallocation_stream(1),
        lambda: buffer.__dlpack__(),
        lambda: buffer.__dlpack_device__(),
        lambda: buffer.__cuda_array_interface__,
        lambda: buffer.segments(),
    ):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_not_made_directly():
    for class_ in (Buffer, VirtualMemoryBuffer):
        with pytest.raises(RuntimeError):
            class_()


def test_equality_and_hash(resource, G):
    small, other = resource.allocate(G), resource.allocate(G)
    alias = resource.modify_allocation(small, 1)
    assert small == alias and hash(small) == hash(alias) and small != other
    assert small != (small.handle, small.size) and small != None  # noqa: E711
    assert len({small, alias, other}) == 2
    with pytest.raises(TypeError):
        small < alias


def test_text(resource, host, G):
    buffer = resource.allocate(3 * MiB)
    assert repr(buffer) == f"<VirtualMemoryBuffer {buffer.handle:#x}, 4 MiB on device 0>"
    assert repr(host.allocate(1)).endswith("2 MiB on the host>")
    assert repr(Buffer.from_handle(0x1000, 77)) == "<Buffer 0x1000, 77 bytes, wrapped>"
    buffer.close()
    assert repr(buffer) == "<VirtualMemoryBuffer, closed>"


def test_context_manager(resource, stream, G):
    with resource.allocate(G) as buffer:
        assert buffer.size == G
    assert buffer.is_closed
    with pytest.raises(KeyError):
        with resource.allocate(G) as buffer:
            raise KeyError
    assert buffer.is_closed
    with capturing(stream):
        with pytest.raises(RuntimeError, match="capturing"):
            with resource.allocate(G, stream=stream) as buffer:
                pass
        with pytest.raises(KeyError):  # not replaced by the close that is refused
            with buffer:
                raise KeyError
    buffer.close()


def test_segments(resource, G):
    small = resource.allocate(G)
    large = resource.modify_allocation(small, 3 * G)
    first, second = large.segments()
    assert first[:2] == (large.handle, G) and second[:2] == (large.handle + G, 2 * G)
    assert first[2] == small.segments()[0][2] != second[2]
    assert first[3] == 0


# ---- copy, fill ----


def test_copy(resource, stream, G):
    source = resource.allocate(2 * G)
    write(source.handle, b"abc")
    made = source.copy_to(stream=stream)
    assert made.memory_resource is resource and made.size == 2 * G
    target = resource.allocate(2 * G)
    assert source.copy_to(target, stream=stream) is target
    back = resource.allocate(2 * G)
    assert back.copy_from(target, stream=stream) is None
    gvmm.Device(0).sync()
    assert read(made.handle, 3) == read(target.handle, 3) == read(back.handle, 3) == b"abc"
    with pytest.raises(ValueError, match="buffer sizes mismatch"):
        source.copy_to(resource.allocate(G), stream=stream)
    with pytest.raises(ValueError, match="buffer sizes mismatch"):
        source.copy_from(resource.allocate(G), stream=stream)
    for call in (
        lambda: source.copy_to(),
        lambda: source.copy_to(target, stream=None),
        lambda: source.copy_to("target", stream=stream),
        lambda: source.copy_from(stream=stream),
    ):
        with pytest.raises(TypeError):
            call()
    assert resource.allocate(0).copy_to(stream=stream).size == 0


def test_copy_of_others(resource, stream, G):
    class Theirs:
        pass

    theirs = Theirs()
    mine, other = resource.allocate(G), resource.allocate(G)
    theirs.handle, theirs.size = other.handle, other.size
    write(mine.handle, b"for them")
    assert mine.copy_to(theirs, stream=stream) is theirs
    gvmm.Device(0).sync()
    assert read(other.handle, 8) == b"for them"


def test_fill(resource, stream, G):
    buffer = resource.allocate(G)

    def filled(value) -> bytes:
        buffer.fill(value, stream=stream)
        gvmm.Device(0).sync()
        return read(buffer.handle, 8)

    assert filled(7) == b"\7" * 8
    assert filled(255) == b"\xff" * 8
    assert filled(b"z") == b"z" * 8
    assert filled(b"ab") == b"abababab"
    assert filled(bytearray(b"abcd")) == b"abcdabcd"
    assert filled(memoryview(b"wxyz")) == b"wxyzwxyz"
    for value in (-1, 256, 10**30):
        with pytest.raises(OverflowError):
            buffer.fill(value, stream=stream)
    for value in (b"", b"abc", b"12345678"):
        with pytest.raises(ValueError):
            buffer.fill(value, stream=stream)
    odd = Buffer.from_handle(buffer.handle, 5)
    with pytest.raises(ValueError, match="divisible"):
        odd.fill(b"ab", stream=stream)
    for value in (1.5, "a", None):
        with pytest.raises(TypeError):
            buffer.fill(value, stream=stream)
    with pytest.raises(TypeError):
        buffer.fill(1, stream=None)
    assert read(buffer.handle, 4) == b"wxyz"


def test_fill_is_asynchronous(resource, stream, G):
    buffer = resource.allocate(G)
    with gate(stream):
        buffer.fill(9, stream=stream)
        assert is_filled(buffer, 0)
    assert is_filled(buffer, 9)


def test_failing_work_raises(G, stream):
    closed_off = VirtualMemoryResource(0, {"self_access": None}).allocate(G)
    with pytest.raises(CUDAError) as caught:
        closed_off.fill(1, stream=stream)
    assert (caught.value.call, caught.value.code) == ("cuMemsetD8Async", 1)


# ---- from_handle ----


def test_from_handle_with_an_owner(resource, G):
    class Owner:
        pass

    owner = Owner()
    count = sys.getrefcount(owner)
    buffer = Buffer.from_handle(0x1000, 16, owner=owner)
    assert (buffer.owner, buffer.memory_resource, buffer.handle, buffer.size) == (owner, None, 0x1000, 16)
    assert sys.getrefcount(owner) == count + 1
    buffer.close()
    assert buffer.owner is None and sys.getrefcount(owner) == count
    with pytest.raises(ValueError):
        Buffer.from_handle(0x1000, 16, mr=resource, owner=owner)
    for size in (-1, 2**64):
        with pytest.raises(OverflowError):
            Buffer.from_handle(0x1000, size)


def test_from_handle_asks_the_driver(resource, G):
    mine = resource.allocate(G)
    view = Buffer.from_handle(mine.handle, G)
    assert (view.device_id, view.is_device_accessible, view.is_host_accessible, view.is_managed) == (0, True, False, False)
    view.close()
    assert is_mapped(mine.handle)


def test_a_wrapped_mapping_dies_with_its_object(resource, G):
    base = map_by_hand(G)
    buffer = Buffer.from_handle(base, G, mr=resource)
    del buffer
    assert is_released(base, G)


def test_a_wrapped_mapping_of_a_capturing_stream(resource, stream, G):
    base = map_by_hand(G)
    buffer = Buffer.from_handle(base, G, mr=resource)
    buffer.set_deallocation_stream(stream)
    with capturing(stream):
        with pytest.warns(CUDAWarning, match="capturing") as caught:
            del buffer
        assert len(caught) == 1 and is_released(base, G)


# ---- errors and warnings ----


def test_errors_have_their_facts(resource):
    with pytest.raises(CUDAError) as caught:
        resource.allocate(1 << 60)
    error = caught.value
    assert isinstance(error, RuntimeError)
    assert error.code == 2 and error.call in ("cuMemCreate", "cuMemAddressReserve") and error.call in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code, again.call, again.result) == (str(error), error.code, error.call, error.result)
    assert issubclass(CUDAMemoryError, MemoryError) and issubclass(CUDAWarning, RuntimeWarning)


@pytest.mark.sim
def test_kinds_of_memory_errors(resource, G):
    resource.allocate(G).close()
    for plan, result in [
        ("cuMemCreate:1", "GVMM_E_NO_DEVICE_MEMORY"),
        ("cuMemAddressReserve:1+", "GVMM_E_NO_ADDRESS_SPACE"),
        ("malloc:1+", "GVMM_E_NO_HOST_MEMORY"),
    ]:
        with gvmm.sim.faults(plan), pytest.raises(CUDAError) as caught:
            resource.allocate(G)
        assert caught.value.result == result
        assert isinstance(caught.value, MemoryError) == (result != "GVMM_E_NO_ADDRESS_SPACE")


@pytest.mark.sim
def test_failures_of_a_release_are_warnings(resource, waiting, G):
    buffer = resource.allocate(G)
    with gvmm.sim.faults("cuMemUnmap:1=UNKNOWN"), pytest.warns(CUDAWarning, match="mapping 0x.*cuMemUnmap: CUDA_ERROR_UNKNOWN"):
        buffer.close()
    buffer = waiting.allocate(G)
    with gvmm.sim.faults("cuMemRelease:1=UNKNOWN"), pytest.warns(CUDAWarning, match="cuMemRelease"):
        del buffer
    buffer = resource.allocate(G)
    with gvmm.sim.faults("cuMemRelease:1=UNKNOWN"), pytest.warns(CUDAWarning, match="cuMemRelease"):
        del buffer
        gvmm.drain()  # it goes on another thread, whose warnings come with the next call
    buffer = resource.allocate(G)
    with gvmm.sim.faults("cuStreamSynchronize:1=DEINITIALIZED"):
        buffer.close()


@pytest.mark.sim
def test_many_warnings_are_summed_up(resource, G):
    buffer = resource.allocate(G)
    for n in range(2, 12):
        longer = resource.modify_allocation(buffer, n * G)
        buffer.close()
        buffer = longer
    with gvmm.sim.faults("cuMemUnmap:1+=UNKNOWN"), pytest.warns(CUDAWarning) as caught:
        buffer.close()
    assert len(caught) == 5 and "and 7 more" in str(caught[-1].message)


@pytest.mark.sim
def test_a_propagating_exception_survives(waiting, G):
    """What goes wrong while an exception unwinds the frame that held the buffer replaces nothing."""

    def fail():
        buffer = waiting.allocate(G)  # noqa: F841
        raise KeyError("mine")

    unraisable = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda args: unraisable.append(args.exc_type)
    try:
        with warnings.catch_warnings(), gvmm.sim.faults("cuMemUnmap:1=UNKNOWN"):
            warnings.simplefilter("error")
            try:
                fail()
            except KeyError as error:
                assert error.args == ("mine",)
                error.__traceback__ = None
                del error
            gc.collect()
    finally:
        sys.unraisablehook = hook
    assert unraisable == [CUDAWarning]


@pytest.mark.sim
def test_warnings_as_errors_go_to_the_hook(resource, waiting, G):
    unraisable = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda args: unraisable.append(args.exc_type)
    try:
        with warnings.catch_warnings(), gvmm.sim.faults("cuMemUnmap:1+=UNKNOWN"):
            warnings.simplefilter("error", CUDAWarning)
            buffer = resource.allocate(G)
            buffer.close()
            assert buffer.is_closed
            buffer = waiting.allocate(G)
            del buffer
    finally:
        sys.unraisablehook = hook
    assert unraisable == [CUDAWarning] * 2


@pytest.mark.sim
def test_warnings_of_other_threads_come_with_the_next_call(resource, stream, G):
    """Memory that a graph held goes back on a thread of the library, which enters no Python."""
    buffer = resource.allocate(G)
    with gvmm.Graph() as graph:
        buffer.retain_in_graph(graph)
        buffer.close()
        gvmm.sim.faults("cuMemUnmap:1=UNKNOWN")
    with pytest.warns(CUDAWarning, match="cuMemUnmap"):
        for _ in range(1000):
            gvmm.drain()
            if not gvmm.stats().mappings:
                break
            threading.Event().wait(0.005)
        gvmm.drain()


# ---- threads ----


def test_close_against_grow(resource, G):
    """A misuse that must not crash."""
    for _ in range(200):
        buffer = resource.allocate(G)
        start = threading.Barrier(2)

        def close(buffer=buffer, start=start):
            start.wait()
            buffer.close()

        thread = threading.Thread(target=close)
        thread.start()
        start.wait()
        try:
            resource.modify_allocation(buffer, 2 * G).close()
        except RuntimeError as error:
            assert "closed" in str(error)
        thread.join()


def test_streams_replaced_by_many_threads(resource, new_stream, G):
    buffer = resource.allocate(G)
    streams = [new_stream() for _ in range(4)]

    def work(stream):
        for _ in range(500):
            buffer.set_deallocation_stream(stream)
            resource.modify_allocation(buffer, 1).close()

    threads = [threading.Thread(target=work, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    buffer.close()
