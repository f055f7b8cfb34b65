"""torch.distributed over memory that grows: all-reduce over a tensor, grow it in place, all-reduce over the whole, put the memory to sleep
and wake it, all-reduce again. Needs PyTorch and two GPUs.

    python examples/torch_allreduce.py
"""

from __future__ import annotations

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing

import gvmm

MiB = 1 << 20


def all_reduce(buffer: gvmm.Buffer, rank: int, size: int, step: int) -> int:
    """Fills the whole buffer with numbers of this rank; each must become the sum of all ranks'. Returns how many there were."""
    values = torch.from_dlpack(buffer).view(torch.int32)
    count = torch.arange(values.numel(), dtype=torch.int32, device=values.device)
    torch.add(count, step * (rank + 1), out=values)
    dist.all_reduce(values)
    wanted = count * size + step * sum(range(1, size + 1))
    assert torch.equal(values, wanted), f"rank {rank}, step {step}: not the sum of all ranks"
    return values.numel()


def run(rank: int, size: int, meeting_point: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{meeting_point}", rank=rank, world_size=size)

    # Every rank makes its memory with the same options, also where some rank lacks something.
    everyone: list[gvmm.Probe | None] = [None] * size
    dist.all_gather_object(everyone, gvmm.probe(rank))
    common = gvmm.probe_common(everyone)
    config = common.options({"capacity": 256 * MiB, "gpu_direct_rdma": True, "optional": "rdma"})

    resource = gvmm.VirtualMemoryResource(rank, config)
    stream = torch.cuda.current_stream()  # which waits for what torch.distributed does on its own
    buffer = resource.allocate(4 * MiB, stream=stream)
    address = buffer.handle
    counts = [all_reduce(buffer, rank, size, 1)]

    larger = resource.modify_allocation(buffer, 64 * MiB)
    buffer.close(stream)
    assert larger.handle == address, "the tensor's address changed"
    counts.append(all_reduce(larger, rank, size, 2))

    larger.evict(contents="drop")
    larger.restore()
    counts.append(all_reduce(larger, rank, size, 3))

    larger.close(stream)
    dist.destroy_process_group()
    if rank == 0:
        print(f"{size} ranks: sums of {', '.join(map(str, counts))} values")


def main() -> None:
    size = torch.cuda.device_count()
    if size < 2:
        print("needs two GPUs")
        sys.exit(77)
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast: a program that dies with it can take other GPUs along
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, (size, os.path.join(folder, "ranks")), size)


if __name__ == "__main__":
    main()
