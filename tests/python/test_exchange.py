"""DLPack, the CUDA array interface, the buffer protocol; and what close() does while they are out."""

from __future__ import annotations

import ctypes
import gc
import weakref

import pytest
from support import ON_GPU, assert_waits, capturing, gate, is_mapped, is_released, map_by_hand, read, write

import gvmm
from gvmm import Buffer, VirtualMemoryResource

np = pytest.importorskip("numpy")

CUDA, CPU, CUDA_HOST = 2, 1, 3


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    pass


Managed._fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


class Versioned(ctypes.Structure):
    pass


Versioned._fields_ = [
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("context", ctypes.c_void_p),
    ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    ("flags", ctypes.c_uint64),
    ("tensor", Tensor),
]

_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Consumer:
    """As a library takes a capsule: looks inside, renames it, calls the deleter when it is done."""

    def __init__(self, capsule):
        versioned = '"dltensor_versioned"' in repr(capsule)
        self._name = b"dltensor_versioned" if versioned else b"dltensor"
        self._used = b"used_" + self._name
        self._address = _api.PyCapsule_GetPointer(capsule, self._name)
        self.managed = (Versioned if versioned else Managed).from_address(self._address)
        self.tensor = self.managed.tensor
        _api.PyCapsule_SetName(capsule, self._used)

    def let_go(self):
        self.managed.deleter(self._address)


# ---- what is said ----


@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (1, 1), (2, 0)])
def test_capsules(resource, G, max_version):
    buffer = resource.allocate(2 * G)
    assert buffer.__dlpack_device__() == (CUDA, 0)
    consumer = Consumer(buffer.__dlpack__(max_version=max_version))
    t = consumer.tensor
    assert (t.data, t.device_type, t.device_id, t.ndim, t.byte_offset) == (buffer.handle, CUDA, 0, 1, 0)
    assert (t.code, t.bits, t.lanes, t.shape[0], t.strides[0]) == (0, 8, 1, 2 * G, 1)
    if max_version and max_version[0] >= 1:
        assert (consumer.managed.major, consumer.managed.flags) == (1, 0)
    else:
        assert isinstance(consumer.managed, Managed)
    consumer.let_go()


def test_requests(resource, G):
    buffer = resource.allocate(G)
    for stream in (None, -1, 1, 2, 12345):
        buffer.__dlpack__(stream=stream)
    buffer.__dlpack__(dl_device=(CUDA, 0), copy=False, max_version=(1, 0))
    for request in (
        {"dl_device": (CPU, 0)},
        {"dl_device": (CUDA, 1)},
        {"dl_device": "cpu"},
        {"copy": True},
        {"max_version": 1},
        {"max_version": (1,)},
    ):
        with pytest.raises(BufferError):
            buffer.__dlpack__(**request)
    with pytest.raises(TypeError):
        buffer.__dlpack__(None)


def test_read_only(G):
    resource = VirtualMemoryResource(0, {"self_access": "r"})
    buffer = resource.allocate(G)
    with pytest.raises(BufferError, match="max_version"):
        buffer.__dlpack__()
    consumer = Consumer(buffer.__dlpack__(max_version=(1, 0)))
    assert consumer.managed.flags & 1
    consumer.let_go()
    assert buffer.__cuda_array_interface__["data"] == (buffer.handle, True)
    mixed = VirtualMemoryResource(0)
    small = mixed.allocate(G)
    large = mixed.modify_allocation(small, 2 * G, {"self_access": "r"})
    assert small.__cuda_array_interface__["data"][1] is False
    assert large.__cuda_array_interface__["data"][1] is True


def test_array_interface(resource, host, G):
    buffer = resource.allocate(G)
    assert buffer.__cuda_array_interface__ == {
        "shape": (G,),
        "typestr": "|i1",
        "data": (buffer.handle, False),
        "version": 3,
        "strides": None,
        "stream": None,
    }
    assert not hasattr(host.allocate(G), "__cuda_array_interface__")
    both = VirtualMemoryResource(0, {"location_type": "host", "handle_type": None, "peers": [0]}).allocate(G)
    assert both.__dlpack_device__() == (CUDA_HOST, 0) and hasattr(both, "__cuda_array_interface__")


def test_empty_buffers(resource, host):
    consumer = Consumer(resource.allocate(0).__dlpack__())
    assert (consumer.tensor.data, consumer.tensor.shape[0]) == (None, 0)
    consumer.let_go()
    assert bytes(host.allocate(0)) == b""
    assert resource.allocate(0).__cuda_array_interface__["shape"] == (0,)


# ---- host memory and numpy ----


