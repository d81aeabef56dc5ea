"""What policy workers do as ranks of a group: stop and go on, hand their weights to the rollout, save, learn padded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from faulty_weights import NoWeights
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from dagrl import LossColumns, ResourcePool, WorkerGroup, adamw, policy
from dagrl.controller.padding import real_rows
from dagrl.controller.shards import Shard, Split
from dagrl.controller.shares import Rule, token_work
from dagrl.data import DataProto
from dagrl.engines.parallel import DataParallel
from dagrl.engines.sharding import whole
from dagrl.errors import EngineError
from dagrl.graph.roles import Sampling, TokenBatch, UpdatePlan
from dagrl.nodes import ppo_clip
from dagrl.ops.masks import position_ids
from dagrl.storage.checkpoints import StatePart, write_part
from dagrl.workers.policy import PolicyWorker
from dagrl.zoo import model_folder

NUM_ROWS = 6
GREEDY = Sampling(max_new_tokens=4, temperature=0.0)


def make_model(folder: Path, *, tied: bool) -> str:
    """A copy of the packaged model with dropout, its head a tensor of its own if asked for."""
    model = AutoModelForCausalLM.from_pretrained(model_folder("tiny"))
    model.config.attention_dropout = 0.1
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone() * 1.01)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder("tiny")).save_pretrained(folder)
    return str(folder)


def start(
    model: str,
    parallel: DataParallel,
    *,
    precision: Any = "fp32",
    trains: bool = True,
    lr: float = 1e-2,
    dropout: bool = True,
) -> PolicyWorker:
    spec = policy(model, optimizer=adamw(lr=lr) if trains else None, precision=precision, dropout=dropout)
    group = WorkerGroup("actor", spec, pool=ResourcePool("main", [parallel.size]))
    return PolicyWorker(group, total_steps=10, rollout=trains, parallel=parallel)


def seeds_of(rows: Sequence[int]) -> Tensor:
    """Those of rows by their places in the whole batch."""
    return torch.tensor(list(rows)) * 7


def own_rows(parallel: DataParallel, step: int) -> tuple[TokenBatch, LossColumns, Tensor]:
    """This rank's rows of a step: rank 0 of four has none."""
    draw = torch.Generator().manual_seed(step)
    ids = torch.randint(4, 14, (NUM_ROWS, 9), generator=draw)
    attention, mask = torch.ones(ids.shape, dtype=torch.bool), torch.ones(NUM_ROWS, 4, dtype=torch.bool)
    advantages = torch.randn(mask.shape, generator=draw)
    own = torch.arange(NUM_ROWS)[(torch.arange(NUM_ROWS) % 3 + 1) % parallel.size == parallel.rank]
    tokens = TokenBatch(ids, attention, position_ids(attention), mask, torch.ones(NUM_ROWS))
    columns = LossColumns({"advantages": advantages[own], "response_mask": mask[own]})
    return TokenBatch(*(column[own] for column in tokens)), columns, seeds_of(range(NUM_ROWS))[own]


def learn(actor: PolicyWorker, steps: range) -> None:
    for step in steps:
        tokens, columns, seeds = own_rows(actor.parallel, step)
        plan = UpdatePlan(
            loss=ppo_clip(), loss_agg_mode="token-mean", norm_length=None, mini_batch_size=4, micro_batch_size=1,
            epochs=1, aliases={"old_logprobs": "new_logprobs"}, step=step,
        )  # fmt: skip
        actor.update(tokens, columns, seeds, plan)
    actor.sync_rollout()


def weights(actor: PolicyWorker) -> dict[str, Tensor]:
    return {name: whole(weight.detach()).clone() for name, weight in actor.model.named_parameters()}


def rollout_weights(actor: PolicyWorker) -> dict[str, Tensor]:
    assert actor._rollout_model is not None
    return {name: weight.detach().clone() for name, weight in actor._rollout_model.named_parameters()}


def write_state(actor: PolicyWorker, folder: Path) -> list[str]:
    """Write this rank's part; the names of its tensors."""
    state = actor.state()
    assert state is not None
    folder.mkdir(parents=True, exist_ok=True)
    write_part(str(folder), f"actor-{actor.parallel.rank:05d}", state.tensors, state.info)
    return sorted(state.tensors)


def read_state(folder: Path) -> list[StatePart]:
    return [StatePart(str(folder), file.stem) for file in sorted(folder.glob("*.safetensors"))]


def stop_and_go_on(rank: int, size: int, strategy: Any, model: str, folder: Path) -> dict[str, Any]:
    """Four steps at once, and two, a state on disk, and two more by a new worker; and two, an absence, and two more."""
    parallel = DataParallel(rank, size, strategy)
    torch.manual_seed(1 + rank)
    without = start(model, parallel)
    learn(without, range(1, 5))
    torch.manual_seed(1 + rank)
    first = start(model, parallel)
    learn(first, range(1, 3))
    names, half = write_state(first, folder), weights(first)
    parallel.max(0)  # every part is written
    torch.manual_seed(99)
    second = start(model, parallel)
    second.load_state(read_state(folder))
    loaded = rollout_weights(second)
    learn(second, range(3, 5))
    return {
        "whole": weights(without), "half": half, "parts": weights(second), "names": names, "loaded": loaded,
        "moved": weights(learned_with_an_absence(model, parallel)),
    }  # fmt: skip


