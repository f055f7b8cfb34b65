"""An allocator that rounds up to 20 MiB, or with expandable segments to 2 MiB, and whose addresses come back."""

import os
import sys
import threading
import types

__version__ = "0-fake"
MiB = 1 << 20
_BEHAVIOUR = os.environ.get("FAKE_PEER")
_STEP = (2 if os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True" else 20) * MiB


class _State:
    free: dict = {}  # bytes -> addresses
    sizes: dict = {}
    end = 1 << 40
    reserved = 0
    initialised = False


def _init():
    _State.initialised = True


def _alloc(size, stream):
    if not _State.initialised:
        raise RuntimeError("Allocator not initialized for device")
    if _BEHAVIOUR == "abort":
        print("fake torch: aborting", file=sys.stderr, flush=True)
        os.abort()
    if _BEHAVIOUR == "hang":
        threading.Event().wait()
    whole = -(-size // _STEP) * _STEP
    free = _State.free.setdefault(whole, [])
    if _BEHAVIOUR == "overlap":
        return 1 << 40
    if not free:
        free.append(_State.end)
        _State.end += whole
        _State.reserved += whole
    address = free.pop()
    _State.sizes[address] = whole
    return address


def _delete(address):
    _State.free[_State.sizes[address]].append(address)


class _Stream:
    cuda_stream = 7


_C = types.SimpleNamespace(_cuda_cudaCachingAllocator_raw_alloc=_alloc, _cuda_cudaCachingAllocator_raw_delete=_delete)
cuda = types.SimpleNamespace(
    is_available=lambda: True,
    init=_init,
    empty_cache=lambda: None,
    reset_peak_memory_stats=lambda: None,
    Stream=_Stream,
    caching_allocator_alloc=lambda size, device, stream: _alloc(size, stream),
    caching_allocator_delete=_delete,
    memory_stats=lambda: {"reserved_bytes.all.peak": _State.reserved},
)


def empty(*args, **kwargs):
    raise RuntimeError("the fake torch makes no tensors")
