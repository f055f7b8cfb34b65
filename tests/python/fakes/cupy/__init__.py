"""A pool that gives memory back when what it handed out is dropped, and keeps all it ever had."""

import contextlib
import types

__version__ = "0-fake"


class _Pointer:
    def __init__(self, pool, size):
        self.ptr, self._size, self._pool = pool.next, size, pool
        pool.next += size
        pool.live += size
        pool.most = max(pool.most, pool.live)

    def __del__(self):
        self._pool.live -= self._size


class _Pool:
    def __init__(self):
        self.next, self.live, self.most = 1 << 41, 0, 0

    def malloc(self, size):
        return _Pointer(self, -(-size // 512) * 512)

    def total_bytes(self):
        return self.most


class _Stream(contextlib.nullcontext):
    def __init__(self, non_blocking=False):
        super().__init__()


cuda = types.SimpleNamespace(MemoryPool=_Pool, Stream=_Stream)
