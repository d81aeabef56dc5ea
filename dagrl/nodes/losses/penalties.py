"""Terms beside the policy loss: KL to the reference, and entropy."""

from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph import loss
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.ops.kl import KlKind, kl_estimate
from dagrl.ops.masks import mean_metric

_REWARDS = frozenset({"rewards", "token_rewards"})


def _one_penalty(call: CallView) -> list[Refusal]:
    """Refuse KL in the loss above KL in the reward: a call that turns reference log-probs into rewards."""
    if call.options["also_in_reward"]:
        return []
    return [
        (
            f"the KL to the reference is in the reward already, by `{other.name}`",
            "drop one of them, or say `also_in_reward=True`",
        )
        for other in call.upstream()
        if "ref_logprobs" in other.reads() and not _REWARDS.isdisjoint(other.writes())
    ]


@loss(check=_one_penalty)
def kl_loss(
    new_logprobs: Float32[Tensor, "B T"],
    ref_logprobs: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    *,
    kind: KlKind = "k3",
    also_in_reward: bool = False,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """An estimate of KL(policy || reference) from the sampled tokens (Schulman's k1, k2, k3, and abs).

    From joschu.net/blog/kl-approx.html; GRPO's term (arXiv 2402.03300) is k3, the straight-through kinds are those of
    arXiv 2506.09477. k1's gradient is 0 in expectation, k2's is the gradient of the KL, k3's that of the forward KL;
    k1+ and k3+ have the value of k1 and k3 and k2's gradient. ``also_in_reward=True`` says that a `kl_penalty` upstream
    is no mistake.
    """
    estimates = kl_estimate(new_logprobs, ref_logprobs, response_mask, kind)
    return estimates, Metrics({"actor/ref_kl": mean_metric(estimates, response_mask)})


@loss()
def entropy_bonus(
    new_entropy: Float32[Tensor, "B T"], response_mask: Bool[Tensor, "B T"]
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """The policy's entropy in nats; a pipeline subtracts it, e.g. with a coefficient of 0.001.

    Added to the objective against early certainty as in A3C (arXiv 1602.01783) and PPO (arXiv 1707.06347, eq. 9).
    """
    return new_entropy, Metrics({"actor/entropy_bonus": mean_metric(new_entropy, response_mask)})
