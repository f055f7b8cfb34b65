"""Nothing is leaked in Python either: references of every object involved, and memory of the interpreter, over many rounds."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import pytest
from support import ON_GPU
from test_exchange import Consumer

import gvmm
from gvmm import Buffer, VirtualMemoryResource

ROUNDS = 10_000


def assert_stable(round_: Callable[[], object], rounds: int = ROUNDS) -> None:
    """The rounds leave no blocks of memory and (in a debug build) no references. Python itself may take some the first time."""
    total = getattr(sys, "gettotalrefcount", lambda: 0)
    for _ in range(3):
        for _ in range(50):
            round_()
        gc.collect()
        blocks, references = sys.getallocatedblocks(), total()
        for _ in range(rounds):
            round_()
        gc.collect()
        blocks, references = sys.getallocatedblocks() - blocks, total() - references
        if blocks < 50 and references < 50:
            return
    raise AssertionError(f"{blocks} blocks, {references} references after {rounds} rounds")


def ignoring(kind: type[BaseException], call: Callable[[], object]) -> Callable[[], None]:
    def round_() -> None:
        try:
            call()
        except kind:
            return
        raise AssertionError

    return round_


class Fails:
    def deallocate(self, ptr, size, *, stream):
        raise KeyError


def rounds_of(resource: VirtualMemoryResource, stream: object) -> dict[str, Callable[[], object]]:
    G = resource.granularity
    buffer = resource.allocate(G)
    part = Buffer.from_handle(buffer.handle, 64, owner=buffer)
    config = {"self_access": "r"}
    keeping = VirtualMemoryResource(0, {"reuse_limit": 8 * G})

    def create_and_close():
        resource.allocate(0, stream=stream).close()

    def with_block():
        with resource.allocate(0) as inner:
            inner.size

    def keep():
        keeping.allocate(1, stream=stream)

    def keep_and_trim():
        keeping.allocate(1, stream=stream).close(wait=False)
        keeping.trim()
        gvmm.drain()

    def grow():
        resource.modify_allocation(buffer, 1, config).close(stream)

    def attributes():
        for name in ("handle", "size", "is_closed", "memory_resource", "owner", "device_id", "is_managed"):
            getattr(buffer, name)
        repr(buffer), hash(buffer), buffer == buffer, buffer.segments(), repr(resource)

    def exchange():
        buffer.__dlpack__(), buffer.__dlpack__(max_version=(1, 0)), buffer.__dlpack_device__()
        Consumer(buffer.__dlpack__()).let_go()
        resource.modify_allocation(buffer, 1).__cuda_array_interface__

    def close_with_exports():
        alias = resource.modify_allocation(buffer, 1)
        consumer = Consumer(alias.__dlpack__())
        alias.close()
        consumer.let_go()

    def cycle():
        alias = resource.modify_allocation(buffer, 1)
        holder = [alias]
        holder.append(holder)

    return {
        "create and close": create_and_close,
        "with": with_block,
        "grow": grow,
        "keep": keep,
        "keep and trim": keep_and_trim,
        "resource": lambda: VirtualMemoryResource(0, config).config,
        "attributes": attributes,
        "exchange": exchange,
        "close with exports": close_with_exports,
        "cycle": cycle,
        "set stream": lambda: (buffer.set_deallocation_stream(stream), buffer.set_deallocation_stream(1)),
        "from_handle": lambda: Buffer.from_handle(0x1000, 1, owner=object()).close(),
        "fill": lambda: (part.fill(0, stream=1), part.fill(b"ab", stream=1)),
        "copy": lambda: part.copy_to(part, stream=1),
        "stats": lambda: (gvmm.stats(), gvmm.stats(resource), gvmm.drain()),
        "no size": ignoring(TypeError, lambda: resource.allocate("1")),
        "overflow": ignoring(OverflowError, lambda: resource.allocate(-1)),
        "too large": ignoring(gvmm.CUDAError, lambda: resource.allocate(1 << 62)),
        "no stream": ignoring(TypeError, lambda: resource.allocate(1, stream="x")),
        "bad option": ignoring(ValueError, lambda: resource.modify_allocation(buffer, 1, {"self_access": "x"})),
        "no buffer": ignoring(TypeError, lambda: resource.modify_allocation(None, 1)),
        "no argument": ignoring(TypeError, lambda: buffer.fill(strem=1)),
        "no request": ignoring(BufferError, lambda: buffer.__dlpack__(copy=True)),
        "bad fill": ignoring(ValueError, lambda: buffer.fill(b"abc", stream=1)),
        "mismatch": ignoring(ValueError, lambda: buffer.copy_from(Buffer.from_handle(0x1000, 1), stream=1)),
    }


@pytest.mark.parametrize(
    "name",
    [
        "create and close",
        "with",
        "grow",
        "keep",
        "keep and trim",
        "resource",
        "attributes",
        "exchange",
        "close with exports",
        "cycle",
        "set stream",
        "from_handle",
        "fill",
        "copy",
        "stats",
        "no size",
        "overflow",
        "too large",
        "no stream",
        "bad option",
        "no buffer",
        "no argument",
        "no request",
        "bad fill",
        "mismatch",
    ],
)
def test_rounds_leave_nothing(resource, stream, name):
    slow = ON_GPU and name == "too large"  # the driver takes milliseconds to say so
    assert_stable(rounds_of(resource, stream)[name], 500 if slow or name == "keep and trim" else ROUNDS)
    gvmm.Device(0).sync()


def test_rounds_with_memory_leave_nothing(resource, stream, G):
    def round_():
        small = resource.allocate(G, stream=stream)
        large = resource.modify_allocation(small, 3 * G)
        small.close()
        del large

    assert_stable(round_, 1000)


@pytest.mark.sim
def test_a_failing_callback_leaves_nothing():
    import warnings

    fails = Fails()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_stable(lambda: Buffer.from_handle(0x1000, 1, mr=fails).close())


def test_objects_leave_no_types_behind(resource):
    count = sys.getrefcount(type(resource)), sys.getrefcount(gvmm.VirtualMemoryBuffer)
    for _ in range(1000):
        resource.allocate(0)
        VirtualMemoryResource(0)
    assert (sys.getrefcount(type(resource)), sys.getrefcount(gvmm.VirtualMemoryBuffer)) == count
