"""Peers in processes of their own, asked over pipes: one JSON object a line each way.

A worker is asked for a peer's method with arguments and answers {"value": ...} or {"skipped": "the reason"}. One that dies or
hangs is a reason too.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from allocators import ALLOCATORS
from peers import PEERS, Missing

PATIENCE_S = 240.0
KINDS: dict[str, type[Any]] = {**PEERS, **{f"{name}/replay": kind for name, kind in ALLOCATORS.items()}}


class Skipped(Exception):
    """No figure; the text says why."""


# ---- the worker's side ----


def _answer(made: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    name = request["peer"]
    try:
        if name not in made:
            try:
                made[name] = KINDS[name]()
            except Missing as missing:
                made[name] = str(missing)
        peer = made[name]
        if isinstance(peer, str):
            return {"skipped": peer}
        return {"value": getattr(peer, request["method"])(*request["arguments"]), "versions": peer.versions}
    except Missing as missing:
        return {"skipped": str(missing)}
    except Exception as error:  # out of memory, mostly; each peer has its own kind
        text = str(error).strip().splitlines()
        return {"skipped": f"{type(error).__name__}: {text[0]}" if text else type(error).__name__}


@contextlib.contextmanager
def on_one_processor(wanted: bool) -> Iterator[None]:
    """The same one in every worker, which take turns: another may be half as fast."""
    allowed = os.sched_getaffinity(0)
    if wanted:
        os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def serve(requests: TextIO) -> None:
    """Answers until the requests end. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    made: dict[str, Any] = {}
    for text in requests:
        request = json.loads(text)
        with on_one_processor(request["method"] == "sample" and request["peer"] in made):
            print(json.dumps(_answer(made, request)), file=answers, flush=True)


# ---- the asking side ----


class Worker:
    """One process, started when it is first asked."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._said: Any = None
        self._rest = b""
        self._dead = ""

    def _start(self) -> subprocess.Popen[bytes]:
        self._said = tempfile.TemporaryFile()
        self._rest = b""
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**os.environ, **self._settings},
        )
        return self._process

    def send(self, peer: str, method: str, *arguments: Any) -> None:
        if self._dead:
            return
        process = self._process or self._start()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # that it is gone is told when the answer is asked for
            process.stdin.write(json.dumps({"peer": peer, "method": method, "arguments": arguments}).encode() + b"\n")
            process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """The answer to what was sent; raises Skipped."""
        if self._dead:
            raise Skipped(self._dead)
        answer = json.loads(self._line())
        if "skipped" in answer:
            raise Skipped(answer["skipped"])
        return dict(answer)

    def _line(self) -> bytes:
        process = self._process
        assert process is not None and process.stdout is not None
        end = time.monotonic() + PATIENCE_S
        while b"\n" not in self._rest:
            ready, _, _ = select.select([process.stdout], [], [], max(end - time.monotonic(), 0))
            piece = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
            if not piece:
                raise Skipped(self._give_up(hangs=not ready))
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _give_up(self, hangs: bool) -> str:
        process = self._process
        assert process is not None
        if hangs:
            process.kill()
        status = process.wait()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip().splitlines()
        how = f"no answer within {PATIENCE_S:.0f} s" if hangs else f"its process ended with {status}"
        self._dead = f"{how}: {said[-1]}" if said else how
        self.close()
        return self._dead

    def close(self) -> None:
        """Ends the process; asking again starts another, unless it died."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        self._said.close()


class Staff:
    """A worker for each home of the peers that are asked for."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self.versions: dict[str, dict[str, str]] = {}  # by peer

    def of(self, peer: str) -> Worker:
        kind = PEERS[peer]
        if kind.home not in self._workers:
            self._workers[kind.home] = Worker(kind.settings)
        return self._workers[kind.home]

    def start(self, peers: list[str]) -> None:
        """Starts the processes of the peers all at the same time: some take seconds. What fails is told when it is asked."""
        first = {PEERS[peer].home: peer for peer in reversed(peers)}
        for peer in first.values():
            self.of(peer).send(peer, "ready")
        for peer in first.values():
            with contextlib.suppress(Skipped):
                self.of(peer).receive()

    def ask(self, peer: str, method: str, *arguments: Any) -> Any:
        worker = self.of(peer)
        worker.send(peer, method, *arguments)
        answer = worker.receive()
        self.versions[peer] = answer["versions"]
        return answer["value"]

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()

    def __enter__(self) -> Staff:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


if __name__ == "__main__":
    if sys.argv[1:] != ["--serve"]:
        sys.exit("bench_peers.py starts this")
    serve(sys.stdin)
