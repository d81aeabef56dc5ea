"""Rollout correction: where the engine that sampled and the trainer disagree about a token's probability."""

from math import inf
from typing import Literal

from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import Mean, Metrics, Sum
from dagrl.graph import node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.nodes.logprob import needs_sampling
from dagrl.ops.drift import drift
from dagrl.ops.kl import KlValue
from dagrl.ops.masks import max_metric, mean_metric, min_metric, where_masked
from dagrl.ops.rollout_weights import (
    Level,
    Outside,
    Over,
    accepted_tokens,
    bounded_weights,
    effective_sample_size,
    importance_weights,
    normalized_weights,
    outside_bounds,
)


def _sane_correction(call: CallView) -> list[Refusal]:
    return [*needs_sampling(call), *_sane_bounds(call), *_sane_rejection(call)]


def _sane_bounds(call: CallView) -> list[Refusal]:
    low, high = call.options["low"], call.options["high"]
    refusals: list[Refusal] = []
    if not 0 <= low < inf or (high is not None and not max(low, 0) <= high < inf) or high == 0:
        fix = "give 0 <= low <= high with high above 0, or high=None for no upper bound"
        refusals.append((f"the bounds of weights are `low={low}` and `high={high}`", fix))
    if call.options["outside"] == "mask" and not low <= 1 <= (inf if high is None else high):
        what = f"`outside='mask'` with `low={low}` and `high={high}` masks tokens on which engine and trainer agree"
        refusals.append((what, "their weight is 1: give low <= 1 <= high"))
    if call.options["level"] == "none" and call.options["reject_by"] is None:
        what = "`level='none'` without `reject_by` gives every token the weight 1"
        refusals.append((what, "drop the call, or choose a level or what to reject by"))
    return refusals


def _sane_rejection(call: CallView) -> list[Refusal]:
    limits = [call.options[name] for name in ("reject_above", "reject_below") if call.options[name] is not None]
    if (call.options["reject_by"] is None) != (not limits):
        what = "`reject_by` goes with a limit, `reject_above` or `reject_below` (nats), and only with one"
        return [(what, "give both or neither")]
    above, below = call.options["reject_above"], call.options["reject_below"]
    infinite = [limit for limit in limits if abs(limit) == inf]
    if infinite:
        return [(f"a limit of `reject_by` is {infinite[0]}", "give finite nats, or None for no limit")]
    if above is not None and call.options["reject_by"] != "k1" and above <= 0:
        return [
            (f"`reject_above` is {above}", f"a drift by {call.options['reject_by']} is 0 or more: give a limit above 0")
        ]
    if above is not None and below is not None and above <= below:
        return [(f"`reject_above` is {above} and `reject_below` {below}", "together they reject all: above > below")]
    return []


@node(writes="rollout_weights", split="batch", check=_sane_correction)
def rollout_correction(
    rollout_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    *,
    level: Level = "token",
    low: float = 0.0,
    high: float | None = 2.0,
    outside: Outside = "truncate",
    reject_by: KlValue | None = None,
    reject_over: Over = "row-mean",
    reject_above: float | None = None,
    reject_below: float | None = None,
    normalize: bool = False,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Weights that correct each token's policy loss for the gap between the sampling engine and the trainer.

    The weight is rho = old / rollout probability of the token, or of the whole row with ``level="sequence"``; outside
    [``low``, ``high``] it becomes the bound (``outside="truncate"``: TIS) or 0 (``"mask"``: IcePop). ``reject_by``
    gives weight 0 to tokens, or with ``reject_over="row-..."`` to whole rows, whose drift in nats (k1 = -log rho, k2,
    k3, abs) lies above ``reject_above`` or below ``reject_below``; ``level="none"`` rejects only. ``normalize``
    divides by the mean weight of the batch. Policy losses multiply by the weights without a gradient.

    TIS is from Yao et al. 2025 (fengyao.notion.site/off-policy-rl), IcePop from arXiv 2510.18855, weights and rejection
    of whole rows from richardli.xyz/rl-collapse.

    **A rejected token keeps its place in the denominators**: they are those of the response mask, the same for every
    loss, and a batch in which little can be trusted makes a small step. verl cuts the mask instead, which makes what
    is left count for more; ``normalize=True`` does that over the batch with ``loss_agg_mode="token-mean"``, and
    `low_drift` takes rejected rows out altogether.

    It sees the whole batch, for the effective sample size: ``rollout/ess`` is its share of all tokens (rows at level
    "sequence"), 1 where weights are equal. Drift metrics are those of `dagrl.ops.drift`.
    """
    log_probs = old_logprobs, rollout_logprobs, response_mask
    bound = inf if high is None else high
    raw = importance_weights(*log_probs, level)
    weights = bounded_weights(raw, response_mask, low=low, high=bound, outside=outside)
    accepted = response_mask
    if reject_by is not None:
        above, below = inf if reject_above is None else reject_above, -inf if reject_below is None else reject_below
        accepted = accepted_tokens(*log_probs, kind=reject_by, over=reject_over, above=above, below=below)
    weights = where_masked(weights, accepted)
    size, units = effective_sample_size(weights, response_mask, level)
    beyond = outside_bounds(raw, response_mask, low=low, high=bound)
    if normalize:
        weights = normalized_weights(weights, response_mask, level)
    rows = response_mask.any(dim=1)
    metrics = {
        "rollout/ess": Mean(size, units),
        "rollout/weight": mean_metric(weights, response_mask),
        "rollout/weight_max": max_metric(raw, response_mask),
        "rollout/weight_min": min_metric(raw, response_mask),
        "rollout/outside_bounds": mean_metric(beyond, response_mask),
        "rollout/rejected": mean_metric(~accepted, response_mask),
        "rollout/rejected_rows": mean_metric(rows & ~accepted.any(dim=1), rows),
        **{f"rollout/{name}": metric for name, metric in drift(*log_probs)._asdict().items()},
    }
    return weights.to(old_logprobs.dtype), Metrics(metrics)


def _sane_limit(call: CallView) -> list[Refusal]:
    above = call.options["above"]
    limit: list[Refusal] = (
        [] if 0 < above < inf else [(f"`above` is {above}", "give the largest drift in nats, above 0")]
    )
    return [*needs_sampling(call), *limit]


@node(rows="filter", check=_sane_limit, examples={"above": 0.05})
def low_drift(
    rollout_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    *,
    above: float,
    by: KlValue = "k3",
    over: Literal["row-mean", "row-sum", "row-max"] = "row-mean",
) -> tuple[Bool[Tensor, " B"], Metrics]:
    """Keep rows whose drift between sampling engine and trainer is at most ``above`` nats; the others leave the batch.

    Rejection of whole rows is from richardli.xyz/rl-collapse; ``by`` and ``over`` say what drift is. Unlike a weight of
    0 this takes them out of every denominator, as verl's rejection does. Passed to the update only, the advantages
    still compare with the rows that left. Rows without a trained token stay. ``low_drift/dropped`` counts rows.
    """
    accepted = accepted_tokens(old_logprobs, rollout_logprobs, response_mask, kind=by, over=over, above=above)
    kept = accepted.any(dim=1) | ~response_mask.any(dim=1)
    return kept, Metrics({"low_drift/dropped": Sum(float((~kept).sum()))})
