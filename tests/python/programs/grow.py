"""Grow again and again: contents stay, pointers may move."""

from cuda.core import Device

from gvmm import VirtualMemoryResource

MiB = 1024 * 1024

device = Device(0)
device.set_current()
stream = device.create_stream()
mr = VirtualMemoryResource(device)

buffer = mr.allocate(2 * MiB, stream=stream)
buffer.fill(7, stream=stream)
sizes = [buffer.size]
while buffer.size < 64 * MiB:
    larger = mr.modify_allocation(buffer, 2 * buffer.size)
    if larger.handle != buffer.handle:
        print("moved")
    buffer.close(stream)
    buffer = larger
    sizes.append(buffer.size)
assert sizes == [2 * MiB << n for n in range(6)]

same = mr.modify_allocation(buffer, 1 * MiB)  # covered: the same memory once more
assert same.handle == buffer.handle and same.size == buffer.size and same == buffer
same.close()
buffer.close()
stream.close()
