"""Pools: blocks by stream, errors, figures, lifetimes, threads, and the allocator for PyTorch."""

from __future__ import annotations

import ctypes
import gc
import textwrap
import threading
import weakref

import pytest
from support import ON_GPU, MiB, assert_silent, gate, read, run_python, write
from test_refs import assert_stable, ignoring

import gvmm
from gvmm import Pool, PoolStats, VirtualMemoryResource


def test_blocks_are_memory():
    pool = Pool(0)
    stream = gvmm.Stream()
    small, large = pool.malloc(700, stream), pool.malloc(3 * MiB + 1, stream=stream)
    assert small % 512 == 0 and large % 4096 == 0
    write(small, bytes(range(256)))
    write(large, b"x" * 100)
    assert read(small, 256) == bytes(range(256))
    stats = pool.stats()
    assert isinstance(stats, PoolStats)
    assert stats.live_bytes == 700 + 3 * MiB + 1
    assert stats.blocks == 2
    assert stats.physical_bytes >= stats.rounded_bytes >= stats.live_bytes
    pool.free(small, stream)
    pool.free(large, stream=stream)
    assert pool.stats().live_bytes == 0
    assert pool.malloc(700, stream) == small  # what a stream gave up it can have again
    pool.free(small, stream)
    pool.free(None)
    pool.free(0)


def test_a_stream_need_not_live_on():
    pool = Pool(0)
    stream = gvmm.Stream()
    address = pool.malloc(4 * MiB, stream)
    with gate(stream):
        pool.free(address, stream)
        other = gvmm.Stream()
        theirs = pool.malloc(4 * MiB, other)
        assert abs(theirs - address) >= 4 * MiB
        pool.free(theirs, other)


def test_of_a_resource():
    resource = VirtualMemoryResource(0, {"handle_type": None})
    pool = Pool(resource, streams_outlive=True)
    assert pool.resource is resource
    pool.free(pool.malloc(1))
    with pytest.raises(RuntimeError, match="location"):
        Pool(VirtualMemoryResource(0, {"location_type": "host", "handle_type": None}))


def test_errors():
    pool = Pool(0, limit=16 * MiB)
    with pytest.raises(ValueError, match="size is 0"):
        pool.malloc(0)
    with pytest.raises(OverflowError):
        pool.malloc(-1)
    with pytest.raises(TypeError):
        pool.malloc(1.5)
    with pytest.raises(TypeError):
        pool.malloc()
    with pytest.raises(TypeError):
        pool.malloc(1, "stream")
    with pytest.raises(MemoryError, match="limit"):
        pool.malloc(17 * MiB)
    address = pool.malloc(5000)
    with pytest.raises(ValueError, match="not the address"):
        pool.free(address + 512)
    pool.free(address)
    with pytest.raises(ValueError, match="freed already"):
        pool.free(address)
    for limit in (0, -1, 1.5):
        with pytest.raises((ValueError, OverflowError, TypeError)):
            Pool(0, limit=limit)
    with pytest.raises(TypeError):
        Pool(0, 16 * MiB)
    with pytest.raises(ValueError):
        Pool(99)
    with pytest.raises(RuntimeError, match="not initialised"):
        Pool.__new__(Pool).malloc(1)
    with pytest.raises(RuntimeError, match="already"):
        pool.__init__(0)
    pool.set_limit(None)
    pool.set_limit(18 * MiB)
    block = pool.malloc(17 * MiB)
    pool.free(block)


def test_trim_and_peaks():
    pool = Pool(0)
    stream = gvmm.Stream()
    pool.free(pool.malloc(64 * MiB, stream), stream)
    stream.sync()
    assert pool.trim(keep=64 * MiB) == 0
    assert pool.trim() == 64 * MiB
    assert pool.stats().physical_bytes == 0
    assert pool.stats().physical_peak == 64 * MiB
    pool.reset_peaks()
    assert pool.stats().physical_peak == 0


