"""Everything at once from several threads: no crash, no leak, no error but that a buffer has been closed."""

from __future__ import annotations

import random
import threading

import gvmm


def test_everything_at_once(resource, new_stream, G):
    streams = [new_stream() for _ in range(4)]
    shared = [resource.allocate(G, stream=random.choice(streams)) for _ in range(8)]
    failures: list[BaseException] = []

    def step(choose: random.Random) -> None:
        at = choose.randrange(8)
        buffer = shared[at]
        operation = choose.randrange(9)
        if operation == 0:
            shared[at] = resource.modify_allocation(buffer, choose.randrange(1, 4) * G)
        elif operation == 1:
            buffer.close(choose.choice([*streams, None]))
        elif operation == 2:
            buffer.set_deallocation_stream(choose.choice(streams))
        elif operation == 3:
            buffer.__dlpack__(), buffer.__dlpack__(max_version=(1, 0))
        elif operation == 4:
            buffer.__cuda_array_interface__
        elif operation == 5:
            resource.modify_allocation(buffer, 1).close()
        elif operation == 6:
            repr(buffer), hash(buffer), buffer == shared[0], buffer.segments()
        elif operation == 7:
            buffer.device_id, buffer.is_managed, gvmm.stats(resource)
        else:
            shared[at] = resource.allocate(G)

    def work(seed: int) -> None:
        choose = random.Random(seed)
        try:
            for _ in range(4000):
                try:
                    step(choose)
                except RuntimeError as error:
                    if "closed" not in str(error):
                        raise
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared.clear()
    assert failures == []
