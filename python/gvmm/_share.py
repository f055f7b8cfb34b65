"""Buffers through multiprocessing: arguments of processes, queues, pipes, managers' connections.

What is pickled is a few bytes; multiprocessing carries the memory's descriptors by means of its own. The receiving process maps
the memory with a resource of the same device and options.
"""

from __future__ import annotations

import os
from dataclasses import replace
from multiprocessing import context, reduction
from typing import Any
from weakref import WeakValueDictionary

from ._gvmm import VirtualMemoryBuffer, VirtualMemoryResource
from ._options import VirtualMemoryResourceOptions

_resources: WeakValueDictionary[tuple[int, VirtualMemoryResourceOptions], VirtualMemoryResource] = WeakValueDictionary()


def _resource(device: int, config: VirtualMemoryResourceOptions) -> VirtualMemoryResource:
    """One for all buffers that come from resources alike, as long as one of them lives."""
    resource = _resources.get((device, config))
    if resource is None:
        resource = _resources.setdefault((device, config), VirtualMemoryResource(device, config))
    return resource


def _rebuild(
    device: int, config: VirtualMemoryResourceOptions, descriptor: bytes, carriers: list[Any]
) -> VirtualMemoryBuffer:
    fds: list[int] = []
    try:
        for carrier in carriers:
            fds.append(carrier.detach())
        return _resource(device, config)._import(descriptor, fds)
    finally:
        for fd in fds:
            os.close(fd)


def _reduce(buffer: VirtualMemoryBuffer) -> tuple[Any, ...]:
    descriptor, fds, held = buffer._export()
    carriers = [reduction.DupFd(fd) for fd in fds]
    process = context.get_spawning_popen()
    if process is not None:  # the descriptors themselves are inherited, and must be open until it has started
        process.__dict__.setdefault("_gvmm_exports", []).append(held)
    # The wished address, the promise about streams and what is kept or made ahead are the sender's.
    config = replace(
        buffer.memory_resource.config, addr_hint=0, ahead_count=0, reuse_limit=0, streams_outlive=False, zero_reused=False
    )
    return _rebuild, (max(buffer.device_id, 0), config, descriptor, carriers)


reduction.register(VirtualMemoryBuffer, _reduce)
