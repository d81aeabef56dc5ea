"""Recorded rows, small models and their training as one rank of several."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.utils import logging

from dagrl import LossColumns, adamw
from dagrl.data.metrics import Metrics
from dagrl.engines.parallel import DataParallel
from dagrl.engines.scoring import Scorer
from dagrl.engines.sharding import whole
from dagrl.engines.training import Trainer
from dagrl.errors import TrainingError
from dagrl.graph.roles import TokenBatch, UpdatePlan
from dagrl.nodes import entropy_bonus, kl_loss, ppo_clip
from dagrl.ops.masks import mask_from_lengths, position_ids

NUM_ROWS = 7
WIDTHS = (4, 5)
#: The rank of each row among four; one of them has none. Among two: the rest by two.
OWNERS = (0, 0, 2, 2, 3, 0, 0)
VOCABULARY = 23


def llama(*, tied: bool) -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, tie_word_embeddings=tied,
    )  # fmt: skip
    config._attn_implementation = "eager"
    return LlamaForCausalLM(config)


def gpt2() -> PreTrainedModel:
    torch.manual_seed(0)
    logging.set_verbosity_error()
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=64)
    config._attn_implementation = "eager"
    return GPT2LMHeadModel(config)


MODELS = {"tied": lambda: llama(tied=True), "untied": lambda: llama(tied=False), "gpt2": gpt2}


def recorded() -> tuple[TokenBatch, dict[str, Tensor], Tensor]:
    """Seven rows with padding, holes and two rows without a trained token; columns; seeds."""
    draw = torch.Generator().manual_seed(3)
    width_p, width_t = WIDTHS
    prompts = torch.randint(1, width_p + 1, (NUM_ROWS,), generator=draw)
    responses = torch.randint(1, width_t + 1, (NUM_ROWS,), generator=draw)
    attention = torch.cat([mask_from_lengths(prompts, width_p).flip(1), mask_from_lengths(responses, width_t)], 1)
    mask = mask_from_lengths(responses, width_t) & (torch.rand((NUM_ROWS, width_t), generator=draw) > 0.2)
    mask[1] = False
    tokens = TokenBatch(
        torch.randint(0, VOCABULARY, attention.shape, generator=draw).masked_fill(~attention, 0),
        attention, position_ids(attention), mask, torch.rand(NUM_ROWS, generator=draw) + 0.5,
    )  # fmt: skip
    columns = {name: torch.randn(mask.shape, generator=draw) - 3 for name in ("old_logprobs", "ref_logprobs")}
    columns |= {"advantages": torch.randn(mask.shape, generator=draw), "response_mask": mask}
    return tokens, columns, torch.randint(0, 1 << 40, (NUM_ROWS,), generator=draw)


@dataclass(frozen=True)
class Case:
    """One update of a fresh model."""

    model: str = "tied"
    mode: str = "token-mean"
    mini_batch_size: int = 3
    micro_batch_size: int = 2
    epochs: int = 2
    max_grad_norm: float | None = 0.05
    nan_row: int | None = None
    updates: int = 1


@dataclass(frozen=True)
class Outcome:
    """What a rank has afterwards: the metrics of its part, the weights of all, its rows' log-probs, an error."""

    metrics: Metrics
    weights: dict[str, Tensor]
    logprobs: Tensor
    error: str
    row_numbers: Sequence[int]


def train(case: Case, rank: int = 0, size: int = 1, strategy: Any = "none") -> Outcome:
    """The update by one rank, on the rows it owns."""
    tokens, columns, seeds = recorded()
    if case.nan_row is not None:
        columns["advantages"][case.nan_row] = float("nan")
    own = torch.tensor([row for row, owner in enumerate(OWNERS) if owner % size == rank], dtype=torch.int64)
    tokens = TokenBatch(*(column[own] for column in tokens))
    parallel = DataParallel(rank, size, strategy)
    scorer = Scorer(MODELS[case.model](), precision="fp32", micro_batch_tokens=40, parallel=parallel)
    optimizer = adamw(lr=1e-3, max_grad_norm=case.max_grad_norm, weight_decay=0.1)
    trainer = Trainer(scorer, optimizer, total_steps=10, dropout=False)
    metrics, error = Metrics(), ""
    try:
        for step in range(1, case.updates + 1):
            given = LossColumns({name: column[own] for name, column in columns.items()})
            metrics = metrics.merge(trainer.update(tokens, given, seeds[own], update_plan(case, step), -3 * tokens[3]))
    except TrainingError as raised:
        error = str(raised)
    weights = {name: whole(weight.detach()).clone() for name, weight in scorer.model.named_parameters()}
    return Outcome(metrics, weights, scorer.compute(tokens, micro_batch_size=1).logprobs, error, own.tolist())


def update_plan(case: Case, step: int) -> UpdatePlan:
    return UpdatePlan(
        loss=ppo_clip(eps=0.2) + 0.1 * kl_loss(kind="k3") - 0.05 * entropy_bonus(),
        loss_agg_mode=case.mode,
        norm_length=7 if case.mode.endswith("norm") else None,
        mini_batch_size=case.mini_batch_size,
        micro_batch_size=case.micro_batch_size,
        epochs=case.epochs,
        aliases={},
        step=step,
    )


def train_all(rank: int, size: int, cases: Sequence[tuple[str, Case]]) -> list[Outcome]:
    """Every case by its strategy, one after another."""
    return [train(case, rank, size, strategy) for strategy, case in cases]
