"""Several devices: ranks that agree, peers, stripes and copies between them, torch.distributed."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from support import ON_GPU, MiB, access_of, is_filled, run_python

import gvmm
from gvmm import VirtualMemoryResource

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_allreduce.py"
G = 2 * MiB


def second_device() -> bool:
    return 1 in gvmm.probe(0).peers


# ---- ranks that agree ----


def test_one_rank_has_what_it_has():
    mine = gvmm.probe()
    common = gvmm.probe_common([mine])
    assert dict(common) == dict(mine)
    assert (common.memory, common.reservable, common.granularity) == (mine.memory, mine.reservable, mine.granularity)
    assert common.peers == (0, *mine.peers) and common.numa_nodes == mine.numa_nodes
    assert common.ranks == 1 and set(common.lacking) == {name for name in mine if not mine[name]}
    assert isinstance(common, gvmm.Probe)


def test_probes_travel():
    mine = gvmm.probe()
    copy = pickle.loads(pickle.dumps(mine))
    assert dict(copy) == dict(mine) and copy.record == mine.record and copy.memory == mine.memory
    assert "record" not in repr(mine)
    assert dict(gvmm.probe_common([copy, mine.record])) == dict(mine)
    common = gvmm.probe_common(iter([mine, copy]))
    assert pickle.loads(pickle.dumps(common)).options({"tag": 3}).tag == 3


def test_bad_records():
    record = gvmm.probe().record
    for bad in ([], [b""], [record[:-1]], [record, b"x" * len(record)], [record + record[1:]]):
        with pytest.raises(ValueError):
            gvmm.probe_common(bad)
    for bad in ([None], None, [3]):
        with pytest.raises((TypeError, AttributeError)):
            gvmm.probe_common(bad)


OTHER_MACHINE = """
import sys
import gvmm
gvmm.simulate(devices=1, memory=4 << 30, granularity=4 << 20)
sys.stdout.write(gvmm.probe(0).record.hex())
"""


@pytest.mark.sim
def test_ranks_on_different_machines():
    theirs = bytes.fromhex(run_python(OTHER_MACHINE).stdout)
    common = gvmm.probe_common([gvmm.probe(0), theirs])
    assert (common.ranks, common.memory, common.granularity, common.peers) == (2, 4 << 30, 4 * MiB, (0,))
    assert common["memory"] and not common["peers"] and not common["fabric"]
    assert common.lacking["peers"] == (1, 1) and common.lacking["fabric"] == (2, 0)
    assert "no other device" in common["peers"].advice
    assert "optional='fabric'" in common["fabric"].advice

    wanted = {"handle_type": "fabric", "gpu_direct_rdma": True, "peers": (0, 1), "capacity": "all", "chunk_size": G, "tag": 7}
    config = common.options({**wanted, "optional": ("fabric", "rdma", "peers")})
    assert (config.handle_type, config.gpu_direct_rdma, config.peers, config.optional) == ("posix_fd", True, (0,), ())
    assert (config.capacity, config.chunk_size, config.tag) == (4 << 30, 4 * MiB, 7)
    resource = VirtualMemoryResource(0, config)
    assert resource.config == config
    with pytest.raises(gvmm.CUDAError, match="2 of 2 ranks lack fabric, the first is rank 0"):
        common.options({**wanted, "optional": ("rdma", "peers")})
    with pytest.raises(gvmm.CUDAError, match="peers: device 1 does not reach every rank's memory"):
        common.options({"peers": 1})
    with pytest.raises(ValueError, match="host"):
        common.options({"location_type": "host"})
    assert common.options() == gvmm.VirtualMemoryResourceOptions()


# ---- devices ----


def test_copies_between_devices(new_stream):
    if not second_device():
        pytest.skip("hardware: one device")
    stream = new_stream()
    first, second = (VirtualMemoryResource(n, {"peers": (0, 1), "chunk_size": G}) for n in (0, 1))
    a, b = first.allocate(3 * G, stream=stream), second.allocate(3 * G)
    assert access_of(a.handle, 1) == access_of(b.handle, 0) == 3
    a.fill(7, stream=stream)
    a.copy_to(b, stream=stream)
    b.copy_to(a, stream=stream)
    stream.sync()
    assert is_filled(a, 7) and is_filled(b, 7)


def test_grant_later():
    if not second_device():
        pytest.skip("hardware: one device")
    resource = VirtualMemoryResource(0, {"capacity": 8 * G})
    buffer = resource.allocate(G)
    assert access_of(buffer.handle, 1) == 0
    buffer.set_access(1, "rw")
    buffer.evict()
    buffer.restore()
    assert access_of(buffer.handle, 1) == 3
    larger = resource.modify_allocation(buffer, 2 * G)
    assert (larger.get_access(1), larger.get_access(0)) == (None, "rw")


# ---- torch.distributed ----


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch")
@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_example_torch_allreduce():
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("hardware: one device")
    package = str(Path(gvmm.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([package, os.environ.get("PYTHONPATH", "")]), "NCCL_NVLS_ENABLE": "0"}
    result = subprocess.run(
        [sys.executable, str(EXAMPLE)], env=environment, text=True, capture_output=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    size = torch.cuda.device_count()
    assert f"{size} ranks: sums of 1048576, 16777216, 16777216 values" in result.stdout
