"""A device array of unknown length: appended to piece by piece, never copied.

    python examples/growing_array.py                     a GPU, or say GVMM_DRIVER=sim for the simulated driver
    GVMM_DRIVER=sim python examples/growing_array.py
"""

from __future__ import annotations

from typing import Any

import gvmm

MiB = 1 << 20


class GrowingArray:
    """Bytes on a device. The address may change when it grows; views of earlier sizes stay right until they are dropped."""

    def __init__(self, resource: gvmm.VirtualMemoryResource, stream: Any) -> None:
        self._resource = resource
        self._stream = stream
        self._buffer = resource.allocate(0, stream=stream)
        self.length = 0
        self.moves = 0

    @property
    def buffer(self) -> gvmm.VirtualMemoryBuffer:
        return self._buffer

    def append(self, piece: gvmm.Buffer, length: int) -> None:
        """Queues a copy of ``length`` bytes behind what is there."""
        end = self.length + length
        if end > self._buffer.size:
            larger = self._resource.modify_allocation(self._buffer, max(end, 2 * self._buffer.size))
            self.moves += bool(self._buffer.size) and larger.handle != self._buffer.handle
            self._buffer = larger  # the old one goes when nobody looks at it any more: nothing is freed that larger shows
        target = gvmm.Buffer.from_handle(self._buffer.handle + self.length, length, owner=self._buffer)
        source = gvmm.Buffer.from_handle(piece.handle, length, owner=piece)
        source.copy_to(target, stream=self._stream)
        self.length = end


def main() -> None:
    resource = gvmm.VirtualMemoryResource(0)
    with gvmm.Stream() as stream, resource.allocate(3 * MiB, stream=stream) as piece:
        array = GrowingArray(resource, stream)
        for n in range(40):
            piece.fill(n, stream=stream)
            array.append(piece, 3 * MiB)
        stream.sync()
        figures = gvmm.stats()
        print(f"{array.length >> 20} MiB in {len(array.buffer.segments())} pieces at {array.buffer!r}")
        print(f"{figures.grows_in_place} grows in place, {figures.grows_moved} moved, nothing copied")
        array.buffer.close()


if __name__ == "__main__":
    main()
