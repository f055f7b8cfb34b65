"""Replays allocation traces: how much device memory does an allocator hold at most, beside the most bytes that were live?

    python bench/replay.py FILE.trace...                    every allocator that is on the machine
    python bench/replay.py --allocators gvmm_pool,torch FILE.trace
    GVMM_DRIVER=sim python bench/replay.py FILE.trace       the simulated driver

JSON lines on standard output, a table on standard error. docs/traces.md says what is measured and what is not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import lines
import traces
from allocators import ALLOCATORS, GvmmPool, GvmmPoolInC
from lines import size_text
from workers import Skipped, Worker

MOST_RATIO = 1.10  # peak physical over peak live bytes, of gvmm's pool


def replay_all(paths: list[str], names: list[str], out: lines.Writer) -> bool:
    """Puts a line for each trace and allocator. False if gvmm's pool misses its target."""
    good = True
    print(f"{'trace':16} {'allocator':18} {'live':>10} {'physical':>10}   ratio   malloc us   p99    free us   p99", file=sys.stderr)
    for path in paths:
        for name in names:
            kind = ALLOCATORS[name]
            line = {"name": "replay", "trace": Path(path).stem, "peer": kind.name, "through": kind.through}
            worker = Worker(kind.settings)
            worker.send(f"{name}/replay", "replay", path)
            try:
                answer = worker.receive()
            except Skipped as why:
                out.put(**line, skipped=str(why))
                print(f"{line['trace']:16} {name:18} skipped: {why}", file=sys.stderr)
                continue
            finally:
                worker.close()
            figures = answer["value"]
            target = {}
            if kind is GvmmPool or kind is GvmmPoolInC:
                target = {"target": MOST_RATIO, "met": figures["ratio"] <= MOST_RATIO}
                good = good and target["met"]
            out.put(**line, **figures, **target, versions=answer["versions"])
            print(
                f"{line['trace']:16} {name:18} {size_text(figures['peak_live_bytes']):>10} "
                f"{size_text(figures['peak_physical_bytes']):>10} {figures['ratio']:7.3f} "
                f"{figures['malloc_median_us']:11.2f} {figures['malloc_p99_us']:6.1f} {figures['free_median_us']:9.2f} "
                f"{figures['free_p99_us']:6.1f}{'' if target.get('met', True) else '  MISSED'}",
                file=sys.stderr,
            )
    return good


def main(arguments: list[str] | None = None) -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("traces", nargs="+", metavar="FILE")
    p.add_argument("--allocators", metavar="LIST", help=f"which, all if not given: {', '.join(ALLOCATORS)}")
    p.add_argument("--check", action="store_true", help="exit status 1 if gvmm's pool holds more than its target")
    options = p.parse_args(arguments)
    names = list(ALLOCATORS) if options.allocators is None else options.allocators.split(",")
    for name in names:
        if name not in ALLOCATORS:
            p.error(f"no allocator {name!r}; there are {', '.join(ALLOCATORS)}")
    try:
        for path in options.traces:
            traces.read(path)
    except (traces.TraceError, OSError) as error:
        sys.exit(str(error))
    if not replay_all(options.traces, names, lines.Writer(lines.machine())) and options.check:
        sys.exit(1)


if __name__ == "__main__":
    main()
