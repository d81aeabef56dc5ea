"""The plain loop in processes of its own: reads a number of steps, runs them, prints the wall seconds; and so on.

``python -m tests.bench.plain_process RANK WORLD PORT THREADS ROLLOUT``
"""

import sys
import time
from datetime import timedelta


def main() -> None:
    """Serve until stdin ends."""
    rank, world, port, threads = (int(word) for word in sys.argv[1:5])
    import torch
    import torch.distributed as dist

    torch.set_num_threads(threads)
    if world > 1:
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
        )
    from tests.bench.__main__ import WORK
    from tests.bench.plain_grpo import PlainGrpo

    plain = PlainGrpo(**WORK, rollout=sys.argv[5])
    print("ready", flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        for _ in range(int(line)):
            plain.step()
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
