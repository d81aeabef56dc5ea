"""From per-token losses to one number, the same however a mini-batch is split."""

from dataclasses import dataclass
from typing import Literal, get_args

from jaxtyping import Bool, Float
from torch import Tensor

from dagrl.ops.masks import masked_sum, row_mean

AggMode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
AGG_MODES: tuple[AggMode, ...] = get_args(AggMode)


@dataclass(frozen=True)
class Denominators:
    """What one whole mini-batch divides by, over all its micro-batches and ranks.

    ``tokens`` counts trained tokens, ``rows`` the rows with at least one.
    """

    tokens: int
    rows: int

    @classmethod
    def of(cls, mask: Bool[Tensor, "B T"]) -> "Denominators":
        """The denominators of the rows in ``mask``."""
        return cls(tokens=int(mask.sum()), rows=int(mask.any(dim=1).sum()))


def aggregate(
    losses: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    mode: AggMode,
    denominators: Denominators,
    *,
    norm_length: int | None = None,
) -> Float[Tensor, ""]:
    """A micro-batch's share of its mini-batch's loss; the shares of any split by rows sum to the whole.

    - ``token-mean``: sum of all tokens / tokens (DAPO, arXiv 2503.14476)
    - ``token-sum``: sum of all tokens, a batch of twice the rows has twice the gradient (REINFORCE, Williams 1992,
      summed over episodes)
    - ``seq-mean-token-sum``: sum of all tokens / rows (episodic REINFORCE, Williams 1992, in the mean over episodes)
    - ``seq-mean-token-mean``: sum of each row's mean / rows (GRPO, arXiv 2402.03300)
    - ``seq-mean-token-sum-norm``: sum of all tokens / rows / ``norm_length``, a constant that is never the
      tensor's width (Dr.GRPO, arXiv 2503.20783); only this mode reads ``norm_length``

    Degenerate cases: a row without a trained token adds no loss and no denominator; a mini-batch
    without one gives 0, with a gradient of 0.

    Raises:
        ValueError: if the mode is unknown, or needs a positive ``norm_length`` and has none.
    """
    if mode not in AGG_MODES:
        raise ValueError(f"unknown loss aggregation `{mode}`: choose one of {', '.join(AGG_MODES)}")
    tokens, rows = max(denominators.tokens, 1), max(denominators.rows, 1)
    match mode:
        case "token-mean":
            return masked_sum(losses, mask) / tokens
        case "token-sum":
            return masked_sum(losses, mask)
        case "seq-mean-token-sum":
            return masked_sum(losses, mask) / rows
        case "seq-mean-token-mean":
            return row_mean(losses, mask).sum() / rows
        case "seq-mean-token-sum-norm":
            return masked_sum(losses, mask) / rows / _checked(norm_length)


def _checked(norm_length: int | None) -> int:
    if norm_length is None or norm_length <= 0:
        raise ValueError(f"seq-mean-token-sum-norm divides by norm_length, which is {norm_length}: give a positive one")
    return norm_length
