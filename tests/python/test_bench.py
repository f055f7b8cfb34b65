"""The benchmarks' own logic: traces, replay, peers in processes of their own, plots. Peers that need a GPU are stood in for by
fakes/, or run on the stand-in driver."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import pickle
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest
from support import MiB

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
FAKES = Path(__file__).parent / "fakes"
if not BENCH.is_dir():
    pytest.skip("bench/ is not part of this tree", allow_module_level=True)
sys.path.insert(0, str(BENCH))

import allocators  # noqa: E402
import lines  # noqa: E402
import traces  # noqa: E402
from traces import Event, TraceError  # noqa: E402

LIBRARY = os.environ.get("GVMM_PEERS_LIBRARY", "")
needs_library = pytest.mark.skipif(not LIBRARY, reason="no GVMM_PEERS_LIBRARY: bench/ was not built")


def run(program: str, *arguments: object, fakes: bool = False, status: int = 0, **environment: str) -> tuple[list[dict[str, Any]], str]:
    """The JSON lines that a program of bench/ printed, and what it said on standard error."""
    path = [str(FAKES)] if fakes else []
    path += [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    settings = {"GVMM_DRIVER": "sim", **environment, "PYTHONPATH": os.pathsep.join(path)}
    command = [sys.executable, str(BENCH / program), *map(str, arguments)]
    dropped = ["GVMM_FAULTS", "GVMM_TRACE"]
    if program == "plot.py":
        dropped.append("LD_PRELOAD")  # a sanitizer of the library's, which the plotting library's exceptions do not get along with
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    done = subprocess.run(command, env={**kept, **settings}, text=True, capture_output=True, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], done.stderr


# ---- lines ----


def test_quantiles_are_samples():
    samples = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert lines.median(samples) == 3.0
    assert lines.quantile(samples, 0.99) == 5.0
    assert lines.quantile(samples, 0.2) == 1.0
    assert lines.quantile([7.0], 0.5) == 7.0


def test_sides_take_turns_forwards_and_backwards():
    order: list[str] = []

    def side(name: str) -> Any:
        return lambda: [float(len(order.append(name) or order))]

    samples = lines.interleave([side("a"), side("b"), side("c")], 3)
    assert "".join(order) == "abccbaabc"
    assert samples == [[1.0, 6.0, 7.0], [2.0, 5.0, 8.0], [3.0, 4.0, 9.0]]


@pytest.mark.parametrize(("text", "size"), [("512", 512), ("64K", 65536), ("2M", 2 * MiB), ("2MiB", 2 * MiB), ("8g", 8 << 30), ("3b", 3)])
def test_sizes(text, size):
    assert lines.size_of(text) == size


@pytest.mark.parametrize("text", ["", "K", "-1", "0", "1.5M", "2T", "M2"])
def test_no_sizes(text):
    with pytest.raises(ValueError, match="is no size"):
        lines.size_of(text)


def test_sizes_for_people():
    assert [lines.size_text(size) for size in (512, 65536, 3 * MiB, 8 << 30, 1 << 42)] == ["512 B", "64 KiB", "3 MiB", "8 GiB", "4096 GiB"]


def test_lines_are_read_and_bad_ones_named(tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_text('{"name":"a"}\n\n{"name":"b"}\n')
    assert [line["name"] for line in lines.read([file])] == ["a", "b"]
    file.write_text('{"name":"a"}\nnonsense\n')
    with pytest.raises(ValueError, match=r"x\.jsonl:2: no JSON"):
        list(lines.read([file]))
    file.write_text("[1]\n")
    with pytest.raises(ValueError, match=r"x\.jsonl:1: not a JSON object"):
        list(lines.read([file]))


def test_machine_is_that_of_the_programs_in_c():
    of = lines.machine(extra=1)
    assert of.keys() >= {"device", "driver", "origin", "date", "gvmm", "commit", "python", "extra"}
    assert lines.is_simulated(of) == (of["origin"] == "simulated driver")
    assert of["driver"] >= 12000


# ---- traces ----

GOOD = """gvmm-trace 1
# a comment

a 0 512 0
a 1 3145728 2
f 0 0
  # an id can come back
