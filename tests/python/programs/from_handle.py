"""A buffer over memory of somebody else, and one that a resource takes back."""

import ctypes

from gvmm import Buffer, VirtualMemoryResource

memory = (ctypes.c_char * 256)()
with Buffer.from_handle(ctypes.addressof(memory), 256, owner=memory) as buffer:
    assert buffer.owner is memory and buffer.size == 256


class Pool(VirtualMemoryResource):
    """A resource that is told when a wrapped buffer closes."""

    returned = []

    def deallocate(self, ptr, size, *, stream=None):
        self.returned.append((int(ptr), size))


buffer = Buffer.from_handle(0x10000, 512, mr=Pool(0))
buffer.close()
assert Pool.returned == [(0x10000, 512)]
