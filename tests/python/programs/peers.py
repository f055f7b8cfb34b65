"""Memory that other devices may read."""

from cuda.core import Device

from gvmm import VirtualMemoryResource, VirtualMemoryResourceOptions

owner, reader = Device(0), Device(1)
owner.set_current()

mr = VirtualMemoryResource(owner, VirtualMemoryResourceOptions(peers=(reader.device_id,), peer_access="r"))
with mr.allocate(1024) as buffer:
    assert buffer.device_id == owner.device_id
    with mr.modify_allocation(buffer, 16 << 20) as larger:
        assert larger.size == 16 << 20
