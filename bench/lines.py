"""What the Python benchmarks share: one JSON object a line, the machine it was measured on, samples and their quantiles."""

from __future__ import annotations

import ctypes
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

Line = dict[str, Any]
MiB = 1 << 20


def machine(**more: Any) -> dict[str, Any]:
    """The object that every line ends with, as bench.c writes it, and the version of Python. Needs gvmm, and a driver."""
    import gvmm
    from gvmm import _gvmm
    from gvmm._cuda import driver_call, driver_value

    name = ctypes.create_string_buffer(128)
    driver_call("cuInit", 0)
    driver_call("cuDeviceGetName", name, 128, ctypes.c_int(0))
    return {
        "device": name.value.decode(errors="replace"),
        "driver": driver_value("cuDriverGetVersion"),
        "origin": _gvmm._origin(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "gvmm": gvmm.__version__,
        "commit": os.environ.get("GVMM_COMMIT", ""),
        "python": platform.python_version(),
        **more,
    }


def is_simulated(of: dict[str, Any]) -> bool:
    return "simulated" in str(of.get("device", ""))


class Writer:
    """Writes lines, each with the machine at its end."""

    def __init__(self, of: dict[str, Any], out: TextIO | None = None) -> None:
        self.machine = of
        self._out = out if out is not None else sys.stdout

    def put(self, **line: Any) -> Line:
        whole = {**line, "machine": self.machine}
        print(json.dumps(whole), file=self._out, flush=True)
        return whole


def read(paths: Iterable[str | Path]) -> Iterator[Line]:
    """The lines of files, in order; ValueError names the file and the line that is none."""
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                if not text.strip():
                    continue
                try:
                    line = json.loads(text)
                except ValueError as error:
                    raise ValueError(f"{path}:{number}: no JSON: {error}") from None
                if not isinstance(line, dict):
                    raise ValueError(f"{path}:{number}: not a JSON object")
                yield line


def quantile(samples: Sequence[float], q: float) -> float:
    """The smallest sample that at least the share q of all does not exceed, as in bench.c."""
    return sorted(samples)[max(math.ceil(q * len(samples)), 1) - 1]


def median(samples: Sequence[float]) -> float:
    return quantile(samples, 0.5)


def rounded(value: float | None) -> float | None:
    """Six digits are more than any clock tells."""
    return None if value is None else float(f"{value:.6g}")


def interleave(sides: list[Callable[[], list[float]]], turns: int) -> list[list[float]]:
    """Samples of each side, taken in turn, forwards and then backwards (A B B A)."""
    out: list[list[float]] = [[] for _ in sides]
    for turn in range(turns):
        order = range(len(sides))
        for at in order if turn % 2 == 0 else reversed(order):
            out[at] += sides[at]()
    return out


_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def size_of(text: str) -> int:
    """Bytes of "512", "64K", "2M", "8G"; ValueError for others."""
    number, unit = text.strip().lower().removesuffix("ib").removesuffix("b"), ""
    if number and number[-1] in _UNITS:
        number, unit = number[:-1], number[-1]
    if not number.isdecimal() or int(number) == 0:
        raise ValueError(f"{text!r} is no size: 512, 64K, 2M, 8G")
    return int(number) * _UNITS[unit]


def size_text(size: float) -> str:
    """ "64 KiB" of 65536."""
    units = ["GiB", "MiB", "KiB", "B"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop()
    return f"{size:.4g} {units[-1]}"
