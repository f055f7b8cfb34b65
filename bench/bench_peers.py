"""gvmm beside other ways to get device memory, in one run. JSON lines on standard output, a table on standard error.

    python bench/bench_peers.py                    the machine's GPU, whatever peers are installed
    GVMM_DRIVER=sim python bench/bench_peers.py    the simulated driver: the logic, not the figures

Groups: `latency`, allocate and free in a tight loop over size; `threads`, the same from 1 to 8 threads; `grow`, growing by small
steps beside allocate, copy, free. bench/README.md says what the lines hold and how they are measured.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from typing import Any

import lines
from lines import MiB, median, quantile, rounded, size_of, size_text
from peers import PEERS
from workers import Skipped, Staff

SIZES = "512,4K,64K,512K,2M,16M,128M,512M,2G"
SAMPLE_US = 20.0  # a sample lasts at least this long, or has this many rounds
MOST_ROUNDS = 200
WAYS = {"gvmm": "gvmm", "raw": "raw", "cuMemAlloc": "copy", "cuMemAllocAsync": "copy"}
FASTER_THAN_COPYING = 5.0
Samples = dict[str, list[float]]


class Run:
    """What one call of the program does."""

    def __init__(self, options: argparse.Namespace, staff: Staff, out: lines.Writer) -> None:
        self.peers: list[str] = options.peers
        self.samples: int = options.samples
        self.batch: int = options.batch
        self.window_us = 1000 if options.quick else 20000
        self.staff = staff
        self.out = out

    def skip(self, name: str, peer: str, why: str, **more: Any) -> None:
        peer, _, through = peer.partition("/")
        self.out.put(name=name, peer=peer, through=through or "c", **more, skipped=why)
        print(f"{name:18} {peer:18} {through or 'c':6} skipped: {why}", file=sys.stderr)

    # ---- allocate and free ----

    def groups(self, size: int) -> dict[str, int]:
        """How many rounds of each peer make a sample; those that cannot be measured are told and left out. Warms them up."""
        out = {}
        for peer in self.peers:
            try:
                few: list[float] = self.staff.ask(peer, "sample", size, 1, 5)
                group = max(1, min(MOST_ROUNDS, math.ceil(SAMPLE_US / max(median(few), 0.01))))
                self.staff.ask(peer, "sample", size, group, self.batch)
                out[peer] = group
            except Skipped as why:
                self.skip("alloc_free", peer, str(why), size=size)
        return out

    def measure(self, size: int) -> tuple[Samples, dict[str, int]]:
        """The peers take turns, forwards and then backwards."""
        groups = self.groups(size)
        lost: dict[str, str] = {}

        def turn(peer: str) -> list[float]:
            most = PEERS[peer].most
            if peer in lost or (most and len(taken[peer]) * groups[peer] * size >= most):
                return []
            try:
                got: list[float] = self.staff.ask(peer, "sample", size, groups[peer], self.batch)
            except Skipped as why:
                lost[peer] = str(why)
                return []
            taken[peer] += got
            return got

        taken: Samples = {peer: [] for peer in groups}
        lines.interleave([functools.partial(turn, peer) for peer in groups], math.ceil(self.samples / self.batch))
        for peer, why in lost.items():
            self.skip("alloc_free", peer, why, size=size)
        for peer in groups:
            if PEERS[peer].most:
                self.staff.of(peer).close()  # what it leaked goes with the process
        return {peer: got for peer, got in taken.items() if got and peer not in lost}, groups

    def latency(self, size: int) -> None:
        samples, groups = self.measure(size)
        medians = {peer: median(got) for peer, got in samples.items()}
        raw = medians.get("raw/c")
        for peer, got in samples.items():
            name, _, through = peer.partition("/")
            ours = next((f"gvmm_{kind}" for kind in ("pool", "buffer") if f"gvmm_{kind}/{through}" in medians), None)
            beside = medians[f"{ours}/{through}"] if ours else None
            line = self.out.put(
                name="alloc_free",
                peer=name,
                through=through,
                size=size,
                n=len(got),
                rounds=groups[peer],
                median_us=rounded(medians[peer]),
                p99_us=rounded(quantile(got, 0.99)),
                raw_median_us=rounded(raw),
                gvmm=ours,
                gvmm_median_us=rounded(beside),
                times_gvmm=rounded(medians[peer] / beside) if beside else None,
                versions=self.staff.versions[peer],
            )
            show(line)

    # ---- the same from several threads ----

    def threads(self, size: int, counts: list[int]) -> None:
        """Each run lasts `window_us`."""
        for peer in self.peers:
            if not hasattr(PEERS[peer], "threads"):
                continue
            alone = None
            for count in counts:
                try:
                    took = [self.staff.ask(peer, "threads", size, self.window_us, count) for _ in range(5)]
                except Skipped as why:
                    self.skip("alloc_free_threads", peer, str(why), size=size, threads=count)
                    break
                us = median(took)
                alone = alone or us
                name, _, through = peer.partition("/")
                self.out.put(
                    name="alloc_free_threads",
                    peer=name,
                    through=through,
                    size=size,
                    threads=count,
                    n=len(took),
                    median_us=rounded(us),
                    throughput_times_one_thread=rounded(alone / us),
                )
                print(f"threads {name:18} {size_text(size):>8} {count:3} {us:9.3f} us  x {alone / us:.2f}", file=sys.stderr)

    # ---- growing ----

    def grow(self, total: int, step: int, repeat: int) -> None:
        """Each way `repeat` times, forwards and then backwards."""
        steps = total // step
        taken: dict[str, list[list[float]]] = {way: [] for way in WAYS}
        lost: dict[str, str] = {}

        def once(way: str) -> list[float]:
            if way not in lost:
                try:
                    taken[way].append(self.staff.ask("gvmm_buffer/c", "grow", way, step, steps))
                except Skipped as why:
                    lost[way] = str(why)
            return []

        lines.interleave([functools.partial(once, way) for way in WAYS], repeat)
        ours = median([sum(us) for us in taken["gvmm"]]) if "gvmm" not in lost else None
        for way, kind in WAYS.items():
            if way in lost:
                self.skip("grow", way, lost[way], size=total, step=step)
                continue
            totals = [sum(us) for us in taken[way]]
            times = median(totals) / ours if ours else None
            extra: dict[str, Any] = {}
            if kind == "copy":
                extra = {"target": FASTER_THAN_COPYING, "met": times is not None and times >= FASTER_THAN_COPYING}
            each = [us for run in taken[way] for us in run[1:]] or totals
            self.out.put(
                name="grow",
                peer=way,
                through="c",
                kind=kind,
                size=total,
                step=step,
                n=len(totals),
                total_us=rounded(median(totals)),
                totals_us=[rounded(us) for us in totals],
                step_median_us=rounded(median(each)),
                step_p99_us=rounded(quantile(each, 0.99)),
                gvmm_total_us=rounded(ours),
                times_gvmm=rounded(times),
                **extra,
                curve=curve(min(taken[way], key=lambda us: abs(sum(us) - median(totals))), step),
            )
            text = f"  {times:8.2f} x gvmm" if times else ""
            print(f"grow to {size_text(total)} by {size_text(step)}: {way:16} {median(totals) / 1000:11.2f} ms{text}", file=sys.stderr)


def curve(us: list[float], step: int, points: int = 64) -> list[list[float]]:
    """[bytes reached, microseconds so far] at so many places along the way."""
    every = max(len(us) // points, 1)
    so_far, out = 0.0, []
    for k, one in enumerate(us, 1):
        so_far += one
        if k % every == 0 or k == len(us):
            out.append([k * step, rounded(so_far) or 0.0])
    return out


def show(line: lines.Line) -> None:
    raw = f"{line['median_us'] / line['raw_median_us']:9.3f}" if line["raw_median_us"] else "        -"
    ours = f"{line['times_gvmm']:9.2f} x {line['gvmm']}" if line["times_gvmm"] else ""
    print(
        f"{size_text(line['size']):>8} {line['peer']:18} {line['through']:6} {line['n']:5} {line['median_us']:10.3f} "
        f"{line['p99_us']:10.3f} {raw} {ours}",
        file=sys.stderr,
    )


def sizes(text: str) -> list[int]:
    return [size_of(one) for one in text.split(",")]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", choices=("latency", "threads", "grow"), help="one group")
    p.add_argument("--quick", action="store_true", help="few samples, a small growth")
    p.add_argument("--sizes", type=sizes, default=sizes(SIZES), metavar="LIST", help=f"sizes to allocate ({SIZES})")
    p.add_argument("--peers", metavar="LIST", help=f"which, all if not given: {', '.join(PEERS)}")
    p.add_argument("--samples", type=int, help="of each peer at each size (200)")
    p.add_argument("--batch", type=int, default=10, help="samples of a peer before it is the next one's turn")
    p.add_argument("--threads", type=lambda text: [int(one) for one in text.split(",")], default=[1, 2, 4, 8], metavar="LIST")
    p.add_argument("--grow-to", type=size_of, metavar="SIZE", help="8G; 64M with --quick or when simulated")
    p.add_argument("--step", type=size_of, default=2 * MiB, metavar="SIZE", help="what is grown by (2M)")
    p.add_argument("--repeat", type=int, default=2, help="how often each way to grow runs")
    options = p.parse_args(arguments)
    names = list(PEERS) if options.peers is None else options.peers.split(",")
    for name in names:
        if not any(name in (peer, peer.split("/")[0]) for peer in PEERS):
            p.error(f"no peer {name!r}; there are {', '.join(PEERS)}")
    options.peers = [peer for peer in PEERS if peer in names or peer.split("/")[0] in names]
    options.samples = options.samples or (20 if options.quick else 200)
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    machine = lines.machine()
    small = options.quick or lines.is_simulated(machine)
    with Staff() as staff:
        run = Run(options, staff, lines.Writer(machine))
        staff.start(options.peers)
        if options.only in (None, "latency"):
            print("    size peer               through    n  median us     p99 us     / raw", file=sys.stderr)
            for size in options.sizes:
                run.latency(size)
        if options.only in (None, "threads"):
            for size in (512, 64 << 10, 2 * MiB):
                run.threads(size, options.threads)
        if options.only in (None, "grow"):
            run.grow(options.grow_to or (64 * MiB if small else 8 << 30), options.step, options.repeat)


if __name__ == "__main__":
    main()
