"""Recorded rows trained with losses that prepare over a mini-batch or project logits, as one rank of several."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float32, Int64
from recorded_rows import MODELS, NUM_ROWS, OWNERS, VOCABULARY, recorded
from torch import Tensor

from dagrl import LossColumns, LossTerms, Metrics, adamw, loss
from dagrl.data.join import Widths, repad
from dagrl.engines import scoring
from dagrl.engines.parallel import DataParallel
from dagrl.engines.scoring import Scorer
from dagrl.engines.sharding import whole
from dagrl.engines.training import Trainer
from dagrl.graph.roles import LogProbs, TokenBatch, TopLogProbs, UpdatePlan
from dagrl.nodes import clip_cov, kl_cov, reverse_kl_distill, topk_distill
from dagrl.ops.masks import mean_metric

Tokens = Float32[Tensor, "B T"]
Mask = Bool[Tensor, "B T"]
K = 4


class Drawn(NamedTuple):
    drawn: Tokens
    row_sum: Float32[Tensor, " B"]


def draw(token_uniform: Tokens, weights: Float32[Tensor, " B"], response_mask: Mask) -> Drawn:
    """Draws, and a sum over rows of a column that padding rows repeat."""
    return Drawn(token_uniform, weights.sum().expand(len(weights)))


@loss(prepare=draw)
def drawn_loss(new_logprobs: Tokens, drawn: Tokens, row_sum: Float32[Tensor, " B"], response_mask: Mask) -> tuple[
    Tokens, Metrics
]:  # fmt: skip
    """Every token by what was drawn for it."""
    losses = new_logprobs * drawn * row_sum.unsqueeze(1)
    return losses, Metrics({"drawn": mean_metric(drawn, response_mask)})


def weighed(
    new_logits: Float32[Tensor, "N V"],
    weights: Float32[Tensor, " N"],
    temperatures: Float32[Tensor, " N"],
    old_logprobs: Float32[Tensor, " N"],
) -> Float32[Tensor, " N"]:
    """Reads columns of tokens, and one of rows that the legend knows."""
    return (new_logits * temperatures[:, None]).square().mean(1) * weights + old_logprobs * new_logits[:, 3]


@loss(project=weighed)
def weighed_loss(weighed: Tokens, response_mask: Mask) -> tuple[Tokens, Metrics]:
    """A projection of raw logits."""
    return weighed, Metrics({"weighed": mean_metric(weighed.detach(), response_mask)})


class Spread(NamedTuple):
    likeliest: Tokens
    seen: Float32[Tensor, "B T K"]


def spread(
    teacher_topk_logprobs: Float32[Tensor, "B T K"], teacher_topk_ids: Int64[Tensor, "B T K"], response_mask: Mask
) -> Spread:
    """Reads and gives a dim that no padding knows."""
    share = teacher_topk_logprobs.exp() * response_mask.unsqueeze(-1)
    return Spread(teacher_topk_ids[..., 0] * share.sum(-1), share / share.sum().clamp(min=1))


@loss(prepare=spread)
def spread_loss(
    new_logprobs: Tokens, likeliest: Tokens, seen: Float32[Tensor, "B T K"], response_mask: Mask
) -> tuple[Tokens, Metrics]:
    """Every token by what a teacher says of it among all rows."""
    losses = new_logprobs * (likeliest + seen.sum(-1))
    return losses, Metrics({"spread": mean_metric(losses.detach(), response_mask)})


LOSSES: dict[str, LossTerms] = {
    "spread": spread_loss(),
    "clip_cov": clip_cov(clip_ratio=0.25, cov_low=-0.4, cov_high=0.6),
    "kl_cov": kl_cov(k_percent=0.2, ppo_kl_coef=0.7),
    "drawn": drawn_loss(),
    "reverse_kl": reverse_kl_distill(),
    "topk forward": topk_distill(),
    "topk reverse": topk_distill(kind="reverse"),
    "topk renormalized": topk_distill(tail="renormalize"),
    "topk dropped": topk_distill(tail="drop"),
    "all": clip_cov(clip_ratio=0.25, cov_low=-0.4, cov_high=0.6) + 0.3 * topk_distill() - 0.1 * drawn_loss(),
}


@dataclass(frozen=True)
class HookCase:
    """One update of a fresh model; ``order`` and ``extra`` lay the same rows out in another way."""

    loss: str
    model: str = "tied"
    mode: Any = "token-mean"
    mini_batch_size: int = 0
    micro_batch_size: int = 0
    epochs: int = 1
    order: tuple[int, ...] = tuple(range(NUM_ROWS))
    extra: tuple[int, int] = (0, 0)
    poison: float = 0.0
    max_logits: int | None = None
    padded: bool = False
    only_rank: int | None = None


@dataclass(frozen=True)
class HookOutcome:
    """Metrics of a rank's part; the last gradient and the weights of all; passes without and with gradient."""

    metrics: Metrics
    gradient: dict[str, Tensor]
    weights: dict[str, Tensor]
    passes: tuple[int, int]


