"""Each loss trains alike however its rows lie: micro-batches, ranks, padding, row order, masked poison."""

from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch
from hook_rows import LOSSES as HOOK_LOSSES
from ranks import run_on_ranks
from recorded_rows import NUM_ROWS, OWNERS, llama, recorded
from torch import Tensor
from torch.nn.functional import pad
from transformers import LlamaForTokenClassification, PreTrainedModel

from dagrl import LossColumns, LossTerms, Metrics, adamw, nodes
from dagrl.data.metrics import merge_all
from dagrl.engines.parallel import DataParallel
from dagrl.engines.scoring import Scorer
from dagrl.engines.training import Trainer
from dagrl.engines.value_scoring import ValueScorer
from dagrl.graph.losses import Loss
from dagrl.graph.roles import TokenBatch, UpdatePlan
from dagrl.ops.kl import KL_KINDS
from dagrl.ops.masks import position_ids

LOSSES: dict[str, Callable[[], LossTerms]] = {
    "ppo_clip": lambda: nodes.ppo_clip(dual_clip=1.5),
    "decoupled_ppo": lambda: nodes.decoupled_ppo(weight_cap=1.2),
    "gspo": lambda: nodes.gspo(eps=0.2, eps_high=0.2),
    "gmpo": lambda: nodes.gmpo(),
    "reinforce": lambda: nodes.reinforce(),
    "cispo": lambda: nodes.cispo(eps_high=0.5),
    "topr": lambda: nodes.topr(),
    "sapo": lambda: nodes.sapo(),
    "dppo_tv": lambda: nodes.dppo_tv(delta=0.02),
    "dppo_kl": lambda: nodes.dppo_kl(delta=0.005),
    "dro": lambda: nodes.dro(),
    "value_clip": lambda: nodes.value_clip(eps=0.2),
    "value_clip without a clip": lambda: nodes.value_clip(eps=None),
    **{f"kl_loss {kind}": lambda kind=kind: nodes.kl_loss(kind=kind) for kind in KL_KINDS},
    "sft_loss": lambda: nodes.sft_loss(),
    "entropy_bonus": lambda: nodes.entropy_bonus(),
}
#: Losses with functions of their own beside them have the cases of `hook_rows`.
HOOKED = {"clip_cov", "kl_cov", "reverse_kl_distill", "topk_distill"}
Rows = tuple[TokenBatch, dict[str, Tensor]]
Outcome = tuple[Metrics, dict[str, Tensor]]


def rows(order: list[int] | None = None) -> Rows:
    """The recorded rows with log-probs near those of the model and rollout weights, in another order if asked."""
    tokens, columns, _ = recorded()
    draw = torch.Generator().manual_seed(11)
    columns["old_logprobs"] = columns["old_logprobs"] * 0.3 - 2.1
    for name in ("rollout_logprobs", "rollout_weights"):
        columns[name] = 0.3 * torch.randn(columns["old_logprobs"].shape, generator=draw)
    columns["rollout_logprobs"] += columns["old_logprobs"]
    columns["rollout_weights"] = columns["rollout_weights"].exp()
    for name, spread in (("values", 0.5), ("returns", 1.0)):
        columns[name] = spread * torch.randn(columns["old_logprobs"].shape, generator=draw)
    index = torch.tensor(order or list(range(NUM_ROWS)), dtype=torch.int64)
    return TokenBatch(*(one[index] for one in tokens)), {name: column[index] for name, column in columns.items()}


def widened(given: Rows, left: int, right: int, poison: float) -> Rows:
    """Wider padding, with ``poison`` at every masked place of the columns."""
    tokens, columns = given
    attention = pad(tokens.attention_mask, (left, right))
    mask = pad(tokens.response_mask, (0, right))
    ids = pad(tokens.input_ids, (left, right))
    filled = {name: pad(column.float(), (0, right)).masked_fill(~mask, poison) for name, column in columns.items()}
    tokens = TokenBatch(ids, attention, position_ids(attention), mask, tokens.temperatures)
    return tokens, {**filled, "response_mask": mask}