def test_a_pool_with_live_blocks_is_not_given_back():
    """In a program of its own, as its memory is lost."""
    code = """
        import gc, warnings, gvmm
        gvmm.simulate()
        pool = gvmm.Pool(0)
        pool.malloc(1000)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del pool
            gc.collect()
        assert len(caught) == 1 and "in use" in str(caught[0].message), caught
        """
    if not ON_GPU:
        assert_silent(run_python(textwrap.dedent(code)))


def test_alive_at_exit():
    code = """
        import gvmm
        pool = gvmm.Pool(0)
        block = pool.malloc(1 << 20)
        """
    assert_silent(run_python(textwrap.dedent(code)))


@pytest.mark.sim
def test_in_a_forked_child():
    """Objects that free a block when they die do no harm there; what needs the driver says so."""
    code = """
        import gc, os, warnings, gvmm
        gvmm.simulate()
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)

        class Block:
            def __init__(self):
                self.address = pool.malloc(1000)

            def __del__(self):
                pool.free(self.address)

        pool = gvmm.Pool(0)
        block = Block()
        pid = os.fork()
        if pid == 0:
            del block
            assert pool.trim() == 0 and not any(pool.stats())
            pool.reset_peaks()
            for call in (lambda: pool.malloc(1), lambda: pool.set_limit(None)):
                try:
                    call()
                except gvmm.CUDAError as error:
                    assert error.result == "GVMM_E_NO_DRIVER"
                else:
                    os._exit(1)
            del pool
            gc.collect()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert status == 0 and pool.stats().blocks == 1
        del block
        assert pool.stats().blocks == 0
        """
    assert_silent(run_python(textwrap.dedent(code)))


def test_weak_references_and_cycles():
    class Mine(Pool):
        pass

    pool = Mine(0)
    pool.itself, weak = pool, weakref.ref(pool)
    del pool
    gc.collect()
    assert weak() is None


def test_nothing_is_leaked():
    pool = Pool(0)
    stream = gvmm.Stream()

    def use():
        pool.free(pool.malloc(1000, stream), stream)
        pool.stats()
        pool.trim()
        ignoring(MemoryError, lambda: pool.malloc(1 << 60))()
        ignoring(ValueError, lambda: pool.free(12345))()

    assert_stable(use)
    assert_stable(lambda: Pool(0, limit=64 * MiB))


def test_threads():
    pool = Pool(0)
    failed = []

    def work(n):
        try:
            stream = gvmm.Stream()
            for i in range(50):
                blocks = [pool.malloc(512 << (i + n + k) % 13, stream) for k in range(4)]
                for block in blocks:
                    pool.free(block, stream)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert pool.stats().blocks == 0


def test_functions_for_torch():
    """PyTorch loads two functions by name. In a program of its own, as the pools behind them live as long as the process."""
    code = """
        import ctypes, sys, types

        class Allocator:
            def __init__(self, path, malloc, free):
                library = ctypes.CDLL(path)
                self.malloc, self.free = library[malloc], library[free]
                self.malloc.restype = ctypes.c_void_p
                self.malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
                self.free.restype = None
                self.free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]

        memory = types.SimpleNamespace(CUDAPluggableAllocator=Allocator)
        sys.modules["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(memory=memory))
        import gvmm
        allocator = gvmm.torch_allocator()
        assert gvmm.torch_stats() is None
        block = allocator.malloc(1000, 0, None)
        assert gvmm.torch_stats(0).live_bytes == 1000
        allocator.free(block, 1000, 0, None)
        assert gvmm.torch_stats(0).blocks == 0
        assert allocator.malloc(0, 0, None) is None
        """
    assert_silent(run_python(textwrap.dedent(code)))


def test_only_what_is_needed_is_exported():
    library = ctypes.CDLL(gvmm._gvmm.__file__)
    assert library.gvmm_torch_malloc and library.gvmm_torch_free
    with pytest.raises(AttributeError):
        library.gvmm_buffer_create
