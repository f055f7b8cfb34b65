"""Allocate, use, close."""

from cuda.core import Device

from gvmm import VirtualMemoryResource

device = Device(0)
device.set_current()
stream = device.create_stream()

mr = VirtualMemoryResource(device)
buffer = mr.allocate(4096, stream=stream)

assert buffer.size >= 4096
assert buffer.memory_resource is mr
assert buffer.device_id == device.device_id
assert mr.device == device
assert buffer.is_device_accessible and not buffer.is_host_accessible

buffer.fill(b"\x2a", stream=stream)
copy = buffer.copy_to(stream=stream)
stream.sync()

copy.close(stream)
buffer.close(stream)
assert buffer.handle == 0 and buffer.size == 0
stream.close()
