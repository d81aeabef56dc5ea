"""A node whose check wants one of two optional columns is tried with each, and never without both."""

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl import node
from dagrl.contracts import check_node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal


def one_of_two(call: CallView) -> list[Refusal]:
    return [] if len({"rewards", "token_rewards"} & call.columns()) == 1 else ["it takes one of two rewards"]


@node(writes="advantages", check=one_of_two)
def careful(
    response_mask: Bool[Tensor, "B T"],
    rewards: Float32[Tensor, " B"] | None = None,
    token_rewards: Float32[Tensor, "B T"] | None = None,
    values: Float32[Tensor, "B T"] | None = None,
) -> Float32[Tensor, "B T"]:
    assert (rewards is None) != (token_rewards is None)
    placed = token_rewards if rewards is None else rewards.nan_to_num(0.0).unsqueeze(1).expand(response_mask.shape)
    assert placed is not None
    return torch.where(response_mask, placed, 0.0)


@node(writes="advantages", check=one_of_two)
def careless_with_tokens(
    response_mask: Bool[Tensor, "B T"],
    rewards: Float32[Tensor, " B"] | None = None,
    token_rewards: Float32[Tensor, "B T"] | None = None,
) -> Float32[Tensor, "B T"]:
    if token_rewards is not None:
        return token_rewards.sum(1, keepdim=True) * response_mask
    assert rewards is not None
    return rewards.nan_to_num(0.0).unsqueeze(1) * response_mask


def test_each_choice_is_tried() -> None:
    assert check_node(careful) == []
    found = check_node(careless_with_tokens)
    assert {violation.rule for violation in found} == {"masked places"}


@node(writes="advantages", check=lambda call: ["no"])
def never(response_mask: Bool[Tensor, "B T"], values: Float32[Tensor, "B T"] | None = None) -> Float32[Tensor, "B T"]:
    return response_mask.float()


def test_a_check_that_takes_nothing_is_said() -> None:
    (found,) = check_node(never)
    assert "its own check refuses" in found.what
