"""A PyTorch tensor over memory that grows: each longer tensor shows the bytes of the shorter ones. Needs a GPU and PyTorch.

    python examples/torch_growing.py
"""

from __future__ import annotations

import torch

import gvmm


def tensor_over(buffer: gvmm.Buffer, dtype: torch.dtype) -> torch.Tensor:
    """The tensor holds the memory: the buffer may be closed."""
    return torch.from_dlpack(buffer).view(dtype)


def main() -> None:
    resource = gvmm.VirtualMemoryResource(0)
    stream = torch.cuda.current_stream()
    buffer = resource.allocate(2 << 20, stream=stream)
    values = tensor_over(buffer, torch.float32)
    values.fill_(1)
    for _ in range(6):
        filled = values.numel()
        longer = resource.modify_allocation(buffer, 2 * buffer.size)
        values = tensor_over(longer, torch.float32)
        values[filled:] = 1
        buffer.close(stream)
        buffer = longer
    print(f"sum of {values.numel()} values: {values.sum().item():.0f}")
    buffer.close(stream)


if __name__ == "__main__":
    main()
