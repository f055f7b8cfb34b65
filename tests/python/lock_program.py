"""Everything that the package lets the library do, for test_lock.py: on a driver that knows who calls it with the interpreter lock."""

from __future__ import annotations

import gc
import socket
import threading

import gvmm


def views(resource: gvmm.VirtualMemoryResource, stream: gvmm.Stream) -> None:
    G = resource.granularity
    small = resource.allocate(G, stream=stream)
    large = resource.modify_allocation(small, 3 * G, {"self_access": "rw"})
    ring, part = large.ring(), large.shrink(G)
    composed = resource.compose([(large, 0, G, "r"), small])
    large.set_access(0, "r")
    large.set_access(0, "rw")
    small.fill(1, stream=stream)
    copy = small.copy_to(stream=stream)
    copy.copy_from(small, stream=stream)
    capsule = copy.__dlpack__()
    copy.close()
    del capsule  # the last export gives up what close() had to leave
    small.close(wait=False)
    ring.close()
    del part, composed, large, ring
    gc.collect()
    mine = resource.allocate(G)
    foreign = gvmm.Buffer.from_handle(mine.handle, G)
    assert foreign.device_id == 0
    foreign.close(stream)
    del mine
    resource.trim()
    gvmm.drain()


def residency(resource: gvmm.VirtualMemoryResource) -> None:
    buffer = resource.allocate(resource.granularity)
    resource.prepare_evict(buffer.size)
    resource.evict()
    resource.restore()
    buffer.evict("file", directory="/tmp")
    buffer.restore()


def sharing(resource: gvmm.VirtualMemoryResource) -> None:
    buffer = resource.allocate(resource.granularity)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=buffer.send, args=(ours,))
        sender.start()
        received = resource.receive(theirs)
        sender.join()
    assert received.identities() == buffer.identities()
    descriptor, fds, export = buffer._export()
    imported = resource._import(descriptor, fds)
    assert imported.size == buffer.size
    del export


def graphs(resource: gvmm.VirtualMemoryResource, stream: gvmm.Stream) -> None:
    buffer = resource.allocate(resource.granularity)
    with gvmm.Graph() as graph:
        buffer.retain_in_graph(graph)
    stream.begin_capture("relaxed")
    buffer.retain_in_capture(stream)
    buffer.fill(1, stream=stream)
    stream.end_capture().close()


def pools(resource: gvmm.VirtualMemoryResource, stream: gvmm.Stream) -> None:
    pool = gvmm.Pool(resource, limit=64 << 20)
    pool.free(pool.malloc(3 << 20, stream), stream)
    pool.trim()


def everything() -> None:
    gvmm.Device(0).set_current()
    gvmm.probe(0)
    with gvmm.Stream(0) as stream:
        for mode in ("sync", "deferred"):
            resource = gvmm.VirtualMemoryResource(0, {"release_mode": mode, "reuse_limit": 64 << 20})
            views(resource, stream)
            residency(resource)
            sharing(resource)
            graphs(resource, stream)
            pools(resource, stream)
            resource.deallocate(0, 0, stream=stream)
            del resource
            gc.collect()
            gvmm.drain()


if __name__ == "__main__":
    everything()
