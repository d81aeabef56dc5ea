"""KL in the reward: a fixed coefficient, or one that a controller steers towards a target."""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import Mean, Metrics
from dagrl.graph import node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.nodes.logprob import needs_sampling
from dagrl.ops.kl import KlValue
from dagrl.ops.kl_penalty import PenalizedRewards, adapted_beta, penalized_rewards
from dagrl.ops.masks import mean_metric


class KlPenalized(NamedTuple):
    """Rewards less the KL: on tokens for GAE and its like, and one a row for advantages of groups."""

    token_rewards: Float32[Tensor, "B T"]
    penalized_rewards: Float32[Tensor, " B"]


@dataclass(frozen=True)
class KlCoefficient:
    """The state of `adaptive_kl_penalty`: what the next step multiplies the KL by."""

    beta: float


def _sane_beta(call: CallView) -> list[Refusal]:
    return [*needs_sampling(call), *_positive("beta", call.options["beta"])]


@node(check=_sane_beta, examples={"beta": 0.1})
def kl_penalty(
    rewards: Float32[Tensor, " B"],
    old_logprobs: Float32[Tensor, "B T"],
    ref_logprobs: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    *,
    beta: float,
    kind: KlValue = "k1",
) -> tuple[KlPenalized, Metrics]:
    """Token rewards: the outcome reward on the last trained token, less beta * KL(old || ref) on every one.

    The RLHF reward of arXiv 1909.08593 and 2203.02155. ``penalized_rewards`` is the same as one number a row:
    ``rloo_advantage(rollout, penalty.rename(penalized_rewards="rewards"))``. To measure the KL of the policy that
    sampled, pass ``rollout.rename(rollout_logprobs="old_logprobs")``. A row without a trained token keeps its
    reward in ``penalized_rewards`` only; an unscorable (NaN) reward stays NaN. ``kl_penalty/kl`` is the mean over
    rows with a trained token of the row's KL in nats, ``kl_penalty/token_kl`` the mean over tokens.
    """
    result = penalized_rewards(rewards, old_logprobs, ref_logprobs, response_mask, beta=beta, kind=kind)
    return KlPenalized(result.token_rewards, result.row_rewards), _metrics(result, response_mask, beta)


def _sane_controller(call: CallView) -> list[Refusal]:
    refusals: list[Refusal] = [*needs_sampling(call), *_positive("target", call.options["target"])]
    if call.options["horizon"] < 1:
        refusals.append((f"`horizon` is {call.options['horizon']}", "it counts rows, so it must be at least 1"))
    if isinstance(call.state, KlCoefficient):
        refusals += _positive("state.beta", call.state.beta)
    return refusals


@node(split="batch", check=_sane_controller, examples={"target": 6.0, "state": KlCoefficient(beta=0.2)})
def adaptive_kl_penalty(
    rewards: Float32[Tensor, " B"],
    old_logprobs: Float32[Tensor, "B T"],
    ref_logprobs: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    *,
    target: float,
    horizon: int = 10_000,
    kind: KlValue = "k1",
    state: KlCoefficient,
) -> tuple[KlPenalized, KlCoefficient, Metrics]:
    """`kl_penalty` whose coefficient follows the KL: it starts at ``state=KlCoefficient(beta=0.2)``.

    After each step beta *= 1 + clip(measured / target - 1, -0.2, 0.2) n / horizon (arXiv 1909.08593), where
    measured is the mean KL of a response in nats, summed over its tokens as in the paper (verl averages tokens), and
    n is the number of rows: both over rows with a trained token, so that empty ones do not lower it. This step is
    charged the coefficient it began with. The state is checkpointed with the run. ``horizon`` must be above a fifth
    of the rows, else one step could make the coefficient negative: the first step then ends the run.
    """
    beta = state.beta
    result = penalized_rewards(rewards, old_logprobs, ref_logprobs, response_mask, beta=beta, kind=kind)
    measured = mean_metric(result.row_kl, response_mask.any(dim=1))
    following = adapted_beta(beta, measured.value, target=target, num_rows=int(measured.count), horizon=horizon)
    metrics = _metrics(result, response_mask, beta)
    return KlPenalized(result.token_rewards, result.row_rewards), KlCoefficient(following), metrics


def _positive(name: str, value: float) -> list[Refusal]:
    return [] if 0 < value < inf else [(f"`{name}` is {value}", "it must be above 0, and finite")]


def _metrics(result: PenalizedRewards, mask: Bool[Tensor, "B T"], beta: float) -> Metrics:
    kl = mean_metric(result.row_kl, mask.any(dim=1))
    return Metrics(
        {
            "kl_penalty/beta": Mean(beta * len(mask), len(mask)),
            "kl_penalty/kl": kl,
            "kl_penalty/token_kl": Mean(kl.sum, float(mask.sum())),
        }
    )
