"""What advantage nodes refuse before anything runs, and the metrics they share."""

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from dagrl.data.metrics import Mean, Metrics, Sum
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.ops.advantages import group_statistics


def needs_groups(call: CallView) -> list[Refusal]:
    """A group baseline is void for groups of one, unless they are asked for."""
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


def needs_one_reward(call: CallView) -> list[Refusal]:
    """Rewards come for each row or on tokens, and on tokens they are the whole of it."""
    arriving = {"rewards", "token_rewards"} & call.columns()
    if not arriving:
        what = "neither `rewards` nor `token_rewards` arrives, so there is nothing to learn from"
        return [(what, "pass the output of a reward node such as `verify`")]
    if len(arriving) == 2:
        what = "`rewards` and `token_rewards` both arrive: those on tokens include the outcome, which would count twice"
        return [(what, "pass one; `place_rewards` adds an outcome reward to rewards that are on tokens already")]
    return []


def share_refusals(call: CallView, *names: str) -> list[Refusal]:
    """Options that are shares, such as discounts, lie between 0 and 1."""
    values = {name: call.options[name] for name in names}
    return [
        (f"`{name}` is {value}", "it must lie between 0 and 1") for name, value in values.items() if not 0 <= value <= 1
    ]


def group_metrics(rewards: Float[Tensor, " B"], group_ids: Int64[Tensor, " B"]) -> Metrics:
    """The share of groups that teach nothing, and counts of groups of one and of unscorable rows."""
    statistics = group_statistics(rewards, group_ids)
    return Metrics(
        {
            "group/uniform_share": Mean(statistics.num_uniform, statistics.num_groups),
            "group/singletons": Sum(statistics.num_singletons),
            "group/unscorable_rows": Sum(statistics.num_unscorable),
        }
    )


def unscorable_metric(scorable: Bool[Tensor, " B"]) -> Metrics:
    """How many rows have no reward and therefore advantage 0."""
    return Metrics({"advantage/unscorable_rows": Sum(float((~scorable).sum()))})
