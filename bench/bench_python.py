"""What Python adds to gvmm's calls: each beside the same calls in C, in one run. JSON lines on standard output, a table on standard
error.

    python bench/bench_python.py            the machine's GPU
    GVMM_DRIVER=sim python bench/bench_python.py

The sides take turns, forwards and then backwards, after a batch of each that is not counted. Times are in microseconds of one
operation. Targets: create and close at most 3 us above C; a pool's malloc and free together at most 1.2 us above; attributes and a full
alias under 0.5 us. Where the operation takes much longer than what Python adds to it, the difference of medians is that of two noisy
figures: see the one for size 0, which makes no driver call but the wait.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from lines import machine

import gvmm
from gvmm import _gvmm

Side = Callable[[int], float]
MACHINE = machine()


def interleave(sides: list[Side], rounds: int, samples: int) -> list[list[float]]:
    """Samples of each side, taken in turn."""
    for side in sides:
        side(rounds)
    out: list[list[float]] = [[] for _ in sides]
    for n in range(samples):
        order = list(range(len(sides)))
        for at in order if n % 2 else reversed(order):
            out[at].append(sides[at](rounds))
    return out


def loop(operation: Callable[[], object]) -> Side:
    """A side that runs an operation over and over; the loop itself, some 20 ns, counts."""

    def side(rounds: int) -> float:
        start = time.perf_counter()
        for _ in range(rounds):
            operation()
        return (time.perf_counter() - start) * 1e6 / rounds

    return side


def report(name: str, size: int, target: float, ours: list[float], c: list[float] | None, add: bool) -> None:
    """``add``: the target is for the difference."""
    median = statistics.median(ours)
    of_c = statistics.median(c) if c else None
    over = median - of_c if of_c is not None else None
    value = over if add and over is not None else median
    line = {"name": name, "size": size, "n": len(ours), "median_us": median, "c_median_us": of_c, "over_us": over}
    print(json.dumps({**line, "target_us": target, "met": value <= target, "machine": MACHINE}), flush=True)
    c_text = f"{of_c:9.3f}" if of_c is not None else "        -"
    print(f"{name:24} {size >> 20:4} MiB {median:9.3f} {c_text} {value:9.3f} {'' if value <= target else 'MISSED'}", file=sys.stderr)


def create_close(resource: gvmm.VirtualMemoryResource, size: int, rounds: int) -> None:
    def python() -> None:
        resource.allocate(size).close()

    def dropped() -> None:
        resource.allocate(size)

    def closed_in_c(rounds: int) -> float:
        return _gvmm._time_create(resource, size, rounds, True)

    def dropped_in_c(rounds: int) -> float:
        return _gvmm._time_create(resource, size, rounds, False)

    sides = [loop(python), loop(dropped), closed_in_c, dropped_in_c]
    with_close, by_drop, close_in_c, drop_in_c = interleave(sides, rounds, 60)
    report("create_close", size, 3.0, with_close, close_in_c, add=True)
    report("create_drop", size, 3.0, by_drop, drop_in_c, add=True)


def create_reused(size: int) -> None:
    """Made of kept memory and dropped, on the stream that had it before."""
    resource = gvmm.VirtualMemoryResource(0, {"reuse_limit": 4 * size})

    def python() -> None:
        resource.allocate(size)

    def c(rounds: int) -> float:
        return _gvmm._time_create(resource, size, rounds, False)

    ours, in_c = interleave([loop(python), c], 2000, 60)
    assert gvmm.stats(resource).reused + 1 == gvmm.stats(resource).allocations
    report("create_reused", size, 3.0, ours, in_c, add=True)


def full_alias(resource: gvmm.VirtualMemoryResource) -> None:
    buffer = resource.allocate(1)

    def python(rounds: int) -> float:
        made = [None] * rounds
        start = time.perf_counter()
        for n in range(rounds):
            made[n] = resource.modify_allocation(buffer, 1)  # type: ignore[call-overload]
        return (time.perf_counter() - start) * 1e6 / rounds

    ours, in_c = interleave([python, lambda rounds: _gvmm._time_alias(buffer, rounds)], 500, 60)
    report("full_alias", buffer.size, 0.5, ours, in_c, add=False)


def attributes(resource: gvmm.VirtualMemoryResource) -> None:
    buffer = resource.allocate(1)
    reads: dict[str, Callable[[], object]] = {
        "handle": lambda: buffer.handle,
        "size": lambda: buffer.size,
        "is_closed": lambda: buffer.is_closed,
        "memory_resource": lambda: buffer.memory_resource,
        "device_id": lambda: buffer.device_id,
        "is_device_accessible": lambda: buffer.is_device_accessible,
    }
    sides = interleave([loop(read) for read in reads.values()], 2000, 40)
    for name, samples in zip(reads, sides, strict=True):
        report(f"attribute {name}", buffer.size, 0.5, samples, None, add=False)
    [capsule] = interleave([loop(lambda: buffer.__dlpack__())], 500, 40)
    report("dlpack", buffer.size, 2.0, capsule, None, add=False)


class Other:
    """A stream of somebody else's."""

    def __init__(self, handle: int) -> None:
        self._answer = 0, handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return self._answer


def pool_pair(size: int) -> None:
    """A pool's malloc and free, on a stream that is named in three ways."""
    pool, stream = gvmm.Pool(0), gvmm.Stream(0)
    ways: dict[str, Any] = {"gvmm.Stream": stream, "int": stream.handle, "other": Other(stream.handle)}

    def python(way: Any) -> Side:
        malloc, free = pool.malloc, pool.free
        return loop(lambda: free(malloc(size, way), way))

    *ours, in_c = interleave([*map(python, ways.values()), lambda n: _gvmm._time_pool(pool, size, n, stream.handle)], 5000, 60)
    for name, samples in zip(ways, ours, strict=True):
        report(f"pool_pair {name}", size, 1.2, samples, in_c, add=True)


def main() -> None:
    resource = gvmm.VirtualMemoryResource(0, {"release_mode": "sync"})  # a drop is to end as a close does
    print(f"us: {MACHINE['origin']:22}        median         C   counted", file=sys.stderr)
    create_close(resource, 0, 500)
    create_close(resource, 2 << 20, 50)
    create_close(resource, 64 << 20, 20)
    create_reused(64 << 20)
    pool_pair(4096)
    pool_pair(2 << 20)
    full_alias(resource)
    attributes(resource)


if __name__ == "__main__":
    main()
