"""Rewards: one number for each row. A row that cannot be scored gets NaN."""

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.columns import Objects
from dagrl.graph import node


@node(writes="rewards")
def verify(
    answers: Objects[str],
    response_text: Objects[str],
    truncated: Bool[Tensor, " B"] | None = None,
    *,
    allow_truncated: bool = False,
) -> Float32[Tensor, " B"]:
    """1 where the response is exactly the answer, surrounding white space aside, else 0.

    A truncated response counts as wrong unless ``allow_truncated``.
    """
    same = [text.strip() == answer.strip() for text, answer in zip(response_text, answers, strict=True)]
    rewards = torch.tensor(same, dtype=torch.float32)
    if truncated is not None and not allow_truncated:
        rewards[truncated] = 0.0
    return rewards