def train(name: str, given: Rows, micro_batch_size: int = 0, parallel: DataParallel | None = None) -> Outcome:
    """The metrics and the gradient of one step."""
    tokens, columns = given
    known: dict[str, Any] = {} if parallel is None else {"parallel": parallel}
    engine, model = (ValueScorer, valued()) if name.startswith("value") else (Scorer, llama(tied=True))
    scorer = engine(model, precision="fp32", micro_batch_tokens=10**6, **known)
    trainer = Trainer(scorer, adamw(lr=1e-3, max_grad_norm=None), total_steps=10, dropout=False)
    plan = UpdatePlan(
        loss=LOSSES[name](),
        loss_agg_mode="seq-mean-token-mean",
        norm_length=None,
        mini_batch_size=0,
        micro_batch_size=micro_batch_size,
        epochs=1,
        aliases={},
        step=1,
    )
    seeds = torch.arange(len(tokens.input_ids))
    metrics = trainer.update(tokens, LossColumns(columns), seeds, plan, None)
    weights = dict(scorer.model.named_parameters())
    return metrics, {key: weight.grad.clone() for key, weight in weights.items() if weight.grad is not None}


def valued() -> PreTrainedModel:
    """A critic whose values tell tokens apart."""
    torch.manual_seed(0)
    config = llama(tied=False).config
    config.num_labels = 1
    model = LlamaForTokenClassification(config)
    model.score.weight.data.normal_(std=0.2)
    return model


def train_rank(rank: int, size: int, names: list[str]) -> list[Outcome]:
    """Every loss on the rows that the rank owns."""
    own = [row for row, owner in enumerate(OWNERS) if owner % size == rank]
    return [train(name, rows(own), 2, DataParallel(rank, size, "replicate")) for name in names]


def assert_same(found: Outcome, expected: Outcome) -> None:
    numbers = found[0].numbers()
    assert numbers == pytest.approx(expected[0].numbers(), rel=1e-6, abs=1e-6)
    for key, gradient in expected[1].items():
        assert (found[1][key] - gradient).abs().max() <= 1e-6 * max(1.0, float(gradient.abs().max())), key


@pytest.fixture(scope="module")
def whole() -> dict[str, Outcome]:
    return {name: train(name, rows()) for name in LOSSES}


@pytest.mark.parametrize("name", LOSSES)
def test_layout_changes_no_number(whole: dict[str, Outcome], name: str) -> None:
    assert any(bool(gradient.any()) for gradient in whole[name][1].values())
    for micro_batch_size in (1, 2, 4):
        assert_same(train(name, rows(), micro_batch_size), whole[name])
    assert_same(train(name, widened(rows(), 2, 3, nan), 3), whole[name])
    assert_same(train(name, rows([4, 0, 6, 2, 5, 1, 3]), 2), whole[name])


def test_no_loss_is_left_out() -> None:
    exported = {name for name in nodes.__all__ if isinstance(getattr(nodes, name), Loss)}
    hooked = {term.contract.name for terms in HOOK_LOSSES.values() for term in terms.terms} & exported
    assert hooked == HOOKED
    assert {name.split()[0] for name in LOSSES} | HOOKED == exported


def test_some_values_are_clipped(whole: dict[str, Outcome]) -> None:
    assert 0.1 < whole["value_clip"][0].numbers()["critic/clip_fraction"] < 0.9


def test_two_ranks_train_as_one(whole: dict[str, Outcome], tmp_path: Path) -> None:
    by_rank = run_on_ranks(train_rank, 2, tmp_path, list(LOSSES))
    for name, first, second in zip(LOSSES, *by_rank, strict=True):
        for gradients in (first[1], second[1]):
            assert_same((merge_all([first[0], second[0]]), gradients), whole[name])
