#!/usr/bin/env python3
"""make.py [DIRECTORY]: writes the synthetic traces of this directory anew.

A trace is a line `gvmm-trace 1`, then lines `a ID BYTES STREAM` and `f ID STREAM` in the order of the calls. Stream 0 is the default
stream. The sizes and lifetimes are modelled on what programs do; no program was recorded for these.
"""

import random
import sys
from pathlib import Path

KIB, MIB = 1 << 10, 1 << 20


class Trace:
    def __init__(self, seed):
        self.lines = ["gvmm-trace 1"]
        self.next = 0
        self.random = random.Random(seed)

    def alloc(self, size, stream=0):
        self.next += 1
        self.lines.append(f"a {self.next} {int(size)} {stream}")
        return self.next

    def free(self, ident, stream=0):
        self.lines.append(f"f {ident} {stream}")

    def write(self, path):
        path.write_text("\n".join(self.lines) + "\n")


def training(t, layers=24, hidden=2048, tokens=4096, iterations=6, vary=False):
    """A transformer: weights, then forward and backward passes, the optimizer's state made in the first of them."""
    weights = [[t.alloc(12 * hidden * hidden * 2), t.alloc(hidden * 4), t.alloc(hidden * 4)] for _ in range(layers)]
    state = []
    for _ in range(iterations):
        n = t.random.randrange(tokens // 3, tokens) if vary else tokens
        n += n % 2
        kept = []
        x = t.alloc(n * hidden * 2)
        for _ in range(layers):
            norm = t.alloc(n * 4)
            qkv = t.alloc(3 * n * hidden * 2)
            workspace = t.alloc(8 * MIB + 512 * t.random.randrange(64))
            attention = t.alloc(n * hidden * 2)
            t.free(workspace)
            mlp = t.alloc(4 * n * hidden * 2)
            act = t.alloc(4 * n * hidden * 2)
            out = t.alloc(n * hidden * 2)
            kept.append([norm, qkv, attention, mlp, act, x])
            x = out
        logits = t.alloc(n * 32000 * 2)
        loss = t.alloc(n * 4)
        grad_logits = t.alloc(n * 32000 * 2)
        t.free(logits)
        grad_x = t.alloc(n * hidden * 2)
        t.free(grad_logits)
        t.free(x)
        grads = []
        for layer in reversed(range(layers)):
            for size in (4 * n * hidden * 2, 3 * n * hidden * 2):
                temporary = t.alloc(size)
                other = t.alloc(size)
                t.free(temporary)
                t.free(other)
            grads.append([t.alloc(12 * hidden * hidden * 2), t.alloc(hidden * 4), t.alloc(hidden * 4)])
            new = t.alloc(n * hidden * 2)
            t.free(grad_x)
            grad_x = new
            for k in kept[layer]:
                t.free(k)
        t.free(grad_x)
        t.free(loss)
        if not state:
            for _ in range(layers):
                state += [t.alloc(12 * hidden * hidden * 4) for _ in range(2)] + [t.alloc(hidden * 4) for _ in range(4)]
        temporaries = [t.alloc(12 * hidden * hidden * 4) for _ in range(2)]
        for k in temporaries:
            t.free(k)
        for g in grads:
            for k in g:
                t.free(k)
    for k in state + [k for w in weights for k in w]:
        t.free(k)


def inference(t, layers=16, hidden=4096, requests=60):
    """Requests of all lengths that come and go; caches that grow by copying; small bookkeeping that lives long."""
    weights = [t.alloc(12 * hidden * hidden // 8) for _ in range(layers)]
    live, small = [], []
    for _ in range(requests):
        length = int(t.random.paretovariate(1.2) * 64) % 4096 + 16
        temporaries = []
        for _ in range(4):
            temporaries.append(t.alloc(length * hidden * 2))
            temporaries.append(t.alloc(length * 4 * hidden * 2))
            t.free(temporaries.pop(0))
        for k in temporaries:
            t.free(k)
        small.append(t.alloc(t.random.randrange(1, 64) * 512 - t.random.randrange(512)))
        live.append([t.alloc(length * hidden * 2 * 2 // 4) for _ in range(layers // 4)] + [length])
        for request in live:
            if t.random.random() < 0.1:  # its caches double
                request[-1] *= 2
                for i in range(len(request) - 1):
                    larger = t.alloc(request[-1] * hidden * 2 * 2 // 4)
                    t.free(request[i])
                    request[i] = larger
        while len(live) > 12 or (live and t.random.random() < 0.2):
            for k in live.pop(t.random.randrange(len(live)))[:-1]:
                t.free(k)
        if len(small) > 40:
            t.free(small.pop(t.random.randrange(len(small))))
    for k in small + weights + [k for r in live for k in r[:-1]]:
        t.free(k)


def mixed(t, steps=6000, most=600 * MIB):
    """Sizes over five powers of ten, lifetimes at random, on three streams."""
    live, total = [], 0
    for _ in range(steps):
        size = int(2 ** t.random.uniform(7, 25.5))
        stream = t.random.randrange(3)
        while live and (total + size > most or t.random.random() < 0.42):
            ident, was, of = live.pop(t.random.randrange(len(live)))
            t.free(ident, of if t.random.random() < 0.9 else stream)
            total -= was
        live.append((t.alloc(size, stream), size, stream))
        total += size
    for ident, _, of in live:
        t.free(ident, of)


def main():
    to = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    for name, make, options in [
        ("training", training, {}),
        ("training-lengths", training, {"vary": True}),
        ("training-small", training, {"layers": 6, "hidden": 512, "tokens": 1024, "vary": True}),
        ("inference", inference, {}),
        ("mixed", mixed, {}),
    ]:
        t = Trace(name)
        make(t, **options)
        t.write(to / f"{name}.trace")


main()
