"""The files that ``dagrl new`` writes; ``NAME`` stands for the name given."""

from collections.abc import Mapping

_NODE = '''"""An advantage of one's own: the reward above the group's median."""

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import node


@node(writes="advantages", split="group")
def NAME(
    rewards: Float32[Tensor, " B"],
    group_ids: Int64[Tensor, " B"],
    response_mask: Bool[Tensor, "B T"],
    *,
    scale: float = 1.0,
) -> Float32[Tensor, "B T"]:
    """Reward less the median of its group, times scale, at every trained token; an unscorable (NaN) reward gets 0."""
    per_row = torch.zeros_like(rewards)
    for group in group_ids.unique():  # rows of a group may lie anywhere
        rows = (group_ids == group) & ~rewards.isnan()
        per_row[rows] = scale * (rewards[rows] - rewards[rows].median())
    return per_row.unsqueeze(-1) * response_mask
'''

_NODE_TEST = '''"""NAME by hand, and against the contract that its signature states."""

import sys
from pathlib import Path

import torch

from dagrl.contracts import check_node

sys.path.insert(0, str(Path(__file__).parent))
from NAME import NAME  # it lies beside this file


def test_by_hand() -> None:
    rewards, mask = torch.tensor([1.0, 5.0, 0.0, 3.0]), torch.tensor([[True, False]] * 4)
    advantages = NAME(rewards, torch.tensor([7, 7, 7, 8]), mask)
    assert advantages.tolist() == [[0.0, 0.0], [4.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]


def test_keeps_its_contract() -> None:
    assert [str(violation) for violation in check_node(NAME)] == []
'''

_LOSS = '''"""A loss of one's own: the policy gradient under a bounded importance weight."""

from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl import Metrics, loss
from dagrl.ops.masks import mean_metric, where_masked


@loss()
def NAME(
    new_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    *,
    most: float = 2.0,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Minus min(new / old, most) * advantage * log-prob, token by token; the engine averages over tokens or rows."""
    new, old, advantage = (where_masked(x, response_mask) for x in (new_logprobs, old_logprobs, advantages))
    weight = (new.detach() - old).exp().clamp(max=most)
    losses = -weight * advantage * new
    return losses, Metrics({"actor/weight": mean_metric(weight, response_mask)})
'''

_LOSS_TEST = '''"""NAME by hand, and against the contract that its signature states."""

import sys
from pathlib import Path

import pytest
import torch

from dagrl.contracts import check_loss

sys.path.insert(0, str(Path(__file__).parent))
from NAME import NAME  # it lies beside this file


def test_by_hand() -> None:
    new, old = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -9.0]])
    losses, metrics = NAME(new, old, torch.ones(1, 2), torch.ones(1, 2).bool())
    assert losses.tolist() == [[1.0, 2.0]]
    assert metrics.numbers() == pytest.approx({"actor/weight": 1.5})


def test_keeps_its_contract() -> None:
    assert [str(violation) for violation in check_loss(NAME)] == []
'''

_PIPELINE = '''"""GRPO (arXiv 2402.03300) to start from: change the data, the reward, the advantage or the loss."""

from dataclasses import dataclass

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy
from dagrl.nodes import (
    generate,
    grpo_advantage,
    kl_loss,
    old_logprob,
    ppo_clip,
    prompts,
    ref_logprob,
    update_policy,
    verify,
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The knobs: ``dagrl run NAME.py --set n=8``."""

    model: str = "zoo:tiny"  # or a Hugging Face name, or a local folder
    data: str = "zoo:larger"
    steps: int = 100
    batch_size: int = 64  # prompts per step
    n: int = 4  # answers per prompt: one group
    max_new_tokens: int = 8
    lr: float = 2e-4
    kl: float = 0.02  # 0 drops the reference model


def build(cfg: Config) -> Pipeline:
    """One step."""
    pool = ResourcePool("main")
    actor = WorkerGroup("actor", policy(cfg.model, optimizer=adamw(lr=cfg.lr, warmup=10)), pool=pool)
    ref = WorkerGroup("ref", policy(cfg.model), pool=pool)

    with Pipeline("NAME", steps=cfg.steps) as step:
        batch = prompts(data=cfg.data, batch_size=cfg.batch_size, n=cfg.n)
        rollout = generate(actor, batch, max_new_tokens=cfg.max_new_tokens)
        reward = verify(batch, rollout)
        advantage = grpo_advantage(rollout, reward)
        old = old_logprob(actor, rollout)
        reference = ref_logprob(ref, rollout)
        loss = ppo_clip(eps=0.2) + cfg.kl * kl_loss(kind="k3")
        update_policy(actor, rollout, old, reference, advantage, loss=loss, loss_agg_mode="seq-mean-token-mean")

    return step
'''

_PIPELINE_TEST = '''"""NAME is planned, and runs a step on the packaged tiny model."""

from pathlib import Path

from dagrl.cli.pipeline_file import load_pipelines
from dagrl.compiler import compile_pipelines
from dagrl.storage.segments import read_lines
from dagrl.trainer.loop import run

FILE = str(Path(__file__).with_name("NAME.py"))


def test_compiles() -> None:
    (plan,) = compile_pipelines(load_pipelines(FILE).pipelines)
    assert plan.pipeline == "NAME"


def test_runs_a_step(tmp_path: Path) -> None:
    loaded = load_pipelines(FILE, {"batch_size": "2"})
    run(loaded.pipelines, out=str(tmp_path / "run"), steps=1)
    assert read_lines(str(tmp_path / "run"), "metrics")
'''

#: Source and test by kind.
TEMPLATES: Mapping[str, tuple[str, str]] = {
    "node": (_NODE, _NODE_TEST),
    "loss": (_LOSS, _LOSS_TEST),
    "pipeline": (_PIPELINE, _PIPELINE_TEST),
}