a 0 65536 0
f 1 1
"""
EVENTS = [Event(0, 512, 0), Event(1, 3 * MiB, 2), Event(0, 0, 0), Event(0, 65536, 0), Event(1, 0, 1)]


def test_a_trace_is_read_and_written():
    assert list(traces.parse(io.StringIO(GOOD))) == EVENTS
    text = "".join(traces.to_text(EVENTS, ["why"]))
    assert text.startswith("gvmm-trace 1\n# why\na 0 512 0\n")
    assert list(traces.parse(io.StringIO(text))) == EVENTS


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", 1, "empty"),
        ("gvmm-trace 2\n", 1, "the first line is not 'gvmm-trace 1'"),
        ("a 0 1 0\n", 1, "the first line"),
        ("gvmm-trace 1\nx 0 1 0\n", 2, "a line begins with a, f or #"),
        ("gvmm-trace 1\n\n# c\na 0 1\n", 4, "2 fields after 'a', not 3"),
        ("gvmm-trace 1\na 0 1 0 9\n", 2, "4 fields after 'a', not 3"),
        ("gvmm-trace 1\nf\n", 2, "0 fields after 'f', not 2"),
        ("gvmm-trace 1\na 0 0 0\n", 2, "bytes '0': a number from 1"),
        ("gvmm-trace 1\na 0 -5 0\n", 2, "bytes '-5'"),
        ("gvmm-trace 1\na 0 0x10 0\n", 2, "bytes '0x10'"),
        ("gvmm-trace 1\na 0 99999999999999999999 0\n", 2, "bytes '99999999999999999999'"),
        ("gvmm-trace 1\na zero 1 0\n", 2, "id 'zero'"),
        ("gvmm-trace 1\na 0 1 \u0663\n", 2, "stream"),
        ("gvmm-trace 1\na 0 1 0\nf 1 0\n", 3, "1 is freed and not live"),
        ("gvmm-trace 1\na 0 1 0\nf 0 0\nf 0 0\n", 4, "0 is freed and not live"),
        ("gvmm-trace 1\na 0 1 0\na 1 1 0\na 0 1 0\n", 4, "0 is allocated and still live, since line 2"),
    ],
)
def test_what_is_no_trace_is_told_by_line(tmp_path, text, line, what):
    file = tmp_path / "bad.trace"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError) as caught:
        traces.read(file)
    assert str(caught.value).startswith(f"{file}:{line}: ")
    assert what in str(caught.value)


def test_a_binary_file_is_no_trace(tmp_path):
    file = tmp_path / "bad.trace"
    file.write_bytes(b"\x80\x05\xff\xfe")
    with pytest.raises(TraceError, match="no text"):
        traces.read(file)


def test_summary():
    s = traces.summarise(EVENTS)
    assert (s.allocations, s.frees, s.streams, s.largest) == (3, 2, 3, 3 * MiB)
    assert (s.peak_live_bytes, s.peak_live_count, s.left_bytes) == (3 * MiB + 65536, 2, 65536)


def test_ids_and_streams_become_small():
    events = [Event(10, 1, 900), Event(20, 2, 0), Event(10, 0, 900), Event(30, 3, 901), Event(40, 4, 900), Event(20, 0, 901)]
    assert list(traces.renumber(events)) == [
        Event(0, 1, 1),
        Event(1, 2, 0),
        Event(0, 0, 1),
        Event(0, 3, 2),
        Event(2, 4, 1),
        Event(1, 0, 2),
    ]


def test_a_cut_trace_fits_and_is_one(tmp_path):
    events = [event for n in range(500) for event in (Event(n, 512 * (n + 1), 0), *([Event(n - 3, 0, 0)] if n >= 3 else []))]
    kept = traces.cut(events, 1000)
    assert kept == events[: len(kept)]
    traces.write(tmp_path / "cut.trace", kept)
    size = (tmp_path / "cut.trace").stat().st_size
    assert 1000 - 20 < size <= 1000
    assert traces.read(tmp_path / "cut.trace") == kept
    assert traces.cut(events, 1 << 30) == events


# ---- PyTorch's snapshots ----


def entry(action: str, addr: int, size: int, stream: int = 0) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": stream, "frames": [{"filename": "x.py", "line": 1, "name": "f"}]}


def snapshot() -> dict[str, Any]:
    trace = [
        entry("segment_alloc", 0x1000, 2 * MiB),
        entry("free_completed", 0x9000, 100),  # older than the record
        entry("alloc", 0x1000, 512),
        entry("alloc", 0x2000, 1000, stream=0xABC),
        entry("free_requested", 0x1000, 512),
        entry("free_completed", 0x1000, 512),
        entry("alloc", 0x1000, 300),
        entry("free_requested", 0x2000, 1000, stream=0xABC),  # another stream still uses it
        entry("alloc", 0x3000, 7),
        entry("free_completed", 0x2000, 1000, stream=0xABC),
        entry("free_requested", 0x3000, 7),  # and this one until the end
        {"action": "oom", "size": 5, "stream": 0, "device_free": 1, "frames": []},
        entry("snapshot", 0, 0),
    ]
    old = {"size": 4096, "requested_size": 4000, "state": "active_allocated"}
    blocks = [{"size": 0x1000, "requested_size": 300, "state": "active_allocated"}, {"size": 8192, "state": "inactive"}, old]
    segment = {"device": 0, "address": 0x1000, "stream": 0, "blocks": blocks}
    return {"segments": [segment, {**segment, "device": 1}], "device_traces": [trace, []]}


def test_a_snapshot_becomes_a_trace():
    events = traces.from_snapshot(snapshot())
    assert events == [
        Event(0, 100, 0),  # freed in the record, and so there before it
        Event(1, 4000, 0),  # never mentioned in the record, and there at its end
        Event(0, 0, 0),
        Event(0, 512, 0),
        Event(2, 1000, 1),
        Event(0, 0, 0),
        Event(0, 300, 0),
        Event(3, 7, 0),
        Event(2, 0, 1),  # when it was done, not when it was asked for
        Event(3, 0, 0),
    ]
    assert list(traces.parse(traces.to_text(events))) == events


def test_the_other_device_of_a_snapshot():
    assert traces.from_snapshot(snapshot(), 1) == [Event(0, 300, 0), Event(1, 4000, 0)]
    with pytest.raises(TraceError, match="there is no device 2, but 2"):
        traces.from_snapshot(snapshot(), 2)


def test_a_record_without_free_completed():
    trace = [entry("alloc", 1, 10), entry("free_requested", 1, 10), entry("alloc", 1, 20)]
    assert traces.from_snapshot({"device_traces": [trace]}) == [Event(0, 10, 0), Event(0, 0, 0), Event(0, 20, 0)]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda s: s["device_traces"][0].append(entry("alloc", 0x1000, 1)), "entry 13: 0x1000 is allocated and was not freed"),
        (lambda s: s["device_traces"][0][2].pop("addr"), "entry 2: addr is None, not a number"),
        (lambda s: s["device_traces"][0][2].update(size="512"), "entry 2: size is '512'"),
        (lambda s: s["device_traces"][0].__setitem__(3, 5), "entry 3: not a dict"),
    ],
)
def test_a_snapshot_that_makes_no_sense_is_told_by_entry(change, what):
    bad = snapshot()
    change(bad)
    with pytest.raises(TraceError) as caught:
        traces.from_snapshot(bad)
    assert what in str(caught.value)


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch hostile",)


@pytest.mark.parametrize("hostile", [Hostile(), {"device_traces": [[Hostile()]]}, print, Path("x")])
def test_a_pickle_runs_nothing(tmp_path, monkeypatch, hostile):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TraceError, match="only plain containers are read"):
        traces.load_snapshot(io.BytesIO(pickle.dumps(hostile)), "s")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"nonsense", pickle.dumps([1]), pickle.dumps({"segments": []}), pickle.dumps(snapshot())[:-40]])
def test_what_is_no_snapshot(data):
    with pytest.raises(TraceError, match=r"^s: not a memory snapshot"):
        traces.load_snapshot(io.BytesIO(data), "s")


def test_converting_as_a_program(tmp_path):
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(snapshot()))
    run("traces.py", "convert", tmp_path / "s.pickle", tmp_path / "s.trace", "--comment", "made up")
    assert traces.read(tmp_path / "s.trace") == traces.from_snapshot(snapshot())
    assert "# made up\n" in (tmp_path / "s.trace").read_text()
    run("traces.py", "summary", tmp_path / "s.trace")
    _, said = run("traces.py", "convert", tmp_path / "s.pickle", tmp_path / "s.trace", "--most", "60", fakes=True)
    assert "events" in said and (tmp_path / "s.trace").stat().st_size <= 60
    _, said = run("traces.py", "summary", tmp_path / "s.pickle", status=1)
    assert said.endswith("no text\n") and "Traceback" not in said
    _, said = run("traces.py", "convert", tmp_path / "none", tmp_path / "x", status=1)
    assert "No such file" in said and "Traceback" not in said


# ---- replay ----


class Bump(allocators.Allocator):
    """Rounds up to a page; never gives anything back."""

    def __init__(self) -> None:
        super().__init__()
        self.end = 4096
        self.log: list[Any] = []

    def new_stream(self) -> Any:
        return f"stream {len(self._streams)}"

    def malloc(self, size: int, stream: Any) -> int:
        address, self.end = self.end, self.end + -(-size // 4096) * 4096
        self.log.append(("malloc", size, stream))
        return address

    def free(self, address: int, stream: Any) -> None:
        self.log.append(("free", address, stream))

    def physical_peak(self) -> int:
        return self.end - 4096


def test_replay_counts_the_peaks():
    allocator = Bump()
    figures = allocators.replay(EVENTS, allocator)
    assert figures["peak_live_bytes"] == 3 * MiB + 65536
    assert figures["peak_physical_bytes"] == 4096 + 3 * MiB + 65536
    assert figures["ratio"] == pytest.approx((4096 + 3 * MiB + 65536) / (3 * MiB + 65536), rel=1e-5)
    assert figures["operations"] == 6
    # What is left is freed in the end, on the stream it was allocated on; each stream of the trace has its own.
    assert allocator.log[0] == ("malloc", 512, "stream 0")
    assert allocator.log[1] == ("malloc", 3 * MiB, "stream 1")
    assert allocator.log[4] == ("free", 8192, "stream 2")
    assert allocator.log[-1] == ("free", 8192 + 3 * MiB, "stream 0")


def test_replay_finds_memory_that_two_have():
    class Wrong(Bump):
        def malloc(self, size: int, stream: Any) -> int:
            return super().malloc(size, stream) - 4096 * (size == 65536)

    with pytest.raises(allocators.Overlap, match="65536 bytes at 0x301000 reach into 0x2000"):
        allocators.replay(EVENTS, Wrong())


def test_places():
    places = allocators.Places()
    places.add(100, 10)
    places.add(120, 10)
    places.add(110, 10)
    for address, size in ((105, 1), (95, 6), (100, 1), (90, 100), (129, 5)):
        with pytest.raises(allocators.Overlap):
            places.add(address, size)
    places.remove(110)
    places.add(112, 8)


def test_a_trace_of_nothing_has_no_ratio():
    with pytest.raises(TraceError, match="nothing is allocated"):
        allocators.replay([], Bump())


@pytest.fixture
def trace(tmp_path) -> Path:
    path = tmp_path / "small.trace"
    path.write_text(GOOD)
    return path


@pytest.mark.sim
def test_replay_against_everything(trace):
    found, said = run("replay.py", trace, fakes=True)
    kinds = [(kind.name, kind.through) for kind in allocators.ALLOCATORS.values()]
    assert [(line["peer"], line["through"]) for line in found] == kinds
    by_peer = {line["peer"]: line for line in found}
    live = 3 * MiB + 65536
    assert {line["trace"] for line in found} == {"small"}
    assert by_peer["gvmm_buffers"]["peak_physical_bytes"] == 6 * MiB
    assert by_peer["gvmm_buffers"]["ratio"] == pytest.approx(6 * MiB / live, rel=1e-5)
    assert by_peer["cuMemAllocAsync"]["peak_physical_bytes"] >= live
    # The fakes, each in a process with its own settings.
    assert by_peer["torch"]["peak_physical_bytes"] == 40 * MiB
    assert by_peer["torch_expandable"]["peak_physical_bytes"] == 2 * MiB + 4 * MiB
    assert by_peer["torch"]["versions"] == {"torch": "0-fake"}
    assert by_peer["cupy_pool"]["peak_physical_bytes"] == live
    for pool in found[:2]:
        assert "skipped" in pool or (pool["target"] == 1.1 and pool["met"] == (pool["ratio"] <= 1.1))
    assert all(line["machine"]["device"] for line in found)
    assert "torch_expandable" in said


@pytest.mark.sim
@pytest.mark.parametrize(("behaviour", "why"), [("abort", "its process ended with -6: fake torch: aborting"), ("overlap", "Overlap: ")])
def test_a_peer_that_fails_is_a_line(trace, behaviour, why):
    found, _ = run("replay.py", "--allocators", "torch,cupy_pool", trace, fakes=True, FAKE_PEER=behaviour)
    assert found[0]["skipped"].startswith(why)
    assert found[1]["ratio"] == 1.0


@pytest.mark.sim
def test_replay_refuses_what_is_wrong(tmp_path, trace):
    bad = tmp_path / "bad.trace"
    bad.write_text("gvmm-trace 1\nf 0 0\n")
    found, said = run("replay.py", trace, bad, status=1)
    assert found == [] and said == f"{bad}:2: 0 is freed and not live\n"
    _, said = run("replay.py", "--allocators", "mine", trace, status=2)
    assert "no allocator 'mine'; there are gvmm_pool" in said


@pytest.mark.sim
def test_a_peer_that_hangs_is_ended(monkeypatch):
    import workers

    monkeypatch.setattr(workers, "PATIENCE_S", 2.0)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("FAKE_PEER", "hang")
    with contextlib.closing(workers.Worker({"PYTORCH_CUDA_ALLOC_CONF": ""})) as worker:
        worker.send("torch/python", "sample", 512, 1, 1)
        with pytest.raises(workers.Skipped, match="no answer within 2 s"):
            worker.receive()
        worker.send("torch/python", "sample", 512, 1, 1)  # it is not started again
        with pytest.raises(workers.Skipped, match="no answer within 2 s"):
            worker.receive()


# ---- peers ----

IN_C = {"raw", "cuMemAlloc", "cuMemAllocAsync", "gvmm_buffer", "gvmm_warm", "gvmm_warm_outlived"}


@needs_library
@pytest.mark.sim
def test_peers_side_by_side():
    found, said = run("bench_peers.py", "--quick", "--only", "latency", "--sizes", "512,2M", "--samples", 10, "--batch", 5, fakes=True)
    rows = {(line["peer"], line["through"], line["size"]): line for line in found}
    assert len(rows) == len(found)
    for size in (512, 2 * MiB):
        measured = {(peer, through) for peer, through, of in rows if of == size and "skipped" not in rows[peer, through, of]}
        assert measured >= {(peer, "c") for peer in IN_C}
        assert measured >= {(peer, "python") for peer in ("gvmm_buffer", "torch", "torch_expandable", "cupy_pool", "python_calls")}
        # PyTorch by its C++ functions is asked for too, and the fake has none.
        assert rows["torch", "c", size]["skipped"]
        raw = rows["raw", "c", size]["median_us"]
        for peer, through in measured:
            line = rows[peer, through, size]
            assert line["raw_median_us"] == raw > 0
            assert line["n"] == 10 and 1 <= line["rounds"] <= 200
            assert 0 < line["median_us"] <= line["p99_us"]
            ours = rows[line["gvmm"], through, size]
            assert line["gvmm_median_us"] == ours["median_us"]
            assert line["times_gvmm"] == pytest.approx(line["median_us"] / ours["median_us"], rel=1e-3)
            assert line["machine"]["device"] == "gvmm simulated GPU"
    assert rows["torch", "python", 512]["versions"] == {"torch": "0-fake"}
    assert "x gvmm_" in said


@needs_library
@pytest.mark.sim
def test_missing_peers_are_lines_with_reasons():
    found, _ = run("bench_peers.py", "--quick", "--only", "latency", "--sizes", "512", "--peers", "cuMemAlloc,cupy_pool,torch/python")
    if importlib.util.find_spec("cupy") is None:
        assert {line["peer"]: line.get("skipped") for line in found}["cupy_pool"] == "cupy: No module named 'cupy'"
    assert any(line["peer"] == "cuMemAlloc" and line["median_us"] > 0 and line["raw_median_us"] is None for line in found)


@needs_library
@pytest.mark.sim
def test_a_peer_that_dies_costs_nobody_else():
    found, _ = run(
        "bench_peers.py",
        *("--quick", "--only", "latency", "--sizes", "512,64K", "--peers", "torch/python,cupy_pool"),
        fakes=True,
        FAKE_PEER="abort",
    )
    assert [line.get("skipped") for line in found if line["peer"] == "torch"] == ["its process ended with -6: fake torch: aborting"] * 2
    assert [line["size"] for line in found if line["peer"] == "cupy_pool" and line["median_us"] > 0] == [512, 65536]


@needs_library
@pytest.mark.sim
def test_too_large_is_skipped():
    found, _ = run("bench_peers.py", "--quick", "--only", "latency", "--sizes", "4096G", "--peers", "cuMemAlloc,raw,gvmm_buffer")
    reasons = {(line["peer"], line["through"]): line["skipped"] for line in found}
    assert reasons["raw", "c"] == reasons["cuMemAlloc", "c"] == "does not fit in device memory"
    assert reasons["gvmm_buffer", "python"].startswith("CUDAMemoryError: ")


@needs_library
@pytest.mark.sim
def test_growing_beside_copying():
    found, _ = run("bench_peers.py", "--only", "grow", "--grow-to", "32M", "--step", "2M", "--repeat", 3)
    by_way = {line["peer"]: line for line in found}
    assert list(by_way) == ["gvmm", "raw", "cuMemAlloc", "cuMemAllocAsync"]
    for way, line in by_way.items():
        assert line["size"] == 32 * MiB and line["step"] == 2 * MiB and line["n"] == 3
        assert [size for size, _ in line["curve"]] == [(k + 1) * 2 * MiB for k in range(16)]
        us = [us for _, us in line["curve"]]
        assert us == sorted(us) and us[-1] == pytest.approx(line["total_us"], rel=1e-3)
        assert line["times_gvmm"] == pytest.approx(line["total_us"] / by_way["gvmm"]["total_us"], rel=1e-3)
        copies = way in ("cuMemAlloc", "cuMemAllocAsync")
        assert line.get("met") == ((line["times_gvmm"] >= 5) if copies else None)


@needs_library
@pytest.mark.sim
def test_several_threads():
    found, _ = run("bench_peers.py", "--quick", "--only", "threads", "--threads", "1,3", "--peers", "cuMemAllocAsync")
    assert [(line["size"], line["threads"]) for line in found] == [(size, n) for size in (512, 65536, 2 * MiB) for n in (1, 3)]
    for line in found:
        assert line["median_us"] > 0 and line["throughput_times_one_thread"] > 0
        assert line["threads"] > 1 or line["throughput_times_one_thread"] == 1


@pytest.mark.sim
def test_an_unknown_peer_is_refused():
    _, said = run("bench_peers.py", "--peers", "mine", status=2)
    assert "no peer 'mine'; there are raw/c" in said


@needs_library
@pytest.mark.sim
@pytest.mark.skipif("GVMM_TEST_STANDIN" not in os.environ, reason="no stand-in was built")
@pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="no cuda.core")
def test_cuda_core_on_the_standin():
    standin = os.environ["GVMM_TEST_STANDIN"]
    found, _ = run(
        "bench_peers.py",
        *("--quick", "--only", "latency", "--sizes", "2M,512M", "--peers", "raw,gvmm_buffer,cuda_core_pool,cuda_core_vmm"),
        GVMM_DRIVER=f"{standin}/libcuda.so.1",
        LD_LIBRARY_PATH=standin,
    )
    rows = {(line["peer"], line["size"]): line for line in found if "skipped" not in line}
    for size in (2 * MiB, 512 * MiB):
        assert rows["cuda_core_pool", size]["median_us"] > 0
        assert rows["cuda_core_vmm", size]["versions"] == {"cuda.core": "1.2.0"}
    # It gives nothing back, so there is an end to it.
    assert rows["cuda_core_vmm", 512 * MiB]["n"] * 512 * MiB <= (8 << 30) + 10 * 512 * MiB


# ---- plots ----


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="no matplotlib")
def test_plots(tmp_path):
    of = {"device": "a <GPU>", "driver": 13000, "date": "2026-01-02T03:04:05Z", "gvmm": "0.1.0"}
    put = io.StringIO()
    writer = lines.Writer(of, put)
    for size in (512, 2 * MiB, 2 << 30):
        for peer, through in (("gvmm_pool", "c"), ("raw", "c"), ("torch", "python"), ("somebody_new", "python")):
            writer.put(name="alloc_free", peer=peer, through=through, size=size, median_us=1.5)
        writer.put(name="alloc_free", peer="cupy_pool", through="python", size=size, skipped="not there")
    for way, kind in (("gvmm", "gvmm"), ("cuMemAlloc", "copy")):
        curve = [[MiB, 10.0], [2 * MiB, 30.0]]
        writer.put(name="grow", peer=way, kind=kind, size=2 * MiB, step=MiB, total_us=30.0, curve=curve)
    for trace_name in ("one", "two"):
        writer.put(name="replay", trace=trace_name, peer="gvmm_pool", ratio=1.05)
    (tmp_path / "x.jsonl").write_text(put.getvalue())
    run("plot.py", tmp_path / "out", tmp_path / "x.jsonl")
    texts = {name: (tmp_path / "out" / f"{name}.svg").read_text() for name in ("latency", "grow", "fragments")}
    for text in texts.values():
        xml.etree.ElementTree.fromstring(text)
        assert "a &lt;GPU&gt;, CUDA driver 13.0, 2026-01-02, gvmm 0.1.0" in text
    assert "gvmm pool" in texts["latency"] and "PyTorch" in texts["latency"]
    assert "called from C" in texts["latency"] and "called from Python" in texts["latency"]
    assert "somebody_new" in texts["latency"] and "CuPy" not in texts["latency"]
    assert "2 GiB" in texts["latency"] and "cuMemAlloc, copy, free" in texts["grow"] and "1.05" in texts["fragments"]
    run("plot.py", tmp_path / "again", tmp_path / "x.jsonl")  # the same lines, the same file
    assert (tmp_path / "again/latency.svg").read_text() == texts["latency"]


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="no matplotlib")
def test_the_plot_of_growing_from_the_lines_of_bench_core(tmp_path):
    put = io.StringIO()
    writer = lines.Writer({"device": "a GPU", "driver": 13000, "date": "2026-01-02T03:04:05Z", "gvmm": "0.1.0"}, put)
    for size in (512 * MiB, 2 << 30):
        both = {"size": size, "chunks": size // (2 * MiB), "median_us": float(size)}
        writer.put(name="grow_steps", raw_median_us=2.0 * size, **both)
        writer.put(name="grow_steps_vs_copy", raw_median_us=9.0 * size, **both)
    (tmp_path / "x.jsonl").write_text(put.getvalue())
    run("plot.py", tmp_path / "out", tmp_path / "x.jsonl")
    text = (tmp_path / "out/grow.svg").read_text()
    assert "Growing to 2 GiB by 2 MiB" in text and "512 MiB" in text
    for peer, times in (("gvmm, growing in place", 1), ("driver calls by hand", 2), ("cuMemAlloc, copy, free", 9)):
        assert f"{peer}: {times * (2 << 30) / 1e6:.3g} s" in text


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="no matplotlib")
def test_plots_without_lines(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"name": "alloc_free", "skipped": "no"}\n')
    run("plot.py", tmp_path / "out", tmp_path / "x.jsonl")
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "x.jsonl").write_text("no\n")
    _, said = run("plot.py", tmp_path / "out", tmp_path / "x.jsonl", status=1)
    assert "x.jsonl:1: no JSON" in said and "Traceback" not in said


# ---- make bench ----


@pytest.mark.sim
def test_the_runner_keeps_the_lines_and_tells_what_it_skips(tmp_path):
    programs = tmp_path / "build/bench"
    programs.mkdir(parents=True)
    (programs / "bench_good").write_text('#!/bin/sh\necho "{\\"driver\\":\\"$GVMM_DRIVER\\"}"\n')
    (programs / "bench_bad").write_text("#!/bin/sh\nexit 3\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GVMM_", "PYTHON"))}
    command = ["sh", str(ROOT / "tools/bench.sh"), str(programs), "sim", str(tmp_path / "out")]
    done = subprocess.run(command, env={**clean, "PYTHON": "false"}, text=True, capture_output=True)
    assert done.returncode == 1  # one failed, and the others ran all the same
    assert "bench_bad failed" in done.stdout and "skip: the benchmarks in Python: false" in done.stdout
    assert (tmp_path / "out/bench_good-sim.jsonl").read_text() == '{"driver":"sim"}\n'
