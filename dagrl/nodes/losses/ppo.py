"""PPO's clipped surrogate, and its decoupled form."""

from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph import loss
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.nodes.losses.shared import clip_refusals, not_positive, policy_metrics, weighs_itself, weighted
from dagrl.ops.decoupled_ppo import OverCap, decoupled_ppo_loss
from dagrl.ops.masks import mean_metric
from dagrl.ops.ppo_clip import ppo_clip_loss


@loss(check=clip_refusals)
def ppo_clip(
    new_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    rollout_weights: Float32[Tensor, "B T"] | None = None,
    *,
    eps: float = 0.2,
    eps_high: float | None = None,
    dual_clip: float | None = None,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """The clipped surrogate of PPO (arXiv 1707.06347): -min(r A, clip(r, 1 - eps, 1 + eps_high) A), r = new / old.

    ``eps_high`` widens the upper side (clip-higher, arXiv 2503.14476; None: eps). ``dual_clip`` bounds the loss of
    negative advantages by -dual_clip A (arXiv 1912.09729).
    """
    losses, clipped = ppo_clip_loss(
        new_logprobs, old_logprobs, advantages, response_mask, eps_low=eps, eps_high=eps_high, dual_clip=dual_clip
    )
    losses = weighted(losses, rollout_weights, response_mask)
    return losses, policy_metrics(losses, new_logprobs, old_logprobs, response_mask, clipped)


def _sane_decoupling(call: CallView) -> list[Refusal]:
    return [*clip_refusals(call), *not_positive(call, "weight_cap"), *weighs_itself(call)]


@loss(check=_sane_decoupling)
def decoupled_ppo(
    new_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    rollout_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    *,
    eps: float = 0.2,
    eps_high: float | None = None,
    dual_clip: float | None = None,
    weight_cap: float | None = 5.0,
    over_cap: OverCap = "truncate",
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Decoupled PPO (AReaL, arXiv 2505.24298): `ppo_clip` around ``old_logprobs``, times old / rollout.

    ``old_logprobs`` are the proximal policy's, ``rollout_logprobs`` those of the policy that wrote the responses,
    perhaps some updates older. A behaviour weight old / rollout above ``weight_cap`` (None: no cap) becomes the cap,
    or 0 with ``over_cap="drop"`` as in AReaL's code; the papers have no cap. `rollout_correction` does the same for
    any loss, so beside its weights this loss is refused.
    """
    losses, clipped, weights = decoupled_ppo_loss(
        new_logprobs,
        old_logprobs,
        rollout_logprobs,
        advantages,
        response_mask,
        eps_low=eps,
        eps_high=eps_high,
        dual_clip=dual_clip,
        weight_cap=weight_cap,
        over_cap=over_cap,
    )
    behaviour = {"actor/behaviour_weight": mean_metric(weights, response_mask)}
    return losses, policy_metrics(losses, new_logprobs, old_logprobs, response_mask, clipped).merge(behaviour)
