"""Parts of ``make bench-rollout`` about bytes: how fast weights come together, and how many there are at once."""

import argparse
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.bench.rollout import MODEL, Spent, medians, ratio, spec_of_policy, take_turns

ROOT = Path(__file__).resolve().parents[2]
#: Resets the peak of resident memory that Linux keeps for a process.
_PEAK_RESET = "5"


def bench_copy(options: argparse.Namespace) -> dict[str, Any]:
    """Bandwidth of trained weights into a module of their shapes, as a share of memcpy's (bar: 0.5).

    memcpy copies the bytes of the trained weights, in fp32. Into a module in bf16 the weights are cast on the way;
    ``packed`` goes through the buckets that travel to other processes as well, and has no bar.
    """
    return {name: _copied(name, options) for name in ("float32", "bfloat16", "packed")}


def _copied(name: str, options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from dagrl.engines.models import load_model
    from dagrl.engines.packaged import ready_model
    from dagrl.engines.parallel import SINGLE

    dtype = torch.float32 if name == "float32" else torch.bfloat16
    reference = ready_model(MODEL)
    trained = load_model(reference, dtype=torch.float32, attn_implementation="eager")
    module = load_model(reference, dtype=dtype, attn_implementation="eager").requires_grad_(False)
    num_bytes = sum(parameter.nbytes for parameter in trained.parameters())
    source, target = (torch.ones(num_bytes, dtype=torch.uint8) for _ in range(2))
    work = filling(trained, module, SINGLE, packs=name == "packed")
    spent = take_turns({"dagrl": work, "memcpy": lambda: target.copy_(source)}, options.rounds)
    return of_memcpy(spent, num_bytes)


def of_memcpy(spent: Mapping[str, list[Spent]], num_bytes: int) -> dict[str, Any]:
    """How long both sides took, and ours as a share of memcpy's bandwidth."""
    shares = {f"of_memcpy_{clock}": round(1 / ratio(spent, "dagrl", "memcpy", clock), 3) for clock in Spent._fields}
    return {"mib": num_bytes >> 20, **medians(spent), **shares}


def filling(trained: Any, module: Any, parallel: Any, *, packs: bool) -> Callable[[], None]:
    """Fill the module's parameters from the trained ones, which ranks may share out; tied ones once."""
    import torch

    from dagrl.engines.bucket_memory import BucketMemory
    from dagrl.engines.weight_buckets import ArrivedWeights, packed
    from dagrl.engines.weights import TrainedWeights

    places = dict(module.named_parameters())
    dtype = next(module.parameters()).dtype
    memory = BucketMemory()  # as a worker's, from sync to sync

    @torch.no_grad()
    def work() -> None:
        weights = TrainedWeights(trained, dtype=dtype, parallel=parallel, memory=memory)
        for name, tensor in ArrivedWeights(weights.layout, packed(weights)) if packs else weights:
            if name in places:
                places[name].copy_(tensor)
            del tensor  # as an engine does: the next may then have its memory

    return work


def bench_memory(options: argparse.Namespace) -> dict[str, Any]:
    """The peak of a sync into vLLM, each in a process of its own (bar: trained + engine's + one bucket + 10 %).

    ``whole`` is that of a run in one process, ``gathered`` has the weights shared out by FSDP2, on one rank, and put
    together in bf16.
    """
    return {kind: _peak(kind) for kind in ("whole", "gathered")}


def _peak(kind: str) -> dict[str, Any]:
    script = f"from tests.bench.rollout_memory import report_peak; report_peak({kind!r})"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the process whose memory is measured failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def report_peak(kind: str) -> None:
    """Print what the second sync adds to the resident memory, and what trainer's and engine's weights take.

    What is free is given back first, so that the sync cannot hide in it. The peak is of the weights, the memory that
    is kept for buckets and what is added: Python, libraries and the key-value cache, which are the same before and
    after, are left out. The engine's weights are counted in bf16, a tied head twice: vLLM's kernels for CPUs keep a
    packed copy of it.
    """
    from dagrl.engines.weights import BUCKET_BYTES

    worker = _start_worker()
    trained = sum(parameter.nbytes for parameter in worker.model.parameters())
    engine = sum(2 * weight.numel() for weight in worker.model.state_dict().values())
    sync = _syncing(worker, kind)
    sync()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text(_PEAK_RESET)
    before, kept = _resident("VmRSS"), worker._bucket_memory.num_bytes
    sync()
    added = _resident("VmHWM") - before
    peak, allowed = trained + engine + kept + added, 1.1 * (trained + engine + BUCKET_BYTES)
    sizes = {"trained": trained, "engine": engine, "bucket": BUCKET_BYTES, "kept": kept, "added": added, "peak": peak}
    report = {f"{name}_mib": round(size / 2**20, 1) for name, size in sizes.items()}
    report |= {"allowed_mib": round(allowed / 2**20, 1), "within": peak <= allowed, "measured": "VmHWM less VmRSS"}
    print(json.dumps(report), flush=True)
    os._exit(0)  # without the farewells of vLLM


def _start_worker() -> Any:
    from dagrl import ResourcePool, WorkerGroup
    from dagrl.workers.policy import PolicyWorker

    group = WorkerGroup("actor", spec_of_policy(), pool=ResourcePool("main", [1]))
    return PolicyWorker(group, total_steps=1, rollout=True)


def _syncing(worker: Any, kind: str) -> Callable[[], None]:
    """A sync of a kind; a worker of one rank would not share its weights out by itself."""
    from dagrl.engines.parallel import DataParallel
    from dagrl.engines.sharding import shard

    if kind == "whole":
        return worker.sync_rollout
    worker.parallel = DataParallel(0, 1, "fsdp")
    shard(worker.model, list(worker.model.model.layers), worker.parallel)
    return lambda: worker.load_rollout(worker.trained_weights("bf16"))


def _resident(what: str) -> int:
    """A line of the process's status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no `{what}`: this needs Linux")
