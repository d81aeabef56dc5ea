"""A user's own nodes on a critic and on a reward model go through the suite on models that tell tokens apart."""

from collections.abc import Mapping

import pytest
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import Critic, LossColumns, LossTerms, Metrics, Objects, RewardModel, node
from dagrl.contracts import check_node
from dagrl.contracts.worker import role_worker
from dagrl.graph.roles import TokenBatch, UpdatePlan
from dagrl.nodes import reward_model_score, values


def tokens_of(*columns: Tensor) -> TokenBatch:
    return TokenBatch(*columns, torch.ones(len(columns[0])))


@node(writes="rewards")
def last_value(
    critic: Critic,
    input_ids: Int64[Tensor, "B S"],
    attention_mask: Bool[Tensor, "B S"],
    position_ids: Int64[Tensor, "B S"],
    response_mask: Bool[Tensor, "B T"],
) -> Float32[Tensor, " B"]:
    """The value of the last place, which may be padding."""
    found = critic.compute_values(tokens_of(input_ids, attention_mask, position_ids, response_mask))
    return found[:, -1] if found.shape[1] else found.sum(1)


@node(writes="rewards")
def centred_score(judge: RewardModel, messages: Objects[list], response_text: Objects[str]) -> Float32[Tensor, " B"]:
    """Scores less those of all rows, though it says that it computes each row by itself."""
    scores = judge.score(messages, list(response_text))
    return scores - scores.mean() if len(scores) else scores


@node(mutates=True, split="minibatch")
def own_update(
    critic: Critic,
    input_ids: Int64[Tensor, "B S"],
    attention_mask: Bool[Tensor, "B S"],
    position_ids: Int64[Tensor, "B S"],
    response_mask: Bool[Tensor, "B T"],
    seeds: Int64[Tensor, " B"],
    columns: LossColumns,
    *,
    loss: LossTerms,
    mini_batch_size: int = 0,
    epochs: int = 1,
    aliases: Mapping[str, str],
    step: int,
) -> Metrics:
    """An update of a critic with the loss that the suite chooses."""
    plan = UpdatePlan(
        loss=loss, loss_agg_mode="token-mean", norm_length=None, mini_batch_size=mini_batch_size, micro_batch_size=0,
        epochs=epochs, aliases=aliases, step=step,
    )  # fmt: skip
    tokens = tokens_of(input_ids, attention_mask, position_ids, response_mask)
    return critic.update(tokens, columns, seeds, plan)


@pytest.mark.parametrize(
    ("declared", "said"),
    [(last_value, "depends on the padding width"), (centred_score, "a row alone gives another result than among")],
    ids=["last_value", "centred_score"],
)
def test_what_is_wrong_is_seen(declared, said: str) -> None:
    assert any(said in str(violation) for violation in check_node(declared))


def test_an_update_of_ones_own_is_sound() -> None:
    assert check_node(own_update) == []


def test_the_models_behind_the_roles_tell_tokens_apart() -> None:
    critic = role_worker(values.contract)
    tokens = torch.tensor([[5, 6, 7, 8, 9, 10]])
    seen = torch.ones(tokens.shape, dtype=torch.bool)
    found = critic.compute_values(tokens_of(tokens, seen, torch.arange(6)[None], seen[:, 2:]))
    assert len(set(found.flatten().tolist())) == 4
    judge = role_worker(reward_model_score.contract)
    scores = judge.score([[{"role": "user", "content": "1 2"}]] * 2, ["1", "2"])
    assert scores[0] != scores[1]
