"""Nodes that use a model: the entropy of the frozen reference, and a reward made of it."""

from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import Policy, node
from dagrl.graph.roles import TokenBatch
from dagrl.ops import row_mean


@node(writes="ref_entropy")
def ref_entropy(
    ref: Policy,
    input_ids: Int64[Tensor, "B S"],
    attention_mask: Bool[Tensor, "B S"],
    position_ids: Int64[Tensor, "B S"],
    response_mask: Bool[Tensor, "B T"],
    temperatures: Float32[Tensor, " B"],
) -> Float32[Tensor, "B T"]:
    """How unsure the reference was before each response token, in nats: ``ref_entropy(ref, rollout)``."""
    tokens = TokenBatch(input_ids, attention_mask, position_ids, response_mask, temperatures)
    return ref.compute_logprobs(tokens).entropy


@node(writes="rewards")
def plain_reward(
    rewards: Float32[Tensor, " B"],
    ref_entropy: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    *,
    weight: float = 0.1,
) -> Float32[Tensor, " B"]:
    """The reward less ``weight`` times the row's mean reference entropy."""
    return rewards - weight * row_mean(ref_entropy, response_mask)
