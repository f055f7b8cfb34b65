"""Several models take turns on a device that has room for one: those that sleep have their weights in pinned host memory, and their
addresses stay. Caches are dropped.

    python examples/sleep_and_wake.py                    a GPU, or say GVMM_DRIVER=sim for the simulated driver
"""

from __future__ import annotations

import gvmm

MiB = 1 << 20
WEIGHTS, CACHE = 1, 2


class Model:
    def __init__(self, name: str, seed: int, stream: gvmm.Stream) -> None:
        self.name = name
        self.registered: set[int] = set()  # what a network library would know of our memory
        self._resource = gvmm.VirtualMemoryResource(0, {"tag": WEIGHTS})
        self._resource.on_residency = self._told
        self.weights = [self._resource.allocate((n + 1) * 4 * MiB, stream=stream) for n in range(3)]
        for buffer in self.weights:
            buffer.fill(seed, stream=stream)
        self._caches = gvmm.VirtualMemoryResource(0, {"tag": CACHE, "capacity": 64 * MiB})
        self.cache = self._caches.allocate(8 * MiB, stream=stream)
        stream.sync()

    def _told(self, event: gvmm.ResidencyEvent) -> None:
        if event.what == "before_evict":
            self.registered.clear()
        elif event.what == "after_restore":
            self.registered = {memory for buffer in self.weights for _, _, memory, _ in buffer.segments()}

    def sleep(self, stream: gvmm.Stream) -> None:
        self._resource.evict(tag=WEIGHTS, stream=stream)
        self._caches.evict(tag=CACHE, contents="drop", stream=stream)

    def wake(self) -> None:
        self._resource.restore()
        self._caches.restore()

    def work(self, stream: gvmm.Stream) -> None:
        """Stands for an inference: addresses taken before the sleep are good."""
        self.cache.fill(0, stream=stream)
        self.weights[0].copy_to(self.weights[0], stream=stream)


def main() -> None:
    with gvmm.Stream() as stream:
        models = [Model(name, seed, stream) for seed, name in enumerate(("small", "medium", "large"), 1)]
        addresses = [buffer.handle for model in models for buffer in model.weights]
        for model in models:
            model.sleep(stream)
        asleep = gvmm.stats()
        print(f"all asleep: {asleep.physical_bytes >> 20} MiB of memory, {asleep.reserved_bytes >> 20} MiB of addresses")
        for turn in range(9):
            model = models[turn % 3]
            model.wake()
            model.work(stream)
            model.sleep(stream)
        models[0].wake()
        awake = gvmm.stats()
        print(f"{models[0].name} awake: {awake.physical_bytes >> 20} MiB, {len(models[0].registered)} pieces registered anew")
        print(f"woken {models[0].weights[0].generation} times")
        assert addresses == [buffer.handle for model in models for buffer in model.weights]
        for model in models:
            for buffer in (*model.weights, model.cache):
                buffer.close(stream)


if __name__ == "__main__":
    main()
