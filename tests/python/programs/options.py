"""Policy in options, and another policy for one chunk."""

from cuda.core import Device

from gvmm import VirtualMemoryResource, VirtualMemoryResourceOptions

device = Device(0)
device.set_current()

options = VirtualMemoryResourceOptions(
    allocation_type="pinned",
    location_type="device",
    handle_type="posix_fd",
    granularity="recommended",
    gpu_direct_rdma=False,
    addr_hint=0,
    addr_align=None,
    peers=(),
    self_access="rw",
    peer_access="rw",
)
mr = VirtualMemoryResource(device, config=options)
assert mr.config == options

buffer = mr.allocate(2 * 1024 * 1024)
read_only = VirtualMemoryResourceOptions(self_access="r")
larger = mr.modify_allocation(buffer, 8 * 1024 * 1024, config=read_only)
assert larger.size == 8 * 1024 * 1024
assert mr.config == options
larger.close()
buffer.close()
