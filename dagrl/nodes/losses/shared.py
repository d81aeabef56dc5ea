"""What the policy losses share: rollout weights, metrics, and refusals of options."""

from math import inf

from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.ops.kl import kl_estimate
from dagrl.ops.masks import mean_metric, where_masked


def weighted(
    losses: Float32[Tensor, "B T"], weights: Float32[Tensor, "B T"] | None, mask: Bool[Tensor, "B T"]
) -> Float32[Tensor, "B T"]:
    """Losses times the rollout weights, which carry no gradient; without weights, the losses.

    A token of weight 0 adds nothing but still counts in the denominators. A loss of 0, as an advantage of 0 gives,
    stays 0 without gradient even where the weight is infinite.
    """
    if weights is None:
        return losses
    weights = where_masked(weights.detach(), mask)
    return losses * weights.masked_fill(weights.isinf() & (losses.detach() == 0), 0.0)


def policy_metrics(
    losses: Float32[Tensor, "B T"],
    new_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    clipped: Bool[Tensor, "B T"] | None = None,
) -> Metrics:
    """The mean loss, the KL from the old policy (k1, nats) and, of a loss that clips, the share of clipped tokens."""
    old_kl = kl_estimate(old_logprobs, new_logprobs.detach(), mask, "k1")
    metrics = {"actor/pg_loss": mean_metric(losses, mask), "actor/old_kl": mean_metric(old_kl, mask)}
    if clipped is not None:
        metrics["actor/clip_fraction"] = mean_metric(clipped, mask)
    return Metrics(metrics)


def clip_refusals(call: CallView) -> list[Refusal]:
    """What is wrong with the options ``eps``, ``eps_high`` and ``dual_clip`` of PPO's clip."""
    refusals: list[Refusal] = []
    eps, eps_high, dual_clip = call.options["eps"], call.options["eps_high"], call.options["dual_clip"]
    if not 0 < eps < 1:
        refusals.append((f"`eps` is {eps}", "the clip range must lie between 0 and 1"))
    if eps_high is not None and not 0 < eps_high < inf:
        refusals.append((f"`eps_high` is {eps_high}", "it must be above 0, or None for `eps`"))
    if dual_clip is not None and not 1 < dual_clip < inf:
        refusals.append((f"`dual_clip` is {dual_clip}", "it must be above 1"))
    return refusals


def not_positive(call: CallView, *names: str) -> list[Refusal]:
    """Refusals of the options among ``names`` that are neither positive and finite nor None."""
    given = {name: call.options[name] for name in names}
    return [
        (f"`{name}` is {value}", "it must be above 0, and finite")
        for name, value in given.items()
        if value is not None and not 0 < value < inf
    ]


def weighs_itself(call: CallView) -> list[Refusal]:
    """Refuse rollout weights for a loss that is weighted against the rollout's log-probs by itself.

    They may be those of another term: none that weighs itself reads them.
    """
    if "rollout_weights" not in call.columns() - call.reads():
        return []
    what = "it weighs tokens against `rollout_logprobs` itself, and `rollout_weights` would do so again"
    return [(what, "drop the call that writes `rollout_weights`, or take a loss that reads them, such as `ppo_clip`")]
