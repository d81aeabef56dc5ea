"""The rules that every node keeps, and ``check_node``, which tries them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dagrl.contracts.batch import (
    POISONS,
    Batch,
    reward_names,
    shuffled_order,
    sub_batches,
    unscorable,
    untrained,
)
from dagrl.contracts.node_probe import NodeProbe, column_choices
from dagrl.contracts.outcome import Outcome
from dagrl.contracts.probe import situated
from dagrl.contracts.rules import Rule, broken_rules
from dagrl.contracts.violation import Finding, Violation
from dagrl.graph.node import Node

_OTHER_NOISE = 12345
_BY_GROUP_ID = "find the rows of a group by `group_ids`, never by their place"


def check_node(node: Node[..., Any], options: Mapping[str, Any] | None = None) -> list[Violation]:
    """Every rule that the node breaks; ``options`` go before ``examples=`` and defaults."""
    given = options or {}
    found: list[Violation] = []
    for without in column_choices(node, given):
        found += broken_rules(node.contract, partial(NodeProbe, node, given, without), RULES)
    return list(dict.fromkeys(found))


def _determinism(probe: NodeProbe) -> Finding | None:
    again = probe.run(probe.batch, noise=_OTHER_NOISE)
    seen = probe.expected.difference(again, range(probe.batch.num_rows))
    if seen is None:
        return None
    return Finding(f"gives another result when called again: {seen}", "draw from `seeds`, not from a global generator")


def _row_order(probe: NodeProbe) -> Finding | None:
    order = shuffled_order(probe.batch.num_rows)
    seen = probe.expected.difference(probe.run(probe.batch.take(order)), order.tolist())
    return Finding(f"depends on the order of the rows: {seen}", _BY_GROUP_ID) if seen else None


def _rows_alone(probe: NodeProbe) -> Finding | None:
    if probe.contract.split != "row":
        return None
    parts = [torch.tensor([row]) for row in range(probe.batch.num_rows)]
    fix = 'compute each row by itself, or declare split="group" or split="batch"'
    return _in_parts(probe, parts, "a row alone gives another result than among others", fix)


def _groups_alone(probe: NodeProbe) -> Finding | None:
    if probe.contract.split != "group":
        return None
    fix = 'compute each group by itself, or declare split="batch"'
    parts = list(sub_batches(probe.batch).values())
    return _in_parts(probe, parts, "a group alone gives another result than among others", fix)


def _in_parts(probe: NodeProbe, parts: list[Tensor], what: str, fix: str) -> Finding | None:
    merged = probe.merged([probe.run_in(f"on {len(part)} of the rows", probe.batch.take(part)) for part in parts])
    order = torch.cat(parts).tolist()
    seen = probe.expected.same_rows(merged, order)
    if seen is not None:
        return Finding(f"{what}: {seen}", fix)
    seen = probe.expected.same_metrics(merged.metrics)
    if seen is None:
        return None
    fix = "return sums with counts, as `Mean(sum, count)` or `Sum`: workers merge them"
    return Finding(f"metrics of parts do not merge to those of the whole: {seen}", fix)


def _single_row(probe: NodeProbe) -> Finding | None:
    probe.run_in("on a single row", probe.batch.take(torch.tensor([0])))
    return None


def _empty(probe: NodeProbe) -> Finding | None:
    if not probe.contract.mutates:  # an update without rows is skipped
        nothing = probe.batch.take(torch.tensor([], dtype=torch.int64))
        probe.run_in("on no rows at all, which a filter may leave", nothing)
    return None


def _optional_reads(probe: NodeProbe) -> Finding | None:
    probe.try_optional_reads()


def _optional_writes(probe: NodeProbe) -> Finding | None:
    writes = probe.contract.writes
    required = frozenset(write.name for write in writes if not write.optional)
    for extra in [frozenset[str](), *(frozenset({write.name}) for write in writes if write.optional)]:
        wanted = required | extra
        if len(wanted) == len(writes):
            continue
        situation = f"when only {', '.join(sorted(wanted)) or 'nothing'} is wanted"
        with situated(situation):
            outcome = probe.run(probe.batch, wanted=wanted)
        seen = probe.expected.same_rows(outcome, range(probe.batch.num_rows), sorted(wanted))
        if seen is not None:
            return Finding(f"gives another result {situation}: {seen}", "let `wanted` only leave columns out")
    return None


def _padding(probe: NodeProbe) -> Finding | None:
    if not probe.wide:
        return None
    wider = probe.run_in("on wider padding", probe.batch.widened(3, 2))
    seen = probe.expected.difference(wider, range(probe.batch.num_rows))
    fix = "reduce over `response_mask` (`dagrl.ops.row_mean`), never over the width"
    return Finding(f"depends on the padding width: {seen}", fix) if seen else None


def _masked_places(probe: NodeProbe) -> Finding | None:
    for poison in POISONS:
        poisoned = probe.batch.poisoned(probe.wide, poison)
        if all(poisoned.columns[name] is probe.batch.columns[name] for name in probe.wide):
            return None
        seen = probe.expected.difference(probe.run(poisoned), range(probe.batch.num_rows))
        if seen is not None:
            fix = "fill masked places before you compute: `x.masked_fill(~response_mask, 0)`"
            return Finding(f"reads masked places, where {poison} stood: {seen}", fix)
    return None


def _untrained_row(probe: NodeProbe) -> Finding | None:
    if "response_mask" not in probe.wide:
        return None
    seen = _without(probe, untrained(probe.batch), "with a row that has no trained token")
    return Finding(seen, "divide by a count of at least 1: `.clamp(min=1)`") if seen else None


def _unscorable(probe: NodeProbe) -> Finding | None:
    names = reward_names(probe.batch, frozenset(read.name for read in probe.reads))
    if not names:
        return None
    seen = _without(probe, unscorable(probe.batch, names), "with an unscorable (NaN) reward")
    fix = "leave NaN rewards out of every sum and mean, and give their rows advantage 0"
    return Finding(seen, fix) if seen else None


def _without(probe: NodeProbe, batch: Batch, situation: str) -> str | None:
    """What goes wrong when row 0 is special: for rows it must not touch, or for advantages anywhere."""
    outcome = probe.run_in(situation, batch)
    advantages = outcome.rows.get("advantages", [])
    for place, row in enumerate(advantages):
        if isinstance(row, Tensor) and not bool(row.isfinite().all()):
            return f"`advantages` of row {place} are not finite {situation}"
    if probe.contract.split not in ("row", "group"):
        return None
    touched = {0} if probe.contract.split == "row" else set(sub_batches(batch)[int(batch.group_ids[0])].tolist())
    others = [row for row in range(batch.num_rows) if row not in touched]
    kept = Outcome({name: [rows[row] for row in others] for name, rows in outcome.rows.items()}, outcome.metrics)
    seen = probe.expected.same_rows(kept, others)
    if seen is None or _rows_alone(probe) or _groups_alone(probe):  # which say it already
        return None
    return f"{situation}, rows it has no part in change: {seen}"


RULES: tuple[Rule[NodeProbe], ...] = (
    Rule("same call, same result", _determinism),
    Rule("row order", _row_order),
    Rule("each row by itself", _rows_alone),
    Rule("each group by itself", _groups_alone),
    Rule("single row", _single_row),
    Rule("no rows", _empty),
    Rule("optional reads", _optional_reads),
    Rule("optional writes", _optional_writes),
    Rule("padding width", _padding),
    Rule("masked places", _masked_places),
    Rule("untrained row", _untrained_row),
    Rule("unscorable reward", _unscorable),
)
