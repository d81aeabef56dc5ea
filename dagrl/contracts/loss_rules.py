"""The rules that every loss keeps, and ``check_loss``, which tries them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dagrl.contracts.batch import POISONS, Batch, reward_names, shuffled_order, unscorable, untrained
from dagrl.contracts.loss_probe import LossProbe
from dagrl.contracts.outcome import Outcome
from dagrl.contracts.rules import Rule, broken_rules
from dagrl.contracts.violation import Finding, Violation
from dagrl.data.metrics import merge_all
from dagrl.graph.hooks import NEW_LOGPROBS
from dagrl.graph.losses import Loss

_OTHER_NOISE = 12345
_MASK_FIX = (
    "fill masked places before you compute (`x.masked_fill(~response_mask, 0)`), reduce with `dagrl.ops.row_mean`"
)
_MICRO_BATCHES = ([0, 1, 2, 3, 4], [5], [6, 7, 8, 9, 10, 11])


def check_loss(loss: Loss[..., Any], options: Mapping[str, Any] | None = None) -> list[Violation]:
    """Every rule that the loss breaks; ``options`` go before ``examples=`` and defaults."""
    return broken_rules(loss.contract, lambda: LossProbe(loss, options or {}), RULES)


def _finite(probe: LossProbe) -> Finding | None:
    for name, rows in probe.expected.rows.items():
        for place, row in enumerate(rows):
            if not bool(row.isfinite().all()):
                return Finding(f"{name} of row {place} is not finite on ordinary rows", "guard logs and divisions")
    return None


def _gradient(probe: LossProbe) -> Finding | None:
    if any(bool(row.any()) for name in probe.gradients.values() for row in probe.expected.rows[name]):
        return None
    outputs = ", ".join(f"`{name}`" for name in probe.gradients)
    return Finding(f"no gradient reaches {outputs}, so nothing is trained", "do not detach it; compute with torch")


def _determinism(probe: LossProbe) -> Finding | None:
    seen = probe.expected.difference(probe.run(probe.batch, noise=_OTHER_NOISE), range(probe.batch.num_rows))
    fix = "a loss draws nothing: have a node write what is random as a column, from `seeds`"
    return Finding(f"gives another result when called again: {seen}", fix) if seen else None


def _row_order(probe: LossProbe) -> Finding | None:
    order = shuffled_order(probe.batch.num_rows)
    seen = probe.expected.difference(probe.run(probe.batch.take(order)), order.tolist())
    return Finding(f"depends on the order of the rows: {seen}", "compute each row by itself") if seen else None


def _micro_batch(probe: LossProbe) -> Finding | None:
    whole = probe.prepared(probe.batch)
    parts = [probe.run(whole.take(torch.tensor(part))) for part in _MICRO_BATCHES]
    rows = {name: [row for part in parts for row in part.rows[name]] for name in probe.expected.rows}
    merged = Outcome(rows, merge_all(part.metrics for part in parts))
    seen = probe.expected.same_rows(merged, [row for part in _MICRO_BATCHES for row in part])
    if seen is not None:
        fix = "use no statistic over rows: compute it in a node and read it as a column"
        return Finding(f"depends on which rows share its micro-batch: {seen}", fix)
    seen = probe.expected.same_metrics(merged.metrics)
    fix = "return sums with counts (`dagrl.ops.masks.mean_metric`): micro-batches merge them"
    return Finding(f"metrics depend on the micro-batch: {seen}", fix) if seen else None


def _chunk(probe: LossProbe) -> Finding | None:
    if probe.contract.project is None:
        return None
    seen = probe.expected.difference(probe.run(probe.batch, chunk=1), range(probe.batch.num_rows))
    fix = "compute each token by itself: what needs others belongs in the loss or in `prepare=`"
    return Finding(f"its `project=` depends on which tokens share a chunk: {seen}", fix) if seen else None


def _padding(probe: LossProbe) -> Finding | None:
    seen = probe.expected.difference(probe.run(probe.batch.widened(0, 3)), range(probe.batch.num_rows))
    return Finding(f"depends on the padding width: {seen}", _MASK_FIX) if seen else None


def _masked_places(probe: LossProbe) -> Finding | None:
    for poison in POISONS:
        seen = _poisoned(probe, probe.batch.poisoned(probe.columns, poison))
        if seen is not None:
            return Finding(f"reads masked places, where {poison} stood: {seen}", _MASK_FIX)
    outputs = probe.batch.poisoned(frozenset({*probe.contract.engine_outputs, NEW_LOGPROBS}), -3.0)
    seen = _poisoned(probe, outputs)
    return Finding(f"reads masked places of the engine's outputs: {seen}", _MASK_FIX) if seen else None


def _poisoned(probe: LossProbe, batch: Batch) -> str | None:
    return probe.expected.difference(probe.run(batch), range(probe.batch.num_rows))


def _untrained_row(probe: LossProbe) -> Finding | None:
    seen = _without(probe, untrained(probe.batch), "with a row that has no trained token")
    return Finding(seen, "divide by a count of at least 1: `.clamp(min=1)`") if seen else None


def _unscorable(probe: LossProbe) -> Finding | None:
    names = reward_names(probe.batch, probe.columns)
    if not names:
        return None
    seen = _without(probe, unscorable(probe.batch, names), "with an unscorable (NaN) reward")
    return Finding(seen, "give rows with a NaN reward a loss of 0: `rewards.nan_to_num(0.0)`") if seen else None


def _without(probe: LossProbe, batch: Batch, situation: str) -> str | None:
    """What goes wrong when row 0 is special: a value that is not finite, or a change of other rows."""
    outcome = probe.run(batch)
    for name, rows in outcome.rows.items():
        for place, row in enumerate(rows):
            if isinstance(row, Tensor) and not bool(row.isfinite().all()):
                return f"{name} of row {place} is not finite {situation}"
    for name, metric in outcome.metrics.numbers().items():
        if metric != metric:
            return f"metric `{name}` is NaN {situation}"
    if probe.contract.prepare is not None:  # a statistic over all rows is what it is for
        return None
    others = list(range(1, batch.num_rows))
    kept = Outcome({name: [rows[row] for row in others] for name, rows in outcome.rows.items()}, outcome.metrics)
    seen = probe.expected.same_rows(kept, others)
    return f"{situation}, other rows change: {seen}" if seen else None


def _optional_reads(probe: LossProbe) -> Finding | None:
    probe.try_optional_reads()


RULES: tuple[Rule[LossProbe], ...] = (
    Rule("finite", _finite),
    Rule("gradient", _gradient),
    Rule("same call, same result", _determinism),
    Rule("row order", _row_order),
    Rule("micro-batch", _micro_batch),
    Rule("chunk", _chunk),
    Rule("padding width", _padding),
    Rule("masked places", _masked_places),
    Rule("untrained row", _untrained_row),
    Rule("unscorable reward", _unscorable),
    Rule("optional reads", _optional_reads),
)
