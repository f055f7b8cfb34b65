"""Records allocation traces of real loops on the GPU with PyTorch, which needs no downloads: models with random weights.

    python bench/make_traces.py OUT [--only NAME] [--most 190K] [--snapshots]
    python bench/make_traces.py OUT --on cpu --scale 16      runs small loops without a GPU, records nothing

transformer   training a decoder, mixed precision, AdamW, batches of varied shape
inference     requests of varied batch and length that come and go, each with a key-value cache that grows by a token
cnn           training a residual network, images of varied size, copied ahead on a stream of their own

Each makes OUT/NAME.trace (docs/traces.md), with --snapshots also the pickle that it is made from.
"""

from __future__ import annotations

import argparse
import pickle
import random
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import traces
from lines import size_of, size_text

try:
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn
except ImportError as missing:
    sys.exit(f"skip: traces: {missing}")


class Block(nn.Module):
    """A decoder's layer. `cache` is what it remembers of earlier tokens: keys and values, or None."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.reshape(shape).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, dim=-1))
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.second(x)), (k, v)


class Decoder(nn.Module):
    def __init__(self, words: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor, caches: list[Any] | None = None) -> tuple[Tensor, list[Any]]:
        x, after = self.embed(tokens), []
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True):
            x, kept = block(x, cache)
            after.append(kept)
        return self.head(x), after


def transformer(device: torch.device, scale: int, rng: random.Random) -> None:
    words, width = 16384 // scale, 1024 // scale
    model = Decoder(words, width, 8, 6).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=device.type == "cuda")
    for _ in range(5):
        shape = (rng.choice((4, 6, 8)), rng.randrange(384, 1024, 8) // scale)
        tokens = torch.randint(words, shape, device=device)
        with torch.autocast(device.type, torch.bfloat16):
            logits, _ = model(tokens)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        del logits
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def inference(device: torch.device, scale: int, rng: random.Random) -> None:
    words, width = 16384 // scale, 2048 // scale
    model = Decoder(words, width, 16, 3).to(device, torch.bfloat16).eval()
    waiting = [(rng.randrange(1, 9), rng.randrange(128, 2048) // scale, rng.randrange(4, 14)) for _ in range(14)]
    active: list[tuple[Tensor, list[Any], int]] = []
    while waiting or active:
        if waiting and len(active) < 4:
            batch, length, answer = waiting.pop()
            logits, caches = model(torch.randint(words, (batch, length), device=device))
            active.append((logits[:, -1:].argmax(-1), caches, answer))
            del logits, caches
        still = []
        while active:
            token, caches, left = active.pop(0)
            logits, caches = model(token, caches)
            if left > 1:
                still.append((logits[:, -1:].argmax(-1), caches, left - 1))
            del token, logits, caches
        active = still


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.past = nn.Conv2d(inside, outside, 1, stride, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outside) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.norms[2](self.past(x)))


def cnn(device: torch.device, scale: int, rng: random.Random) -> None:
    widths = [max(w // scale, 4) for w in (64, 64, 128, 256, 512)]
    blocks = [Residual(a, b, 1 if a == b else 2) for a, b in pairwise(widths) for a, b in ((a, b), (b, b))]
    model = nn.Sequential(nn.Conv2d(3, widths[0], 7, 4, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 1000))
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    on_gpu = device.type == "cuda"
    ahead = torch.cuda.Stream() if on_gpu else None

    def images() -> Tensor:
        batch, side = rng.randrange(16, 65, 8) // min(scale, 8), rng.randrange(160, 385, 32) // min(scale, 2)
        host = torch.randn(batch, 3, side, side, pin_memory=on_gpu)
        if ahead is None:
            return host
        with torch.cuda.stream(ahead):
            return host.to(device, non_blocking=True)

    following = images()
    for _ in range(10):
        batch, following = following, images()
        if ahead is not None:
            now = torch.cuda.current_stream()
            now.wait_stream(ahead)
            batch.record_stream(now)
        loss = F.cross_entropy(model(batch), torch.randint(1000, (len(batch),), device=device))
        del batch
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


LOOPS: dict[str, Callable[[torch.device, int, random.Random], None]] = {
    "transformer": transformer,
    "inference": inference,
    "cnn": cnn,
}


def run(name: str, device: torch.device, scale: int) -> None:
    torch.manual_seed(1)
    with torch.set_grad_enabled(name != "inference"):
        LOOPS[name](device, scale, random.Random(name))


def record(name: str, out: Path, scale: int, most: int, keep_snapshot: bool) -> None:
    """Writes the trace of one loop, from an empty allocator on."""
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=1_000_000)
    try:
        run(name, torch.device("cuda", 0), scale)
        torch.cuda.synchronize()
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(None)
    if keep_snapshot:
        (out / f"{name}.pickle").write_bytes(pickle.dumps(snapshot))
    events = traces.from_snapshot(snapshot)
    kept = traces.cut(events, most)
    made_on = f"PyTorch {torch.__version__}, {torch.cuda.get_device_name(0)}"
    traces.write(out / f"{name}.trace", kept, [f"{name}: bench/make_traces.py, {made_on}"])
    s = traces.summarise(kept)
    print(f"{name}: {len(kept)} of {len(events)} events, at most {size_text(s.peak_live_bytes)} live, {s.streams} streams")


def main(arguments: list[str] | None = None) -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", type=Path, metavar="OUT")
    p.add_argument("--only", choices=LOOPS)
    p.add_argument("--on", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--scale", type=int, default=1, help="divides widths and lengths (1)")
    p.add_argument("--most", type=size_of, default=190 << 10, metavar="SIZE", help="bytes of a trace (190K); later events are left out")
    p.add_argument("--snapshots", action="store_true", help="keep the pickles")
    options = p.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.on == "cuda" and not torch.cuda.is_available():
        sys.exit("skip: traces: PyTorch finds no GPU")
    for name in LOOPS if options.only is None else [options.only]:
        if options.on == "cpu":
            run(name, torch.device("cpu"), options.scale)
            print(f"{name}: ran, not recorded")
        else:
            record(name, options.out, options.scale, options.most, options.snapshots)


if __name__ == "__main__":
    main()
