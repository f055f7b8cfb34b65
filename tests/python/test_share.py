"""Buffers between processes: over a socket, and through multiprocessing."""

from __future__ import annotations

import copy
import multiprocessing
import multiprocessing.resource_sharer
import os
import pickle
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support import ON_GPU, is_filled, pattern, read, write
from test_refs import assert_stable

import gvmm
from gvmm import VirtualMemoryResource

PEER_GONE = "GVMM_E_PEER_GONE"
TIME_LIMIT = 60  # seconds for a process that should be done at once


def chunked(G: int, **options: Any) -> VirtualMemoryResource:
    return VirtualMemoryResource(0, {"chunk_size": G, "capacity": 32 * G, **options})


# ---- over a socket, both ends here ----


@pytest.fixture(params=[socket.SOCK_STREAM, socket.SOCK_SEQPACKET], ids=["stream", "seqpacket"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    a, b = socket.socketpair(socket.AF_UNIX, request.param)
    with a, b:
        yield a, b


def exchange(pair: tuple[socket.socket, socket.socket], buffer: Any, resource: Any, **options: Any) -> Any:
    failed: list[BaseException] = []

    def send() -> None:
        try:
            buffer.send(pair[0])
        except BaseException as error:
            failed.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        return resource.receive(pair[1], **options)
    finally:
        sender.join()
        assert failed == []


def test_a_socket_carries_the_memory(pair, G, stream):
    resource = chunked(G)
    buffer, receiver = resource.allocate(3 * G), chunked(G, self_access="r")
    write(buffer.handle, pattern(3 * G, 1))
    got = exchange(pair, buffer, receiver, stream=stream)
    assert got.memory_resource is receiver
    assert got.size == 3 * G and got.handle != buffer.handle
    assert got.identities() == buffer.identities()
    assert len(got.identities()) == 3
    origin, serial, generation = got.identities()[0]
    assert len(origin) == 16 and serial > 0 and generation == 0
    assert read(got.handle, 3 * G) == pattern(3 * G, 1)
    assert gvmm.stats(receiver).imported_bytes == 3 * G
    assert gvmm.stats(receiver).physical_bytes == 0
    with pytest.raises(gvmm.CUDAError, match="imported"):
        got.evict()
    with pytest.raises(gvmm.CUDAError, match="imported"):
        got.send(pair[0])


def test_only_growth_goes_over(pair, G):
    resource, receiver = chunked(G), chunked(G)
    small = resource.allocate(2 * G)
    first = exchange(pair, small, receiver)
    large = resource.modify_allocation(small, 5 * G)
    write(large.handle, pattern(5 * G, 2))
    second = exchange(pair, large, receiver, have=first)
    assert second.handle == first.handle
    assert read(second.handle, 5 * G) == pattern(5 * G, 2)
    assert second.identities()[:2] == first.identities()
    assert exchange(pair, small, receiver, have=second).size == 2 * G


def test_a_peer_that_is_not_there(pair, resource, G):
    buffer = resource.allocate(G)
    with pytest.raises(gvmm.CUDAError, match="did not answer") as told:
        buffer.send(pair[0], timeout=0.001)
    assert told.value.result == PEER_GONE
    pair[1].close()
    with pytest.raises(gvmm.CUDAError) as told:
        resource.receive(pair[0], timeout=None)
    assert told.value.result == PEER_GONE


def test_arguments(resource, G):
    buffer = resource.allocate(G)
    with socket.socket(socket.AF_INET) as wrong:
        for bad in (wrong, wrong.fileno(), 9999):
            with pytest.raises(ValueError, match="socket"):
                buffer.send(bad)
            with pytest.raises(ValueError, match="socket"):
                resource.receive(bad)
    for bad in (None, "socket", 1.5):
        with pytest.raises(TypeError):
            buffer.send(bad)
    a, b = socket.socketpair()
    with a, b:
        for timeout in (-1, -0.5, float("nan")):
            with pytest.raises(ValueError, match="timeout"):
                buffer.send(a, timeout=timeout)
        with pytest.raises(TypeError):
            buffer.send(a, timeout="long")
        with pytest.raises(TypeError, match="have"):
            resource.receive(a, have=3)
        wrapped = gvmm.VirtualMemoryBuffer.from_handle(buffer.handle, G, owner=buffer)
        with pytest.raises(TypeError, match="wrapped"):
            wrapped.send(a)
        with pytest.raises(TypeError, match="wrapped"):
            resource.receive(a, have=wrapped)
        buffer.close()
        with pytest.raises(RuntimeError, match="closed"):
            buffer.send(a)
        with pytest.raises(RuntimeError, match="closed"):
            buffer.identities()
    with pytest.raises(ValueError, match="descriptor"):
        resource._import(b"nothing", [])
    with pytest.raises(TypeError):
        resource._import(b"nothing", ["x"])


def test_nothing_is_leaked_in_python(resource, G):
    buffer = resource.allocate(G)

    def round_() -> None:
        descriptor, fds, _held = buffer._export()
        resource._import(descriptor, fds).close()
        buffer.identities()

    assert_stable(round_, 200 if ON_GPU else 2000)


# ---- through multiprocessing ----


def test_a_plain_pickle_is_refused(resource, G):
    buffer = resource.allocate(G)
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="multiprocessing"):
            way(buffer)


@pytest.fixture(scope="module", autouse=True)
def simulated_children() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if not ON_GPU:
            patch.setenv("GVMM_DRIVER", "sim")
            patch.setenv("GVMM_SIM", "devices=2,memory=128G")
        yield
    multiprocessing.resource_sharer.stop(timeout=TIME_LIMIT)


@pytest.fixture(params=["spawn", "forkserver"])
def processes(request: pytest.FixtureRequest) -> Any:
    return multiprocessing.get_context(request.param)


def finish(process: Any) -> None:
    process.join(TIME_LIMIT)
    assert process.exitcode == 0


def read_and_fill(buffer: Any, connection: Any, byte: int) -> None:
    """In another process: says what it sees, and writes."""
    gvmm.Device(0).set_current()
    connection.send((read(buffer.handle, buffer.size), buffer.identities(), buffer.memory_resource.config.chunk_size))
    buffer.fill(byte, stream=1)
    gvmm.Device(0).sync()


def test_as_an_argument(processes, G):
    resource = chunked(G, addr_hint=0x300000000000)
    buffer = resource.allocate(5 * G)
    write(buffer.handle, pattern(5 * G, 3))
    here, there = processes.Pipe()
    process = processes.Process(target=read_and_fill, args=(buffer, there, 7))
    process.start()
    assert here.poll(TIME_LIMIT)
    assert here.recv() == (pattern(5 * G, 3), buffer.identities(), G)
    finish(process)
    assert is_filled(buffer, 7)
    process.close()


def send_on(connection: Any) -> None:
    """In another process: fills what comes, and tries to send it on."""
    gvmm.Device(0).set_current()
    theirs = connection.recv()
    theirs.fill(9, stream=1)
    gvmm.Device(0).sync()
    try:
        connection.send(theirs)
    except gvmm.CUDAError as error:
        connection.send(str(error))


def test_through_a_pipe(processes, resource, G):
    buffer = resource.allocate(2 * G)
    here, there = processes.Pipe()
    process = processes.Process(target=send_on, args=(there,))
    process.start()
    here.send(buffer)
    assert here.poll(TIME_LIMIT)
    assert "was imported" in here.recv()
    finish(process)
    assert is_filled(buffer, 9)
    process.close()


def make(connection: Any, size: int) -> None:
    gvmm.Device(0).set_current()
    own = VirtualMemoryResource(0).allocate(size)
    own.fill(11, stream=1)
    gvmm.Device(0).sync()
    connection.send([own, own])
    connection.recv()


def test_memory_outlives_the_process_that_made_it(processes, G):
    here, there = processes.Pipe()
    process = processes.Process(target=make, args=(there, 2 * G))
    process.start()
    assert here.poll(TIME_LIMIT)
    one, same = here.recv()
    here.send("thanks")
    finish(process)
    assert one is same  # one pickle
    assert one.identities()[0][0] != VirtualMemoryResource(0).allocate(G).identities()[0][0]
    assert is_filled(one, 11)
    process.close()


def test_through_a_queue(processes, resource, G):
    queue = processes.Queue()
    buffers = [resource.allocate(G) for _ in range(3)]
    for byte, buffer in enumerate(buffers):
        write(buffer.handle, bytes([byte]) * G)
        queue.put(buffer)
    for byte, buffer in enumerate(buffers):
        got = queue.get(timeout=TIME_LIMIT)
        assert got.identities() == buffer.identities()
        assert is_filled(got, byte)
    queue.close()
    queue.join_thread()


def test_what_came_shares_a_resource(resource, G):
    here, there = multiprocessing.get_context("spawn").Pipe()
    for _ in range(2):
        there.send(resource.allocate(G))
    first, second = here.recv(), here.recv()
    assert first.memory_resource is second.memory_resource
    assert first.memory_resource.config.self_access == "rw"


def test_descriptors_do_not_stay_open(resource, G):
    here, there = multiprocessing.get_context("spawn").Pipe()
    buffer = resource.allocate(G)
    there.send(buffer)
    here.recv().close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        there.send(buffer)
        here.recv().close()
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # one may still be on its way out of the sharing thread