def test_memoryview(host, G):
    buffer = host.allocate(G)
    view = memoryview(buffer)
    assert (view.nbytes, view.format, view.ndim, view.shape, view.readonly) == (G, "B", 1, (G,), False)
    view[:5] = b"hello"
    assert bytes(view[:5]) == b"hello"
    array = np.frombuffer(buffer, dtype=np.float32)
    array[:] = 1.5
    assert np.frombuffer(view, dtype=np.float32)[-1] == 1.5


def test_device_memory_is_no_bytes_like_object(resource, G):
    with pytest.raises(BufferError, match="device"):
        memoryview(resource.allocate(G))


def test_host_memory_without_access(G):
    resource = VirtualMemoryResource(0, {"location_type": "host", "handle_type": None, "self_access": None})
    buffer = resource.allocate(G)
    for show in (memoryview, np.from_dlpack):
        with pytest.raises(BufferError):
            show(buffer)


def test_read_only_host_memory(G):
    resource = VirtualMemoryResource(0, {"location_type": "host", "handle_type": None, "self_access": "r"})
    buffer = resource.allocate(G)
    assert memoryview(buffer).readonly
    assert not np.frombuffer(buffer, dtype=np.uint8).flags.writeable
    with pytest.raises((BufferError, TypeError)):
        (ctypes.c_char * 4).from_buffer(buffer)


def test_numpy_from_dlpack(host, G):
    buffer = host.allocate(G)
    array = np.from_dlpack(buffer)
    assert (array.shape, array.dtype) == ((G,), np.int8)
    np.frombuffer(buffer, dtype=np.int8)[3] = 9
    assert array[3] == 9


# ---- after close ----


def test_memory_outlives_close_until_the_consumer_lets_go(resource, G):
    buffer = resource.allocate(G)
    address = buffer.handle
    write(address, b"still here")
    first, second = Consumer(buffer.__dlpack__()), Consumer(buffer.__dlpack__(max_version=(1, 0)))
    buffer.close()
    assert (buffer.is_closed, buffer.handle, buffer.size) == (True, 0, 0)
    assert read(address, 10) == b"still here"
    first.let_go()
    assert is_mapped(address)
    second.let_go()
    gvmm.drain()
    assert is_released(address, G)


def test_memory_outlives_the_object(resource, G):
    buffer = resource.allocate(G)
    address = buffer.handle
    consumer = Consumer(buffer.__dlpack__())
    del buffer
    gc.collect()
    assert is_mapped(address)
    consumer.let_go()
    gvmm.drain()
    assert is_released(address, G)


def test_a_capsule_that_nobody_takes(resource, G):
    buffer = resource.allocate(G)
    address = buffer.handle
    capsule = buffer.__dlpack__()
    buffer.close()
    assert is_mapped(address)
    del capsule
    gvmm.drain()
    assert is_released(address, G)


def test_the_last_export_waits_for_the_stream(waiting, stream, G):
    buffer = waiting.allocate(G)
    address = buffer.handle
    consumer = Consumer(buffer.__dlpack__())
    buffer.close(stream)
    assert_waits(consumer.let_go, stream, address)
    assert is_released(address, G)


def test_the_last_export_waits_for_nobody_if_releases_are_deferred(resource, stream, G):
    buffer = resource.allocate(G)
    address = buffer.handle
    consumer = Consumer(buffer.__dlpack__())
    buffer.close(stream)
    with gate(stream):
        consumer.let_go()
        assert is_mapped(address)
    gvmm.drain()
    assert is_released(address, G)


def test_a_refused_close_leaves_exports_alone(resource, stream, G):
    buffer = resource.allocate(G, stream=stream)
    address = buffer.handle
    consumer = Consumer(buffer.__dlpack__())
    with capturing(stream), pytest.raises(RuntimeError, match="capturing"):
        buffer.close()
    assert not buffer.is_closed
    consumer.let_go()
    assert is_mapped(address)
    buffer.close()
    assert is_released(address, G)


def test_growth_is_not_exported(resource, G):
    buffer = resource.allocate(G)
    consumer = Consumer(buffer.__dlpack__())
    large = resource.modify_allocation(buffer, 2 * G)
    end = large.handle + G
    buffer.close()
    moved = large.handle != consumer.tensor.data
    large.close()
    assert moved or is_released(end, G)
    assert is_mapped(consumer.tensor.data)
    consumer.let_go()


def test_memoryviews_and_close(host, G):
    buffer = host.allocate(G)
    address = buffer.handle
    view = memoryview(buffer)
    part = view[:10]
    part[:] = b"0123456789"
    buffer.close()
    assert bytes(part) == b"0123456789"
    with pytest.raises(BufferError, match="closed"):
        memoryview(buffer)
    del view, part
    assert is_released(address, G)


def test_numpy_and_close(host, G):
    buffer = host.allocate(G)
    address = buffer.handle
    array = np.from_dlpack(buffer)
    other = np.frombuffer(buffer, dtype=np.uint8)
    buffer.close()
    array[:] = 5
    assert other[-1] == 5
    del array
    assert is_mapped(address)
    del other
    assert is_released(address, G)


