"""The optimal token baseline: of each token, weighted by how much gradient has gathered up to it."""

from math import inf

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from dagrl.ops.advantages.groups import NO_GROUP
from dagrl.ops.masks import where_masked


def score_norms(
    old_logprobs: Float[Tensor, "B T"],
    sum_pi_squared: Float[Tensor, "B T"] | None = None,
    rollout_weights: Float[Tensor, "B T"] | None = None,
) -> Float64[Tensor, "B T"]:
    """The squared norm of each token's score in the logits: 1 - 2 pi + sum over the vocabulary of pi squared.

    Times the squared ``rollout_weights`` where these scale the token's gradient, as verl does. Without
    ``sum_pi_squared`` it is (1 - pi)^2, what the chosen token alone contributes: the true norm lies between that and
    twice that, so that weights of tokens may be off by a factor of up to two against each other, and the baseline is a
    little more than the least variance away. (verl always has the sum.)
    """
    chosen = old_logprobs.detach().double().exp()
    if sum_pi_squared is None:
        norms = (1 - chosen).square()
    else:
        norms = (1 - 2 * chosen + sum_pi_squared.detach().double()).clamp(min=0)
    return norms if rollout_weights is None else norms * rollout_weights.detach().double().square()


def otb_advantages(
    returns: Float[Tensor, "B T"],
    norms: Float[Tensor, "B T"],
    group_ids: Int64[Tensor, " B"],
    response_mask: Bool[Tensor, "B T"],
    scorable: Bool[Tensor, " B"],
) -> Float64[Tensor, "B T"]:
    """OTB (arXiv 2602.07078): A_t = G_t - sum(W_t G_t) / sum(W_t) over the group, W_t = norms up to token t.

    G_t is the reward-to-go. t counts the trained tokens of a row, so that tool output does not shift one row against
    another. The baseline has the least variance of all that depend on t alone.

    Degenerate cases: where only one row of the group has a t-th token there is nothing to compare with, and where all
    G_t are equal: exactly 0. (verl gives the longest row its plain return there.) If all W_t are 0, the policy is
    certain and the plain mean is the baseline. Rows that are not ``scorable`` and those of `NO_GROUP` get 0 and count
    nowhere.
    """
    counted = response_mask & (scorable & (group_ids != NO_GROUP)).unsqueeze(1)
    energy = where_masked(norms.detach().double(), counted).cumsum(1)
    index = (counted.cumsum(1) - 1).clamp(min=0)  # which trained token of its row a place is
    present = _packed(torch.ones_like(energy), counted, index)
    packed, weights = _packed(returns.detach().double(), counted, index), _packed(energy, counted, index)
    advantages = _less_baseline(packed, weights, present.bool(), group_ids.unique(return_inverse=True)[1])
    return where_masked(advantages.gather(1, index), counted)


def _packed(
    values: Float64[Tensor, "B T"], counted: Bool[Tensor, "B T"], index: Int64[Tensor, "B T"]
) -> Float64[Tensor, "B T"]:
    """Each row's counted values side by side from the left, 0 after them."""
    return torch.zeros_like(values).scatter_add(1, index, where_masked(values, counted))


def _less_baseline(
    returns: Float64[Tensor, "B T"],
    weights: Float64[Tensor, "B T"],
    present: Bool[Tensor, "B T"],
    of_row: Int64[Tensor, " B"],
) -> Float64[Tensor, "B T"]:
    """Returns less the weighted mean of their group, exactly 0 where all of it are equal; column by column."""
    zeros = returns.new_zeros(int(of_row.max()) + 1 if len(of_row) else 0, returns.shape[1])

    def total(values: Float64[Tensor, "B T"]) -> Float64[Tensor, "G T"]:
        return zeros.index_add(0, of_row, values)

    each = of_row.unsqueeze(1).expand(returns.shape)
    highest = (zeros - inf).scatter_reduce(0, each, where_masked(returns, present, -inf), "amax")
    lowest = (zeros + inf).scatter_reduce(0, each, where_masked(returns, present, inf), "amin")
    energy, plain = total(weights), total(returns) / total(present.double()).clamp(min=1)
    baseline = torch.where(energy == 0, plain, total(weights * returns) / energy)
    return where_masked(returns - baseline[of_row], (highest != lowest)[of_row] & present)
