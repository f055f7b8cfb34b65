"""Allocation traces: what a program allocated and freed, in order, without its data. docs/traces.md has the format.

    python bench/traces.py summary FILE.trace...
    python bench/traces.py convert SNAPSHOT.pickle OUT.trace [--device 0] [--most 200K]

`convert` reads what torch.cuda.memory._dump_snapshot wrote. Needs neither PyTorch nor gvmm.
"""

from __future__ import annotations

import argparse
import heapq
import pickle
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from lines import size_of, size_text

HEADER = "gvmm-trace 1"
MOST_BYTES = 1 << 63


class Event(NamedTuple):
    """An allocation of `size` bytes, or if that is 0 the end of it. `stream` is a small number, 0 the default stream."""

    id: int
    size: int
    stream: int


class TraceError(ValueError):
    """A file that is no trace; the text begins with its name and the line."""


# ---- text ----


def _number(word: str, what: str, least: int, most: int) -> int:
    if not (word.isascii() and word.isdecimal()) or not least <= int(word) <= most:
        raise ValueError(f"{what} {word!r}: a number from {least} to {most} is wanted")
    return int(word)


def _event(words: list[str], live: dict[int, int]) -> Event:
    kind = words[0]
    if kind not in ("a", "f"):
        raise ValueError(f"{kind!r}: a line begins with a, f or #")
    names = ["id", "bytes", "stream"] if kind == "a" else ["id", "stream"]
    if len(words) != len(names) + 1:
        raise ValueError(f"{len(words) - 1} fields after {kind!r}, not {len(names)}: {', '.join(names)}")
    id = _number(words[1], "id", 0, (1 << 63) - 1)
    stream = _number(words[-1], "stream", 0, (1 << 31) - 1)
    if kind == "f":
        if id not in live:
            raise ValueError(f"{id} is freed and not live")
        del live[id]
        return Event(id, 0, stream)
    if id in live:
        raise ValueError(f"{id} is allocated and still live, since line {live[id]}")
    return Event(id, _number(words[2], "bytes", 1, MOST_BYTES), stream)


def parse(text: Iterable[str], name: str = "trace") -> Iterator[Event]:
    """The events of a trace's lines; TraceError where it is none."""
    live: dict[int, int] = {}  # id -> the line that allocated it
    number = 0
    for number, line in enumerate(text, 1):
        if number == 1:
            if line.rstrip("\r\n") != HEADER:
                raise TraceError(f"{name}:1: not a trace: the first line is not {HEADER!r}")
            continue
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            event = _event(words, live)
        except ValueError as error:
            raise TraceError(f"{name}:{number}: {error}") from None
        if event.size:
            live[event.id] = number
        yield event
    if number == 0:
        raise TraceError(f"{name}:1: empty: the first line is not {HEADER!r}")


def read(path: str | Path) -> list[Event]:
    """A whole file; TraceError, OSError."""
    try:
        with open(path, encoding="utf-8") as file:
            return list(parse(file, str(path)))
    except UnicodeDecodeError:
        raise TraceError(f"{path}: not a trace: no text") from None


def to_text(events: Iterable[Event], comments: Iterable[str] = ()) -> Iterator[str]:
    """The lines of a file, each with its end."""
    yield HEADER + "\n"
    for comment in comments:
        yield f"# {comment}\n"
    for event in events:
        yield f"a {event.id} {event.size} {event.stream}\n" if event.size else f"f {event.id} {event.stream}\n"


def write(path: str | Path, events: Iterable[Event], comments: Iterable[str] = ()) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(to_text(events, comments))


# ---- what is made of events ----


def renumber(events: Iterable[Event]) -> Iterator[Event]:
    """The same with the smallest ids that can be: those that are free again come back. Streams but 0 are numbered as they come."""
    free: list[int] = []
    ids: dict[int, int] = {}
    streams = {0: 0}
    for event in events:
        stream = streams.setdefault(event.stream, len(streams))
        if event.size:
            ids[event.id] = heapq.heappop(free) if free else len(ids)
            yield Event(ids[event.id], event.size, stream)
        else:
            id = ids.pop(event.id)
            heapq.heappush(free, id)
            yield Event(id, 0, stream)


def cut(events: Iterable[Event], most: int) -> list[Event]:
    """As many of the first events as make a file of at most so many bytes, without comments."""
    out, size = [], len(HEADER) + 1
    for event in events:
        size += sum(map(len, to_text([event]))) - len(HEADER) - 1
        if size > most:
            break
        out.append(event)
    return out


@dataclass
class Summary:
    allocations: int = 0
    frees: int = 0
    streams: int = 0
    bytes: int = 0
    largest: int = 0
    peak_live_bytes: int = 0
    peak_live_count: int = 0
    left_bytes: int = 0  # never freed


def summarise(events: Iterable[Event]) -> Summary:
    s, live, streams = Summary(), {}, set()
    for event in events:
        streams.add(event.stream)
        if event.size:
            s.allocations += 1
            s.bytes += event.size
            s.largest = max(s.largest, event.size)
            live[event.id] = event.size
            s.left_bytes += event.size
        else:
            s.frees += 1
            s.left_bytes -= live.pop(event.id)
        s.peak_live_bytes = max(s.peak_live_bytes, s.left_bytes)
        s.peak_live_count = max(s.peak_live_count, len(live))
    s.streams = len(streams)
    return s


