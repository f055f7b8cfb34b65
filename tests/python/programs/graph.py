"""A graph that uses a buffer keeps its memory."""

from cuda.core import Device

from gvmm import VirtualMemoryResource

device = Device(0)
device.set_current()
stream = device.create_stream()
mr = VirtualMemoryResource(device)
buffer = mr.allocate(1 << 20, stream=stream)

builder = stream.create_graph_builder()
builder.begin_building()
buffer.fill(1, stream=builder)
try:
    buffer.close()  # its stream is capturing
except RuntimeError as error:
    assert "capturing" in str(error)
graph = builder.end_building().complete()
buffer.close()  # the graph holds the memory

graph.launch(stream)
stream.sync()
graph.close()
builder.close()
stream.close()
