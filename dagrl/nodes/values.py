"""``values``: what the critic expects of each response, before each of its tokens."""

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl.graph import Critic, node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.graph.roles import TokenBatch
from dagrl.nodes.refusals import below


def token_batch(
    input_ids: Int64[Tensor, "B S"],
    attention_mask: Bool[Tensor, "B S"],
    position_ids: Int64[Tensor, "B S"],
    response_mask: Bool[Tensor, "B T"],
) -> TokenBatch:
    """What a critic reads; values know no temperature, so it is 1 everywhere."""
    return TokenBatch(input_ids, attention_mask, position_ids, response_mask, torch.ones(len(input_ids)))


def _sane_size(call: CallView) -> list[Refusal]:
    return below(call, "micro_batch_size")


@node(writes="values", check=_sane_size)
def values(
    critic: Critic,
    input_ids: Int64[Tensor, "B S"],
    attention_mask: Bool[Tensor, "B S"],
    position_ids: Int64[Tensor, "B S"],
    response_mask: Bool[Tensor, "B T"],
    *,
    micro_batch_size: int = 0,
) -> Float32[Tensor, "B T"]:
    """The critic's values under its weights as they are here: at place t, of the state before token t.

    Rewards and advantages at place t belong to the same token, so GAE and ``value_clip`` need no shift. Masked places
    hold 0.
    """
    tokens = token_batch(input_ids, attention_mask, position_ids, response_mask)
    return critic.compute_values(tokens, micro_batch_size=micro_batch_size)
