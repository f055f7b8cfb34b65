"""Host memory, shown to numpy."""

import numpy as np
from cuda.core import Device

from gvmm import VirtualMemoryResource, VirtualMemoryResourceOptions

device = Device(0)
mr = VirtualMemoryResource(device, config=VirtualMemoryResourceOptions(location_type="host", handle_type=None))
assert mr.device is None and mr.device_id == -1
assert mr.is_host_accessible and not mr.is_device_accessible

buffer = mr.allocate(1 << 20)
array = np.from_dlpack(buffer)
array[:] = 3
larger = mr.modify_allocation(buffer, 8 << 20)
assert int(np.from_dlpack(larger)[: 1 << 20].sum()) == 3 << 20
buffer.close()
larger.close()
assert array[0] == 3  # the array holds its memory
del array