def learned_with_an_absence(model: str, parallel: DataParallel) -> PolicyWorker:
    """Four steps, half-way through which what is trained is offloaded and comes back."""
    torch.manual_seed(1 + parallel.rank)
    actor = start(model, parallel)
    learn(actor, range(1, 3))
    for action in ("offload_optimizer", "offload_model", "onload_model", "onload_optimizer"):
        actor.phase(action, 1)
    learn(actor, range(3, 5))
    return actor


def go_on(rank: int, size: int, strategy: Any, model: str, folder: Path) -> dict[str, Any]:
    """A worker at what others saved, and after one more step without dropout's help: its moments."""
    actor = start(model, DataParallel(rank, size, strategy))
    actor.load_state(read_state(folder))
    again = write_state(actor, folder.with_name(f"{folder.name}-{strategy}-{size}"))
    return {"weights": weights(actor), "names": again}


def sync_and_save(rank: int, size: int, strategy: Any, model: str, folder: Path) -> dict[str, Any]:
    """Trained, rolled-out and saved weights of a model that ranks share out, in both precisions."""
    parallel = DataParallel(rank, size, strategy)
    found: dict[str, Any] = {}
    for precision in ("fp32", "bf16"):
        actor = start(model, parallel, precision=precision)
        before = rollout_weights(actor)
        learn(actor, range(1, 2))
        tokens, _, _ = own_rows(parallel, 1)
        actor.compute_logprobs(tokens)
        actor.save(folder / precision)
        texts = actor.generate([[5, 6, 7]], torch.tensor([3]), GREEDY).responses
        ref = start(model, parallel, precision=precision, trains=False)
        logprobs = ref.compute_logprobs(tokens).logprobs
        assert ref.state() is None
        found[precision] = {
            "trained": weights(actor), "rollout": rollout_weights(actor), "before": before, "texts": texts,
            "ref": logprobs, "rows": tokens,
        }  # fmt: skip
    return found


def fail_to_load(rank: int, size: int, strategy: Any, model: str) -> dict[str, Any]:
    """What is said when weights do not come and when rows are drawn then, and what the rollout has after a sync."""
    parallel = DataParallel(rank, size, strategy)
    actor = start(model, parallel, precision="bf16")
    learn(actor, range(1, 2))
    said: list[str] = []
    for use in (
        lambda: actor.load_rollout(NoWeights(actor.model)),
        lambda: actor.generate([[5, 6, 7]], torch.tensor([3]), GREEDY),
    ):
        try:
            use()
        except EngineError as error:
            said.append(str(error))
    actor.sync_rollout()
    texts = actor.generate([[5, 6, 7]], torch.tensor([3]), GREEDY).responses
    return {"said": said, "trained": weights(actor), "rollout": rollout_weights(actor), "texts": texts}


def dispatched(count: int) -> DataProto:
    """A batch of rows of different lengths in groups of two, for a call that trains on it."""
    draw = torch.Generator().manual_seed(count)
    ids = torch.randint(4, 14, (count, 9), generator=draw)
    lengths = torch.randint(1, 5, (count,), generator=draw)
    mask = torch.arange(4)[None] < lengths[:, None]
    attention = torch.cat([torch.ones(count, 5, dtype=torch.bool), mask], 1)
    columns = {
        "input_ids": ids, "attention_mask": attention, "position_ids": position_ids(attention), "response_mask": mask,
        "temperatures": torch.ones(count), "advantages": torch.randn(mask.shape, generator=draw),
        "rollout_logprobs": -torch.rand(mask.shape, generator=draw), "group_ids": torch.arange(count) // 2,
        "seeds": torch.randperm(count, generator=draw) * 7,
    }  # fmt: skip
    return DataProto.from_dict(columns)


PADDED_LR = 1e-4
#: How rows are spread over the ranks, and the sizes of mini- and micro-batches.
SPREADS = {
    "blocks": (Rule(), 0, 1), "blocks of mini-batches": (Rule(), 2, 2), "groups": (Rule("group_ids"), 3, 0),
    "balanced": (Rule("group_ids", token_work), 2, 0),
}  # fmt: skip


def learn_padded(rank: int, size: int, strategy: Any, model: str, count: int, spread: str, mode: Any) -> dict[str, Any]:
    """Two updates on what dispatch gives this rank of a batch: the weights, the metrics, how many rows were padding."""
    parallel = DataParallel(rank, size, strategy)
    actor = start(model, parallel, lr=PADDED_LR, dropout=False)
    rule, mini, micro = SPREADS[spread]
    whole = dispatched(count)
    given = Split.of({"data": whole}, size, rule, padded=True).shard(whole, rank)
    data = given.opened() if isinstance(given, Shard) else given
    column = data.batch.__getitem__
    tokens = TokenBatch(*map(column, TokenBatch._fields))
    columns = LossColumns({name: column(name) for name in ("advantages", "response_mask")})
    numbers = []
    for step in (1, 2):
        plan = UpdatePlan(
            loss=ppo_clip(), loss_agg_mode=mode, norm_length=4, mini_batch_size=mini, micro_batch_size=micro,
            epochs=2, aliases={"old_logprobs": "new_logprobs"}, step=step,
        )  # fmt: skip
        numbers.append(actor.update(tokens, columns, column("seeds"), plan, column("rollout_logprobs")))
    scored = actor.compute_logprobs(tokens)
    padding = ~real_rows(data)
    silent = not bool(scored.logprobs[padding].any()) and not bool(scored.entropy[padding].any())
    return {"weights": weights(actor), "metrics": numbers, "padding": int(padding.sum()), "silent": silent}


def as_ranks(rank: int, size: int, cases: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Each case is a function, then its arguments after rank and size."""
    return [function(rank, size, *arguments) for function, *arguments in cases]
