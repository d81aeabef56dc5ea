"""Direct reward optimisation: a quadratic pull towards the old policy in place of a clip."""

from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.ops.masks import where_masked
from dagrl.ops.score_weights import reinforce_loss


def dro_loss(
    logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    beta: float = 0.1,
) -> Float32[Tensor, "B T"]:
    """DRO (arXiv 2405.19107), token by token: -A logprob + beta / 2 (logprob - old_logprob)^2.

    Its gradient is -A + beta (logprob - old_logprob), which is 0 where the log-prob has moved by A / beta: the optimum
    under a KL penalty. The paper squares (r - V - tau log(pi / ref)) of whole responses against a reference and
    rescales the policy's gradient by 1 / tau; with A = r - V and beta = tau this is that gradient without the cross
    terms between a row's tokens, as in verl. For the paper's anchor rename the reference's
    column: ``reference.rename(ref_logprobs="old_logprobs")``. Differentiable in ``logprobs`` only.

    Degenerate cases: when ``logprobs`` equals ``old_logprobs`` the pull is exactly 0, which is REINFORCE; a masked
    token gives 0 and may hold NaN or inf in every input.

    Raises:
        ValueError: if ``beta`` is negative.
    """
    if not beta >= 0:
        raise ValueError(f"beta is {beta}, but it may not be negative")
    log_ratio = where_masked(logprobs, mask) - where_masked(old_logprobs.detach(), mask)
    return reinforce_loss(logprobs, advantages, mask) + beta / 2 * log_ratio.square()
