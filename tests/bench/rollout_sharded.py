"""A part of ``make bench-rollout``: weights that ranks share out, on their way into a plain module."""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.bench.rollout import MODEL, take_turns
from tests.bench.rollout_memory import filling, of_memcpy
from tests.ranks import run_on_ranks

#: Of one rank, and whether the weights go on through the buckets that travel to other processes.
KINDS = (("float32", False), ("bfloat16", False), ("packed", True))


def bench_gather(options: argparse.Namespace) -> dict[str, Any]:
    """Bandwidth of shares that come together in buckets and go into a module, as a share of memcpy's (bar: 0.5).

    The model is shared out by FSDP2 on one rank of gloo, which then is all there is to gather: the bar is for the
    path, not for the network. memcpy copies the bytes of the trained weights. ``packed``, in bf16, goes through the
    buckets that travel to other processes as well, and like two ranks on this machine has no bar.
    """
    with tempfile.TemporaryDirectory() as folder:
        (alone,) = run_on_ranks(
            measure, 1, Path(folder) / "1", [kind for kind, _ in KINDS], options.rounds, options.threads, **_PATIENT
        )
        (pair, _) = run_on_ranks(measure, 2, Path(folder) / "2", ["bfloat16"], options.rounds, 1, **_PATIENT)
    return {**alone, "two_ranks": pair["bfloat16"]}


_PATIENT = {"deadline_seconds": 600}


def measure(rank: int, size: int, kinds: list[str], rounds: int, threads: int) -> dict[str, Any]:
    """What each kind of copy takes on this rank, beside a memcpy that all ranks make at once."""
    torch.set_num_threads(threads)
    if not dist.is_initialized():  # one rank needs no group elsewhere
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return {kind: _measured(rank, size, kind, dict(KINDS)[kind], rounds) for kind in kinds}


def _measured(rank: int, size: int, kind: str, packs: bool, rounds: int) -> dict[str, Any]:
    from dagrl.engines.models import load_model
    from dagrl.engines.packaged import ready_model
    from dagrl.engines.parallel import DataParallel
    from dagrl.engines.sharding import shard

    dtype = torch.float32 if kind == "float32" else torch.bfloat16
    reference = ready_model(MODEL)
    module = load_model(reference, dtype=dtype, attn_implementation="eager").requires_grad_(False)
    trained = load_model(reference, dtype=torch.float32, attn_implementation="eager")
    num_bytes = sum(parameter.nbytes for parameter in trained.parameters())
    parallel = DataParallel(rank, size, "fsdp")
    shard(trained, list(trained.model.layers), parallel)
    source, target = (torch.ones(num_bytes, dtype=torch.uint8) for _ in range(2))
    sides = {"dagrl": filling(trained, module, parallel, packs=packs), "memcpy": lambda: target.copy_(source)}
    spent = take_turns({name: _together(side) for name, side in sides.items()}, rounds)
    return of_memcpy(spent, num_bytes)


def _together(side: Callable[[], Any]) -> Callable[[], None]:
    def work() -> None:
        side()
        dist.barrier()

    return work
