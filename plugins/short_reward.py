"""A reward of one's own: a plain file that a pipeline imports."""

from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import node


@node(writes="rewards")
def short_reward(response_lengths: Int64[Tensor, " B"], truncated: Bool[Tensor, " B"]) -> Float32[Tensor, " B"]:
    """1 for a finished answer of at most four tokens, else 0."""
    return ((response_lengths <= 4) & ~truncated).float()
