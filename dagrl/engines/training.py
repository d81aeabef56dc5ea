"""The optimizer steps of an update: mini-batches, micro-batches, losses with global denominators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from dagrl.data.metrics import Mean, Metrics, Sum, merge_all
from dagrl.engines.canary import GapMeter
from dagrl.engines.gradients import add_up_gradients, clip_gradients, global_norm
from dagrl.engines.loss_terms import joined, loss_columns, sum_of_terms
from dagrl.engines.parallel import DataParallel
from dagrl.engines.passes import Cut, Passes
from dagrl.engines.prepared import MiniBatch, Prepared, needs_forward, prepare_hooks, prepare_terms
from dagrl.engines.projection import projections
from dagrl.engines.state import StatePart, WorkerState, put_state, take_state
from dagrl.errors import TrainingError
from dagrl.graph.progress import Progress, progress_heard
from dagrl.graph.roles import LossColumns, TokenBatch, UpdatePlan
from dagrl.graph.specs import AdamW
from dagrl.ops.aggregate import Denominators, aggregate
from dagrl.ops.minibatches import mini_batches
from dagrl.ops.random import hash_ids


@dataclass(frozen=True)
class _Rows:
    """The rows of one mini-batch, columns of the losses and what these prepared included."""

    tokens: TokenBatch
    columns: Mapping[str, Tensor]
    seeds: Tensor
    rollout_logprobs: Tensor | None
    prepared: Prepared = field(default_factory=dict[int, Mapping[str, Tensor]])

    def take(self, index: Tensor | slice) -> _Rows:
        return _Rows(
            TokenBatch(*(column[index] for column in self.tokens)),
            {name: column[index] for name, column in self.columns.items()},
            self.seeds[index],
            None if self.rollout_logprobs is None else self.rollout_logprobs[index],
            {term: {name: column[index] for name, column in of.items()} for term, of in self.prepared.items()},
        )


class _Pass(NamedTuple):
    """A forward pass with gradient over one micro-batch: what was cut, the mask, and what losses may read of it."""

    cut: Cut
    mask: Tensor
    outputs: dict[str, Tensor]
    columns: dict[str, Tensor]
    projected: dict[int, dict[str, Tensor]]


class Trainer:
    """Trains the scorer's model with AdamW; ``total_steps`` updates make the whole schedule.

    Each rank of the scorer's group brings its own rows to every update, perhaps none. All of them make the same
    step, as one process with all rows would: the merged metrics are those of that process. Their names begin with
    ``role``.
    """

    def __init__(
        self, scorer: Passes, optimizer: AdamW, *, total_steps: int, dropout: bool, role: str = "actor"
    ) -> None:
        self.scorer = scorer
        self._role = role
        self.spec = optimizer
        self.total_steps = total_steps
        self._parallel = scorer.parallel
        # What is known to all ranks is counted once.
        self._count = 1.0 if scorer.parallel.rank == 0 else 0.0
        self._dropout = dropout
        self._parameters = [parameter for parameter in scorer.model.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=optimizer.lr,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )

    def update(
        self,
        tokens: TokenBatch,
        columns: LossColumns,
        seeds: Int64[Tensor, " B"],
        plan: UpdatePlan,
        rollout_logprobs: Float32[Tensor, "B T"] | None,
    ) -> Metrics:
        """Run the plan's epochs over its mini-batches; see ``Policy.update``.

        Raises:
            TrainingError: when a gradient is not finite; the weights then are those before its step.
        """
        scheduled = self.total_steps - (plan.first_step - 1)
        lr = self.spec.lr * lr_factor(self.spec, plan.step - plan.first_step, scheduled)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        whole = _Rows(tokens, columns, seeds, rollout_logprobs)
        progress = Progress(len(seeds) * plan.epochs)
        self.scorer.model.train(self._dropout)
        try:
            metrics = merge_all(list(self._steps(whole, plan, progress)))
        finally:
            self.scorer.model.eval()
        return metrics.merge({f"{self._role}/lr": self._once(lr)})

    def optimizer_tensors(self) -> Iterator[Tensor]:
        """The tensors of the optimizer's state; none before the first step."""
        return (value for state in self._optimizer.state.values() for value in state.values() if torch.is_tensor(value))

    def move_optimizer(self, device: torch.device) -> None:
        """Have the tensors of the optimizer's state on a device."""
        for state in self._optimizer.state.values():
            state |= {name: value.to(device) for name, value in state.items() if torch.is_tensor(value)}

    def state(self) -> WorkerState:
        """This rank's part of weights, optimizer and random numbers."""
        return take_state(self.scorer.model, self._optimizer, self._parallel)

    def load_state(self, parts: Sequence[StatePart]) -> None:
        """Go on from the parts that all ranks gave; see ``put_state``."""
        put_state(self.scorer.model, self._optimizer, self._parallel, parts)

    def _steps(self, whole: _Rows, plan: UpdatePlan, progress: Progress) -> Iterator[Metrics]:
        """An optimizer step for each mini-batch; one without a trained token on any rank changes nothing.

        The first that steps, on all ranks the same, measures the gap to the rollout: before it the weights are those
        of the last sync.
        """
        meter = None if whole.rollout_logprobs is None else GapMeter()
        for number, index in enumerate(_walk(whole.seeds, plan, self._parallel)):
            rows = whole if index is None else whole.take(index)
            denominators = self._denominators(rows.tokens.response_mask)
            if denominators.tokens == 0:
                yield Metrics({f"{self._role}/empty_mini_batches": Sum(self._count)})
                continue
            yield self._optimizer_step(rows, plan, denominators, progress, number, meter)
            meter = None

    def _optimizer_step(
        self,
        rows: _Rows,
        plan: UpdatePlan,
        denominators: Denominators,
        progress: Progress,
        number: int,
        meter: GapMeter | None,
    ) -> Metrics:
        """Accumulate the gradient of one mini-batch and step."""
        mask = rows.tokens.response_mask
        self._optimizer.zero_grad(set_to_none=True)
        metrics, loss = Metrics(), 0.0
        passes = [
            micro for micro in self.scorer.micro_batches(rows.tokens, plan.micro_batch_size) if bool(mask[micro].any())
        ]
        rows, ahead = self._prepared(rows, plan, passes, number)
        missing = self.scorer.missing_passes(len(passes))
        for micro in passes:
            part, share = self._backward(rows.take(micro), plan, denominators, ahead, meter)
            metrics, loss = metrics.merge(part), loss + share
            progress.advance(micro.stop - micro.start)
        for _ in range(missing):
            self.scorer.empty_pass().backward()
        if self._parallel.replicated:
            add_up_gradients(self._parameters, self._parallel)
        norm = self._clipped_norm(plan.step)
        if meter is not None and plan.canary is not None:
            meter.require_small(plan.canary, plan.step, self._parallel)
        self._optimizer.step()
        own = {
            f"{self._role}/loss": Mean(loss, self._count),
            f"{self._role}/grad_norm": self._once(norm),
            f"{self._role}/optimizer_steps": Sum(self._count),
        }
        return joined(metrics, own)

    def _prepared(
        self, rows: _Rows, plan: UpdatePlan, passes: Sequence[slice], number: int
    ) -> tuple[_Rows, _Pass | None]:
        """The rows with what the losses prepare of them, and the forward pass that was made for it, with gradient."""
        terms = plan.loss.live
        if not any(prepare_hooks(terms)):
            return rows, None
        ahead: _Pass | None = None
        outputs: dict[str, Tensor] | None = None
        if needs_forward(terms, plan.aliases):
            if self._is_one_pass(passes):
                ahead = self._forward(rows.take(passes[0]), plan) if passes else None
                outputs = _spread(self.scorer.output_names, rows.tokens.response_mask, passes, ahead)
            else:
                outputs = self._computed(rows.tokens, plan.micro_batch_size)
        batch = MiniBatch(rows.tokens, rows.columns, rows.seeds, number, outputs, plan.aliases)
        prepared = prepare_terms(terms, batch, self._parallel, self.scorer.device)
        return replace(rows, prepared=prepared), ahead

    def _is_one_pass(self, passes: Sequence[slice]) -> bool:
        """Whether each rank's forward pass over the mini-batch is the one of its backward pass, and without dropout.

        Where passes are collectives a rank without rows must make its empty one in step, which it does at the end.
        """
        counts = [int(count) for count in self._parallel.gather(torch.tensor([len(passes)]))]
        return not self._dropout and max(counts) <= 1 and (not self._parallel.sharded or min(counts) == 1)

    def _computed(self, tokens: TokenBatch, micro_batch_size: int) -> dict[str, Tensor]:
        """A forward pass without gradient or dropout."""
        self.scorer.model.eval()
        try:
            with progress_heard(lambda done, total, unit: None):
                return self.scorer.compute_outputs(tokens, micro_batch_size=micro_batch_size)
        finally:
            self.scorer.model.train(self._dropout)

    def _denominators(self, mask: Tensor) -> Denominators:
        """Those of a mini-batch, from this rank's rows of it."""
        own = Denominators.of(mask)
        tokens, rows = self._parallel.sum([own.tokens, own.rows])
        return Denominators(int(tokens), int(rows))

    def _once(self, value: float) -> Mean:
        """A number that every rank knows, reported by one."""
        return Mean(value * self._count, self._count)

    def _forward(self, rows: _Rows, plan: UpdatePlan) -> _Pass:
        """A forward pass with gradient over one micro-batch, and what it gives each loss term."""
        tokens, cut = self.scorer.cut(rows.tokens, slice(None))
        mask = tokens.response_mask
        terms = plan.loss.live
        wanted = {name for term in terms for name in term.contract.engine_outputs}
        columns = loss_columns(rows.columns, plan.loss.reads(), cut, mask)
        readers = projections(terms, columns, plan.aliases, mask)
        outputs, read = self.scorer.outputs(tokens, wanted, list(readers.values()))
        projected = {term: {readers[term].hook.name: value} for term, value in zip(readers, read, strict=True)}
        return _Pass(cut, mask, outputs, columns, projected)

    def _backward(
        self, rows: _Rows, plan: UpdatePlan, denominators: Denominators, ahead: _Pass | None, meter: GapMeter | None
    ) -> tuple[Metrics, float]:
        """Add the gradient of one micro-batch, and its gap to the meter; its metrics and its share of the loss."""
        cut, mask, outputs, columns, projected = ahead or self._forward(rows, plan)
        aliased = {column: outputs[output].detach() for column, output in plan.aliases.items()}
        prepared = {
            number: loss_columns(rows.prepared[number], hook.gives, cut, mask)
            for number, _, hook in prepare_hooks(plan.loss.live)
        }
        given = {number: {**prepared.get(number, {}), **projected.get(number, {})} for number in prepared | projected}
        losses, metrics = sum_of_terms(plan.loss.live, {**columns, **aliased, **outputs}, mask, given)
        loss = aggregate(losses, mask, plan.loss_agg_mode, denominators, norm_length=plan.norm_length)
        loss.backward()
        observed = self.scorer.observed(outputs, mask)
        if meter is not None and rows.rollout_logprobs is not None:
            rollout = cut.apply(rows.rollout_logprobs, ("T",)).to(mask.device)
            observed |= meter.add(outputs["new_logprobs"].detach(), rollout, mask)
        return joined(metrics, observed), float(loss.detach())

    def _clipped_norm(self, step: int) -> float:
        norm = global_norm(self._parameters, self._parallel)
        if not bool(norm.isfinite()):
            raise TrainingError(
                f"the gradient norm is {float(norm)} in step {step}: "
                "a loss or a column is not finite; the weights are those before this step"
            )
        if self.spec.max_grad_norm is not None:
            clip_gradients(self._parameters, self.spec.max_grad_norm, norm)
        return float(norm)