class CountingScorer(Scorer):
    """Counts its passes: those without gradient, and those with one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.passes = [0, 0]

    def read(self, *args: Any, **options: Any) -> tuple[LogProbs, list[Tensor]]:
        self.passes[torch.is_grad_enabled()] += 1
        return super().read(*args, **options)


def laid_out(case: HookCase) -> tuple[TokenBatch, dict[str, Tensor], Tensor]:
    """The recorded rows with a teacher's columns, in the case's order and widths."""
    tokens, columns, seeds = recorded()
    draw_from = torch.Generator().manual_seed(11)
    mask = tokens.response_mask
    teacher = (2 * torch.randn(*mask.shape, VOCABULARY, generator=draw_from)).log_softmax(-1)
    highest, ids = teacher.topk(K)
    columns |= {"teacher_topk_ids": ids, "teacher_topk_logprobs": highest, "teacher_logprobs": teacher[..., 0]}
    columns |= {"weights": torch.rand(NUM_ROWS, generator=draw_from) + 0.5, "temperatures": tokens.temperatures}
    for name, column in columns.items():
        if column.is_floating_point() and column.ndim > 1:
            hidden = ~mask.reshape(*mask.shape, *[1] * (column.ndim - 2))
            columns[name] = column.masked_fill(hidden, case.poison)
    order = torch.tensor(case.order)
    have = Widths(tokens.input_ids.shape[1] - mask.shape[1], mask.shape[1])
    want = Widths(have.P + case.extra[0], have.T + case.extra[1])

    def wide(column: Tensor, dims: tuple[str, ...]) -> Tensor:
        return repad(column[order], dims, have, want, 0)

    kinds = (("B", "S"), ("B", "S"), ("B", "S"), ("B", "T"), ("B",))
    tokens = TokenBatch(*(wide(column, dims) for column, dims in zip(tokens, kinds, strict=True)))
    return tokens, {n: wide(c, ("B", "T", "K")[: c.ndim]) for n, c in columns.items()}, seeds[order]


def own_rows(case: HookCase, rank: int, size: int) -> tuple[TokenBatch, dict[str, Tensor], Tensor]:
    """The rows that a rank owns, all of them if it is the only one that has any.

    If the case is padded, each rank also has one that only fills its share. A rank without rows is given columns whose
    K is 0, as a worker that has received none is.
    """
    tokens, columns, seeds = laid_out(case)
    owners = OWNERS if case.only_rank is None or size == 1 else [case.only_rank] * NUM_ROWS
    own = [place for place, row in enumerate(case.order) if owners[row] % size == rank]
    trained = next(place for place in range(NUM_ROWS) if bool(tokens.response_mask[place].any()))
    index = torch.tensor([*own, *([trained] if case.padded else [])], dtype=torch.int64)
    tokens = TokenBatch(*(column[index] for column in tokens))
    if case.padded:
        tokens.response_mask[-1] = False
    columns = {name: column[index] for name, column in columns.items()} | {"response_mask": tokens.response_mask}
    if not len(index):
        columns = {name: column[..., :0] if column.ndim == 3 else column for name, column in columns.items()}
    return tokens, columns, seeds[index]


def train_hooked(case: HookCase, rank: int = 0, size: int = 1, strategy: Any = "none") -> HookOutcome:
    """The update by one rank."""
    tokens, columns, seeds = own_rows(case, rank, size)
    parallel = DataParallel(rank, size, strategy)
    scorer = CountingScorer(MODELS[case.model](), precision="fp32", micro_batch_tokens=10**6, parallel=parallel)
    trainer = Trainer(scorer, adamw(lr=1e-3, max_grad_norm=None), total_steps=10, dropout=False)
    usual = scoring.MAX_LOGITS
    scoring.MAX_LOGITS = case.max_logits or usual
    try:
        metrics = trainer.update(tokens, LossColumns(columns), seeds, hook_plan(case), None)
    finally:
        scoring.MAX_LOGITS = usual
    named = list(scorer.model.named_parameters())
    gradient = {name: whole(p.grad).clone() for name, p in named if p.grad is not None}
    weights = {name: whole(p.detach()).clone() for name, p in named}
    return HookOutcome(metrics, gradient, weights, (scorer.passes[0], scorer.passes[1]))


def hook_plan(case: HookCase) -> UpdatePlan:
    return UpdatePlan(
        loss=LOSSES[case.loss],
        loss_agg_mode=case.mode,
        norm_length=None,
        mini_batch_size=case.mini_batch_size,
        micro_batch_size=case.micro_batch_size,
        epochs=case.epochs,
        aliases={},
        step=1,
    )


def teach(rank: int, size: int, strategy: Any) -> tuple[list[int], TopLogProbs]:
    """What a teacher of several ranks says of the rows that this one owns."""
    tokens, _, _ = own_rows(HookCase("all"), rank, size)
    parallel = DataParallel(rank, size, strategy)
    scorer = Scorer(MODELS["tied"](), precision="fp32", micro_batch_tokens=40, parallel=parallel)
    own = [row for row in range(NUM_ROWS) if OWNERS[row] % size == rank]
    return own, scorer.compute_topk(tokens, K, micro_batch_size=2)


def train_all_hooked(rank: int, size: int, cases: Sequence[tuple[str, HookCase]]) -> list[HookOutcome]:
    """Every case by its strategy, one after another."""
    return [train_hooked(case, rank, size, strategy) for strategy, case in cases]
