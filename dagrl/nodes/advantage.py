"""Advantages from rewards."""

from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl.data.metrics import Mean, Metrics, Sum
from dagrl.graph import node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.ops.advantages import group_statistics, grpo_advantages, rloo_advantages, spread_to_tokens


def _needs_groups(call: CallView) -> list[Refusal]:
    if call.options["allow_singletons"]:
        return []
    return [
        (
            f"`{source}` has n=1: a group of one has no baseline and every advantage would be 0",
            "raise n, or say `allow_singletons=True`",
        )
        for source, n in call.upstream_option("n")
        if n == 1
    ]


@node(writes="advantages", split="group", check=_needs_groups)
def grpo_advantage(
    rewards: Float32[Tensor, " B"],
    group_ids: Int64[Tensor, " B"],
    response_mask: Bool[Tensor, "B T"],
    *,
    normalize_by_std: bool = True,
    allow_singletons: bool = False,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Group-relative advantages (GRPO, arXiv 2402.03300): (reward - group mean) / (group std + 1e-6).

    ``normalize_by_std=False`` leaves the division out (Dr. GRPO, arXiv 2503.20783). The standard deviation is
    unbiased. A group of one and a group of equal rewards get 0; an unscorable (NaN) reward gets 0 and leaves
    its group.
    """
    per_row = grpo_advantages(rewards, group_ids, normalize_by_std=normalize_by_std)
    return spread_to_tokens(per_row, response_mask), _group_metrics(rewards, group_ids)


def _no_std(call: CallView) -> list[Refusal]:
    refusals = _needs_groups(call)
    if call.options["normalize_by_std"]:
        what = "`normalize_by_std=True` divides a leave-one-out advantage by a spread that the row itself is part of"
        refusals.append((what, "drop it, or use `grpo_advantage`"))
    return refusals


@node(writes="advantages", split="group", check=_no_std)
def rloo_advantage(
    rewards: Float32[Tensor, " B"],
    group_ids: Int64[Tensor, " B"],
    response_mask: Bool[Tensor, "B T"],
    *,
    normalize_by_std: bool = False,
    allow_singletons: bool = False,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Leave-one-out advantages (RLOO, arXiv 2402.14740): reward - mean reward of the group's other rows.

    There is no normalisation by the standard deviation: ``normalize_by_std=True`` is refused. A group of one and a
    group of equal rewards get 0; an unscorable (NaN) reward gets 0 and leaves its group.
    """
    if normalize_by_std:
        raise ValueError("leave-one-out advantages are not normalised by the standard deviation")
    per_row = rloo_advantages(rewards, group_ids)
    return spread_to_tokens(per_row, response_mask), _group_metrics(rewards, group_ids)


def _group_metrics(rewards: Float32[Tensor, " B"], group_ids: Int64[Tensor, " B"]) -> Metrics:
    statistics = group_statistics(rewards, group_ids)
    return Metrics(
        {
            "group/uniform_share": Mean(statistics.num_uniform, statistics.num_groups),
            "group/singletons": Sum(statistics.num_singletons),
            "group/unscorable_rows": Sum(statistics.num_unscorable),
        }
    )
