"""Plots from the benchmarks' JSON lines.

    python bench/plot.py OUT LINES.jsonl...

OUT/latency.svg    allocate and free over size, every peer                       (bench_peers.py, lines alloc_free)
OUT/grow.svg       growing by small steps, beside allocate, copy, free           (bench_peers.py, lines grow)
OUT/fragments.svg  peak physical over peak live memory, by trace and allocator   (replay.py, lines replay)

A plot whose lines are not there is left out. Of several lines of the same thing the last counts. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lines
from lines import Line, size_text

try:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt
except ImportError as missing:
    sys.exit(f"skip: plots: {missing} (pip install -r bench/requirements.txt)")

OURS = "gvmm"
NAMES = {
    "raw": "driver calls by hand",
    "gvmm_buffer": "gvmm buffer",
    "gvmm_warm": "gvmm buffer, memory kept",
    "gvmm_warm_outlived": "gvmm buffer, memory kept, streams outlive it",
    "gvmm_pool": "gvmm pool",
    "gvmm_pool_outlived": "gvmm pool, streams outlive it",
    "gvmm_buffers": "gvmm, a buffer each",
    "gvmm": "gvmm, growing in place",
    "torch": "PyTorch",
    "torch_expandable": "PyTorch, expandable segments",
    "cupy_pool": "CuPy's pool",
    "cuda_core_pool": "cuda.core DeviceMemoryResource",
    "cuda_core_vmm": "cuda.core VirtualMemoryResource",
    "python_calls": "two Python calls that do nothing",
}
# The same colour for the same peer in every plot; gvmm's are strong, the raw calls grey.
COLOURS = {
    "gvmm": "#d62728",
    "gvmm_pool": "#d62728",
    "gvmm_pool_outlived": "#800000",
    "gvmm_warm": "#ffbb33",
    "gvmm_warm_outlived": "#b8860b",
    "gvmm_buffer": "#ff7f0e",
    "gvmm_buffers": "#ff7f0e",
    "raw": "#7f7f7f",
    "python_calls": "#c7c7c7",
    "cuMemAlloc": "#1f77b4",
    "cuMemAllocAsync": "#17becf",
    "torch": "#9467bd",
    "torch_expandable": "#e377c2",
    "cupy_pool": "#2ca02c",
    "cuda_core_pool": "#8c564b",
    "cuda_core_vmm": "#bcbd22",
}
SETTINGS: dict[str, Any] = {
    "svg.hashsalt": "gvmm",  # the same lines give the same file
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def label(peer: str) -> str:
    return NAMES.get(peer, peer)


def is_ours(peer: str) -> bool:
    return peer.startswith(OURS)


def caption(of: Line) -> str:
    m = of["machine"]
    driver = f"{m['driver'] // 1000}.{m['driver'] % 1000 // 10}" if isinstance(m.get("driver"), int) else "?"
    return f"{m.get('device', '?')}, CUDA driver {driver}, {str(m.get('date', '?'))[:10]}, gvmm {m.get('gvmm', '?')}"


def latest(all_lines: Iterable[Line], name: str, *keys: str) -> list[Line]:
    """Of the lines of that name with figures the last for each key."""
    found = {tuple(line.get(key) for key in keys): line for line in all_lines if line.get("name") == name and "skipped" not in line}
    return list(found.values())


def byte_axis(axis: Any, ticks: list[int]) -> None:
    axis.set_ticks(ticks, [size_text(tick) for tick in ticks])
    axis.set_minor_locator(matplotlib.ticker.NullLocator())


def finish(figure: Any, path: Path, of: Line) -> None:
    figure.text(0.99, 0.005, caption(of), ha="right", va="bottom", fontsize=7, color="#666666")
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def latency(all_lines: list[Line], path: Path) -> bool:
    rows = latest(all_lines, "alloc_free", "peer", "through", "size")
    if not rows:
        return False
    figure, axes = plt.subplots(figsize=(8, 5))
    for peer, through in dict.fromkeys((row["peer"], row["through"]) for row in rows):
        points = sorted((row["size"], row["median_us"]) for row in rows if (row["peer"], row["through"]) == (peer, through))
        axes.plot(
            *zip(*points, strict=True),
            marker="o" if is_ours(peer) else ".",
            linestyle="-" if through == "c" else "--",
            linewidth=2.2 if is_ours(peer) else 1.2,
            color=COLOURS.get(peer),
            label=label(peer) + ("" if through == "c" else " (through Python)"),
            zorder=3 if is_ours(peer) else 2,
        )
    axes.set(xscale="log", yscale="log", ylabel="microseconds, median", title="Allocate and free, in a tight loop")
    byte_axis(axes.xaxis, sorted({row["size"] for row in rows}))
    axes.tick_params(axis="x", labelrotation=30)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    finish(figure, path, rows[-1])
    return True


def grow(all_lines: list[Line], path: Path) -> bool:
    rows = latest(all_lines, "grow", "peer", "size", "step")
    if not rows:
        return False
    largest = max(row["size"] for row in rows)
    rows = [row for row in rows if row["size"] == largest]
    figure, axes = plt.subplots(figsize=(6.5, 4.5))
    for row in rows:
        copies = row.get("kind") == "copy"
        reached, us = zip(*row["curve"], strict=True)
        axes.plot(
            [size / (1 << 30) for size in reached],
            [one / 1e6 for one in us],
            linestyle="--" if row["peer"] == "raw" else "-",
            linewidth=2.2 if is_ours(row["peer"]) else 1.4,
            color=COLOURS.get(row["peer"]),
            label=label(row["peer"]) + (", copy, free" if copies else "") + f": {row['total_us'] / 1e6:.3g} s",
        )
    axes.set(
        yscale="log",
        xlabel="GiB reached",
        ylabel="seconds so far",
        title=f"Growing to {size_text(largest)} by {size_text(rows[0]['step'])}",
    )
    axes.legend(fontsize=8)
    finish(figure, path, rows[-1])
    return True


def fragments(all_lines: list[Line], path: Path) -> bool:
    rows = latest(all_lines, "replay", "trace", "peer")
    if not rows:
        return False
    names = list(dict.fromkeys(row["trace"] for row in rows))
    peers = list(dict.fromkeys(row["peer"] for row in rows))
    figure, axes = plt.subplots(figsize=(max(8, 3 + 0.35 * len(names) * len(peers)), 4.5))
    width = 0.8 / len(peers)
    for k, peer in enumerate(peers):
        ratios = {row["trace"]: row["ratio"] for row in rows if row["peer"] == peer}
        places = [n + (k - (len(peers) - 1) / 2) * width for n, name in enumerate(names) if name in ratios]
        bars = axes.bar(places, [ratios[name] for name in names if name in ratios], width, color=COLOURS.get(peer), label=label(peer))
        axes.bar_label(bars, fmt="%.2f", fontsize=6)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(ylabel="peak physical / peak live bytes", title="Memory held while replaying allocation traces")
    axes.set_xticks(range(len(names)), names)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    finish(figure, path, rows[-1])
    return True


PLOTS = {"latency": latency, "grow": grow, "fragments": fragments}


def main(arguments: list[str] | None = None) -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", type=Path, metavar="OUT")
    p.add_argument("lines", nargs="+", metavar="LINES")
    options = p.parse_args(arguments)
    try:
        all_lines = list(lines.read(options.lines))
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    options.out.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(SETTINGS):
        for name, plot in PLOTS.items():
            path = options.out / f"{name}.svg"
            print(path if plot(all_lines, path) else f"{name}: no lines for it")


if __name__ == "__main__":
    main()
