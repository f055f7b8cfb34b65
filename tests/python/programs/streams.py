"""Which stream a close waits for."""

from cuda.core import Device

from gvmm import VirtualMemoryResource

device = Device(0)
device.set_current()
producer, consumer = device.create_stream(), device.create_stream()
mr = VirtualMemoryResource(device)

first = mr.allocate(1 << 21, stream=producer)
second = mr.modify_allocation(first, 1 << 22)  # records the producer, too
second.set_deallocation_stream(consumer)
first.fill(1, stream=producer)
producer.sync()
second.fill(2, stream=consumer)
first.close()
second.close()

third = mr.allocate(1 << 21)
third.fill(3, stream=producer)
third.close(producer)
producer.close()
consumer.close()
