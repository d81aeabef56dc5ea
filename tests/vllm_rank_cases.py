"""What ranks with engines of vLLM do: sync from shares, and draw rows of their own by a shared engine."""

from typing import Any

import torch
from faulty_weights import NoWeights
from rollout_engines import gap, rows_of
from worker_cases import GREEDY, learn

from dagrl import ResourcePool, WorkerGroup, adamw, policy, vllm
from dagrl.engines.parallel import DataParallel
from dagrl.engines.sharding import whole
from dagrl.errors import ConfigError, EngineError
from dagrl.graph.roles import Sampling
from dagrl.workers.policy import PolicyWorker

LONG = Sampling(max_new_tokens=12)


def prompts_of(rank: int, count: int) -> list[list[int]]:
    draw = torch.Generator().manual_seed(50 + rank)
    return [torch.randint(4, 60, (3 + row % 5,), generator=draw).tolist() for row in range(count)]


def worker(model: str, parallel: DataParallel, precision: Any, tensor_parallel: int) -> PolicyWorker:
    rollout = vllm(kv_cache_gib=0.1, tensor_parallel=tensor_parallel)
    spec = policy(model, optimizer=adamw(lr=1e-2), precision=precision, rollout=rollout)
    group = WorkerGroup("actor", spec, pool=ResourcePool("main", [parallel.size]))
    return PolicyWorker(group, total_steps=10, rollout=True, parallel=parallel)


@torch.no_grad()
def trained_model(actor: PolicyWorker):
    """A whole copy of what ranks share out."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(actor.model.config).eval()
    model.load_state_dict({name: whole(value) for name, value in actor.model.state_dict().items()})
    return model


def draw_and_learn(
    rank: int, size: int, strategy: Any, model: str, precision: Any, tensor_parallel: int
) -> dict[str, Any]:
    """Gaps before an update, after it, after each of two syncs; rows with the seeds of an engine of one process."""
    actor = worker(model, DataParallel(rank, size, strategy), precision, tensor_parallel)
    prompts = prompts_of(rank, 5 - 3 * rank)  # ranks have their own count of rows
    seeds = torch.arange(len(prompts)) + 100 * rank
    found: dict[str, Any] = {"rows": rows_of(actor.generate(prompts, seeds, LONG)), "gaps": []}
    found["bytes"] = actor._rollout.weight_bytes
    found["weights"] = sum(weight.numel() for weight in actor.model.parameters())
    for step in (1, 2):
        actor_before = trained_model(actor)
        learn(actor, range(step, step + 1))
        samples = actor.generate(prompts, seeds, LONG)
        found["gaps"].append((gap(trained_model(actor), prompts, samples), gap(actor_before, prompts, samples)))
    nothing = prompts if rank == 0 else []
    found["greedy"] = rows_of(actor.generate(nothing, seeds[: len(nothing)], GREEDY))
    try:
        actor.generate([[5] * 500] if rank == 0 else [[5]], torch.arange(1), LONG)
        found["overlong"] = ""
    except ConfigError as error:
        found["overlong"] = str(error)
    actor._rollout.sleep()
    actor._rollout.wake()
    found["again"] = rows_of(actor.generate(prompts, seeds, LONG))
    return found


def fail_and_go_on(rank: int, size: int, strategy: Any, model: str, tensor_parallel: int) -> dict[str, Any]:
    """An engine that died of a sync, in all ranks, is built anew by the next; the ranks' own group lives on."""
    actor = worker(model, DataParallel(rank, size, strategy), "fp32", tensor_parallel)
    prompts, seeds = prompts_of(rank, 3), torch.arange(3)
    found: dict[str, Any] = {}
    try:
        actor.load_rollout(NoWeights(actor.model))
    except EngineError as error:
        found["error"] = str(error)
    try:
        actor.generate(prompts, seeds, LONG)
    except EngineError as error:
        found["dead"] = str(error)
    learn(actor, range(1, 2))  # its sync builds the engine anew
    found["gap"] = gap(trained_model(actor), prompts, actor.generate(prompts, seeds, LONG))
    return found