def test_the_array_interface_and_close(resource, G):
    """Whoever reads it holds the object: close() leaves the memory until the object is gone."""
    buffer = resource.allocate(G)
    address = buffer.handle

    class Array:
        def __init__(self, source):
            self.interface, self.owner = source.__cuda_array_interface__, source

    array = Array(buffer)
    buffer.close()
    assert buffer.is_closed and is_mapped(address)
    del buffer
    assert is_mapped(address)
    alive = weakref.ref(array.owner)
    del array
    assert alive() is None
    gvmm.drain()
    assert is_released(address, G)


def test_wrapped_mappings_and_close(resource, G):
    """The callback comes when the last export has gone."""
    base = map_by_hand(G)
    buffer = Buffer.from_handle(base, G, mr=resource)
    consumer = Consumer(buffer.__dlpack__())
    assert consumer.tensor.shape[0] == G
    buffer.close()
    assert buffer.is_closed and is_mapped(base)
    consumer.let_go()
    assert is_released(base, G)


def test_an_owner_and_close():
    class Owner:
        pass

    memory = (ctypes.c_char * 64)()
    owner = Owner()
    owner.memory = memory
    alive = weakref.ref(owner)
    buffer = Buffer.from_handle(ctypes.addressof(memory), 64, owner=owner)
    view = memoryview(buffer)
    del owner
    buffer.close()
    view[0] = 1
    assert alive() is not None
    del view
    assert alive() is None


def test_exports_from_other_threads(resource, G):
    import threading

    for _ in range(100):
        buffer = resource.allocate(G)
        consumers = []

        def export(buffer=buffer, consumers=consumers):
            try:
                consumers.append(Consumer(buffer.__dlpack__()))
            except RuntimeError as error:
                assert "closed" in str(error)

        threads = [threading.Thread(target=export), threading.Thread(target=buffer.close)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for consumer in consumers:
            assert is_mapped(consumer.tensor.data)
            threading.Thread(target=consumer.let_go).start()
        del buffer
    while gvmm.stats().mappings:
        threading.Event().wait(0.001)


# ---- the libraries themselves ----


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
class TestOnAGPU:
    def test_torch(self, resource, G):
        torch = pytest.importorskip("torch")
        with torch.cuda.stream(torch.cuda.Stream()) as _:
            side = torch.cuda.current_stream()
            buffer = resource.allocate(G, stream=side)
            tensor = torch.from_dlpack(buffer)
            assert (tensor.numel(), tensor.dtype, tensor.device.index) == (G, torch.int8, 0)
            tensor.fill_(3)
            buffer.close(side)
            assert int(tensor.sum(dtype=torch.int64)) == 3 * G
        address = tensor.data_ptr()
        del tensor
        gc.collect()
        gvmm.drain()
        assert is_released(address, G)

    def test_torch_through_the_array_interface(self, resource, G):
        torch = pytest.importorskip("torch")
        buffer = resource.allocate(G)
        tensor = torch.as_tensor(buffer, device="cuda")
        tensor.fill_(4)
        address = tensor.data_ptr()
        buffer.close()
        assert int(tensor.sum(dtype=torch.int64)) == 4 * G
        assert address and is_mapped(address)
        del tensor, buffer
        gc.collect()
        gvmm.drain()
        assert is_released(address, G)

    def test_torch_graph(self, resource, G):
        torch = pytest.importorskip("torch")
        buffer = resource.allocate(G)
        tensor = torch.from_dlpack(buffer)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tensor.add_(1)
            buffer.retain_in_capture(torch.cuda.current_stream())
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
        assert read(tensor.data_ptr(), 4) == b"\2\2\2\2"
        del tensor, buffer, graph
        gc.collect()

    def test_cupy(self, resource, G):
        cupy = pytest.importorskip("cupy")
        stream = cupy.cuda.Stream(non_blocking=True)
        buffer = resource.allocate(G, stream=stream)
        address = buffer.handle
        with stream:
            array = cupy.asarray(buffer)
            array[...] = 5
            other = cupy.from_dlpack(buffer)
            buffer.close(stream)
            assert int(other.sum(dtype=cupy.int64)) == 5 * G
        assert is_mapped(address)
        del array, other, buffer
        gc.collect()
        gvmm.drain()
        assert is_released(address, G)

    def test_cuda_core_views(self, resource, stream, G):
        utils = pytest.importorskip("cuda.core.utils")
        buffer = resource.allocate(G)
        view = utils.StridedMemoryView.from_any_interface(buffer, stream_ptr=-1)
        assert (view.ptr, view.shape, view.is_device_accessible) == (buffer.handle, (G,), True)
        del view
        gc.collect()
