"""Plots from the benchmarks' JSON lines.

    python bench/plot.py OUT LINES.jsonl...

OUT/latency.svg    allocate and free over size, every peer                       (bench_peers.py, lines alloc_free)
OUT/grow.svg       growing by small steps, beside allocate, copy, free           (bench_peers.py, lines grow; else bench_core, grow_steps)
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
WAYS = {"c": "C", "python": "Python"}
GROW_TITLE = "Growing to {} by {}, time so far: lower is better"
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


def plain_times(axis: Any) -> None:
    """0.1, 1, 10, ... in full, and without the lines between them."""
    axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda us, _: f"{us:,g}"))
    axis.set_minor_locator(matplotlib.ticker.NullLocator())


def latency_panel(axes: Any, rows: list[Line]) -> None:
    """Peers from the slowest to the fastest at the largest size, so that the legend is in the order of the lines there."""
    curves = {peer: sorted((r["size"], r["median_us"]) for r in rows if r["peer"] == peer) for peer in {r["peer"] for r in rows}}
    for peer in sorted(curves, key=lambda peer: (-curves[peer][-1][1], peer)):
        axes.plot(
            *zip(*curves[peer], strict=True),
            marker="o" if is_ours(peer) else ".",
            markersize=4 if is_ours(peer) else 5,
            linestyle="--" if peer in ("raw", "python_calls") else "-",
            linewidth=2 if is_ours(peer) else 1.2,
            color=COLOURS.get(peer),
            label=label(peer),
            zorder=3 if is_ours(peer) else 2,
        )
    axes.set(xscale="log", yscale="log")
    byte_axis(axes.xaxis, sorted({row["size"] for row in rows}))
    plain_times(axes.yaxis)
    axes.tick_params(axis="x", labelrotation=40)
    axes.tick_params(axis="y", labelleft=True)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def latency(all_lines: list[Line], path: Path) -> bool:
    rows = latest(all_lines, "alloc_free", "peer", "through", "size")
    if not rows:
        return False
    ways = [way for way in WAYS if any(row["through"] == way for row in rows)]
    figure, panels = plt.subplots(1, len(ways), figsize=(5.6 * len(ways), 6.2), sharey=True, squeeze=False)
    for axes, way in zip(panels[0], ways, strict=True):
        latency_panel(axes, [row for row in rows if row["through"] == way])
        axes.set_title(f"called from {WAYS[way]}", fontsize=10)
    panels[0][0].set_ylabel("microseconds for both, median")
    figure.suptitle("Allocate and free, in a tight loop: lower is better")
    finish(figure, path, rows[-1])
    return True


def grow_curves(all_lines: list[Line]) -> tuple[list[tuple[str, str, list[float], list[float]]], int, Line] | None:
    """(peer, label, bytes reached, microseconds) of each, the step, and a line: from bench_peers.py, to the largest size."""
    rows = latest(all_lines, "grow", "peer", "size", "step")
    if not rows:
        return None
    largest = max(row["size"] for row in rows)
    rows = [row for row in rows if row["size"] == largest]
    curves = []
    for row in rows:
        reached, us = zip(*row["curve"], strict=True)
        curves.append((row["peer"], label(row["peer"]) + (", copy, free" if row.get("kind") == "copy" else ""), reached, us))
    return curves, rows[0]["step"], rows[-1]


def grow_totals(all_lines: list[Line]) -> tuple[list[tuple[str, str, list[float], list[float]]], int, Line] | None:
    """The same from bench_core, which measures what it takes to reach each of a few sizes."""
    by_hand = sorted(latest(all_lines, "grow_steps", "size"), key=lambda row: row["size"])
    copied = sorted(latest(all_lines, "grow_steps_vs_copy", "size"), key=lambda row: row["size"])
    if not by_hand:
        return None
    curves = [
        ("gvmm", label("gvmm"), [row["size"] for row in by_hand], [row["median_us"] for row in by_hand]),
        ("raw", label("raw"), [row["size"] for row in by_hand], [row["raw_median_us"] for row in by_hand]),
        ("cuMemAlloc", "cuMemAlloc, copy, free", [row["size"] for row in copied], [row["raw_median_us"] for row in copied]),
    ]
    return [c for c in curves if c[2]], by_hand[-1]["size"] // by_hand[-1]["chunks"], by_hand[-1]


def grow(all_lines: list[Line], path: Path) -> bool:
    found = grow_curves(all_lines) or grow_totals(all_lines)
    if not found:
        return False
    curves, step, of = found
    figure, axes = plt.subplots(figsize=(7, 4.8))
    for peer, name, reached, us in sorted(curves, key=lambda curve: -curve[3][-1]):
        axes.plot(
            reached,
            [one / 1e6 for one in us],
            marker="o" if len(reached) < 10 else None,
            markersize=4,
            linestyle="--" if peer == "raw" else "-",
            linewidth=2.2 if is_ours(peer) else 1.4,
            color=COLOURS.get(peer),
            label=f"{name}: {us[-1] / 1e6:.3g} s",
        )
    largest = int(max(curve[2][-1] for curve in curves))
    axes.set(
        xscale="log", yscale="log", xlabel="reached", ylabel="seconds so far", title=GROW_TITLE.format(size_text(largest), size_text(step))
    )
    byte_axis(axes.xaxis, [tick for tick in (largest >> n for n in range(12, -1, -2)) if tick >= min(curve[2][0] for curve in curves)])
    plain_times(axes.yaxis)
    axes.legend(fontsize=9)
    finish(figure, path, of)
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
        shown = [ratios[name] for name in names if name in ratios]
        bars = axes.bar(places, [ratio - 1 for ratio in shown], width, bottom=1, color=COLOURS.get(peer), label=label(peer))
        axes.bar_label(bars, [f"{ratio:.2f}" for ratio in shown], fontsize=7, padding=1)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(
        ylabel="peak physical / peak live bytes", title="Memory held while replaying allocation traces: 1 is none to spare, lower is better"
    )
    axes.set_xticks(range(len(names)), names)
    axes.grid(visible=False, axis="x")
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