def lr_factor(spec: AdamW, update: int, total: int) -> float:
    """What the learning rate is multiplied by at the update (0-based): linear warm-up times decay.

    The last warm-up update and those after it use the full decayed rate; decay runs from 1 at the first
    update towards ``min_lr_ratio`` after the last.
    """
    warm = min(1.0, (update + 1) / spec.warmup) if spec.warmup else 1.0
    done = min(1.0, update / total) if total else 0.0
    match spec.decay:
        case "linear":
            shape = 1.0 - done
        case "cosine":
            shape = 0.5 * (1.0 + math.cos(math.pi * done))
        case "constant":
            return warm
    return warm * (spec.min_lr_ratio + (1.0 - spec.min_lr_ratio) * shape)


def _walk(seeds: Int64[Tensor, " B"], plan: UpdatePlan, parallel: DataParallel) -> Iterator[Tensor | None]:
    """This rank's rows of each optimizer step; None stands for all, in place.

    Membership comes from the seeds of all ranks' rows, so it depends neither on their order nor on which rank has
    which; epochs permute the mini-batches.
    """
    by_rank = parallel.gather(seeds)
    everyone = torch.cat(by_rank)
    batches = mini_batches(everyone, plan.mini_batch_size)
    if len(batches) == 1:
        yield from [None] * plan.epochs
        return
    names = torch.stack([everyone[batch].min() for batch in batches])
    start = sum(len(other) for other in by_rank[: parallel.rank])
    own = [batch[(batch >= start) & (batch < start + len(seeds))] - start for batch in batches]
    for epoch in range(plan.epochs):
        for number in hash_ids(epoch, names).argsort().tolist():
            yield own[number]


def _spread(names: Sequence[str], mask: Tensor, passes: Sequence[slice], ahead: _Pass | None) -> dict[str, Tensor]:
    """What the one pass gave, detached, at its places among all rows of this rank; 0 elsewhere, and without a pass."""
    whole = {name: torch.zeros(mask.shape, device=mask.device) for name in names}
    for name, values in ahead.outputs.items() if ahead is not None else ():
        whole[name][passes[0], : values.shape[1]] = values.detach().to(mask.device)
    return whole