# ---- PyTorch's snapshots ----


class _PlainUnpickler(pickle.Unpickler):
    """Containers, numbers and texts; nothing that would run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it holds a {module}.{name}, and only plain containers are read")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside")


def load_snapshot(file: BinaryIO, name: str = "snapshot") -> dict[str, Any]:
    """The pickle of a memory snapshot; TraceError if it is none, or holds more than plain containers."""
    try:
        snapshot = _PlainUnpickler(file).load()
    except Exception as error:  # a broken pickle raises whatever it runs into
        raise TraceError(f"{name}: not a memory snapshot: {error or type(error).__name__}") from None
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get("device_traces"), list):
        raise TraceError(f"{name}: not a memory snapshot: it has no list device_traces")
    return snapshot


def _field(entry: dict[str, Any], field: str, where: str) -> int:
    value = entry.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TraceError(f"{where}: {field} is {value!r}, not a number")
    return value


def _live_at_the_end(snapshot: dict[str, Any], device: int, name: str) -> dict[int, tuple[int, int]]:
    """Address -> (bytes, stream) of the blocks in use when the snapshot was taken."""
    out = {}
    for number, segment in enumerate(snapshot.get("segments", [])):
        where = f"{name}: segment {number}"
        if segment.get("device", 0) != device:
            continue
        address = _field(segment, "address", where)
        for block in segment.get("blocks", []):
            size = _field(block, "size", where)
            if str(block.get("state", "")).startswith("active"):
                wanted = block.get("requested_size") or size
                out[block.get("address", address)] = (wanted, _field(segment, "stream", where))
            address += size
    return out


def from_snapshot(snapshot: dict[str, Any], device: int = 0, name: str = "snapshot") -> list[Event]:
    """One device's events. A block ends when it could be used again (free_completed), not when that was asked for.

    What was there before the recording began is put first: blocks that are freed or in use and whose allocation is not in
    the record. Blocks of size 0 are left out.
    """
    devices = snapshot["device_traces"]
    if not 0 <= device < len(devices):
        raise TraceError(f"{name}: there is no device {device}, but {len(devices)}")
    events: list[Event] = []
    live: dict[int, int] = {}  # address -> id
    asked: dict[int, tuple[int, int]] = {}  # address -> id and stream of what is to be freed and not yet free
    before: list[Event] = []
    next_id = 0
    for number, entry in enumerate(devices[device]):
        where = f"{name}: device {device}, entry {number}"
        if not isinstance(entry, dict):
            raise TraceError(f"{where}: not a dict")
        action = entry.get("action")
        if action not in ("alloc", "free_requested", "free_completed", "free"):
            continue
        address, size, stream = (_field(entry, field, where) for field in ("addr", "size", "stream"))
        if size == 0:
            continue
        if action == "alloc":
            if address in live:
                raise TraceError(f"{where}: {address:#x} is allocated and was not freed")
            if address in asked:  # a record without free_completed
                events.append(Event(asked[address][0], 0, asked.pop(address)[1]))
            live[address], next_id = next_id, next_id + 1
            events.append(Event(live[address], size, stream))
            continue
        if address not in live and address not in asked:  # as old as the record, or older
            live[address], next_id = next_id, next_id + 1
            before.append(Event(live[address], size, stream))
        if action == "free_requested":
            asked[address] = (live.pop(address), stream)
        else:
            id, _ = asked.pop(address) if address in asked else (live.pop(address), stream)
            events.append(Event(id, 0, stream))
    events += [Event(id, 0, stream) for id, stream in asked.values()]
    for address, (size, stream) in _live_at_the_end(snapshot, device, name).items():
        if address not in live and address not in asked and size:
            before.append(Event(next_id, size, stream))
            next_id += 1
    return list(renumber(before + events))


# ---- the program ----


def _summary(options: argparse.Namespace) -> None:
    for path in options.files:
        s = summarise(read(path))
        print(
            f"{path}: {s.allocations} allocations, {s.frees} frees, {s.streams} streams; at most {size_text(s.peak_live_bytes)} "
            f"in {s.peak_live_count} live, the largest {size_text(s.largest)}; {size_text(s.left_bytes)} never freed"
        )


def _convert(options: argparse.Namespace) -> None:
    with open(options.snapshot, "rb") as file:
        events = from_snapshot(load_snapshot(file, options.snapshot), options.device, options.snapshot)
    kept = cut(events, options.most) if options.most else events
    write(options.out, kept, options.comment)
    if len(kept) < len(events):
        print(f"{options.out}: the first {len(kept)} of {len(events)} events", file=sys.stderr)


def main(arguments: list[str] | None = None) -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = p.add_subparsers(required=True)
    summary = commands.add_parser("summary", help="what traces hold; also checks them")
    summary.add_argument("files", nargs="+")
    summary.set_defaults(do=_summary)
    convert = commands.add_parser("convert", help="PyTorch's memory snapshot to a trace")
    convert.add_argument("snapshot")
    convert.add_argument("out")
    convert.add_argument("--device", type=int, default=0)
    convert.add_argument("--most", type=size_of, metavar="SIZE", help="bytes of the file; what comes later is left out")
    convert.add_argument("--comment", action="append", default=[], help="a line at the top")
    convert.set_defaults(do=_convert)
    options = p.parse_args(arguments)
    try:
        options.do(options)
    except (TraceError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
