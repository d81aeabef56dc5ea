"""Sound nodes and losses of unusual kinds: the suite finds nothing in them."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import Max, Mean, Metrics, Objects, Policy, loss, node
from dagrl.contracts import check_loss, check_node
from dagrl.graph.roles import Message, Sampling
from dagrl.ops.masks import mask_from_lengths, masked_mean, mean_metric, row_mean, where_masked
from dagrl.ops.random import hash_ids, key_of

B, BT = Float32[Tensor, " B"], Float32[Tensor, "B T"]
Ids, Mask = Int64[Tensor, " B"], Bool[Tensor, "B T"]


@dataclass(frozen=True)
class Running:
    mean: float = 0.0


@node(writes="rewards", split="batch")
def centred_by_a_running_mean(rewards: B, *, decay: float = 0.9, state: Running) -> tuple[B, Running, Metrics]:
    scored = rewards[~rewards.isnan()]
    seen = float(scored.double().mean()) if len(scored) else state.mean
    new = Running(decay * state.mean + (1 - decay) * seen)
    return rewards - new.mean, new, Metrics({"running/mean": Mean(new.mean, 1.0)})


@node(writes="rewards")
def noisy_by_seed(rewards: B, seeds: Ids) -> B:
    return rewards + hash_ids(key_of("noise"), seeds).float() / 2**63


@node(rows="filter", split="group")
def groups_that_differ(rewards: B, group_ids: Ids) -> tuple[Bool[Tensor, " B"], Metrics]:
    ids, of_row = group_ids.unique(return_inverse=True)
    high = torch.full((len(ids),), -torch.inf).scatter_reduce(0, of_row, rewards.nan_to_num(-torch.inf), "amax")
    low = torch.full((len(ids),), torch.inf).scatter_reduce(0, of_row, rewards.nan_to_num(torch.inf), "amin")
    return (high > low)[of_row], Metrics()


@node(writes="advantages", split="batch")
def whitened(rewards: B, response_mask: Mask) -> BT:
    spread = rewards.nan_to_num().unsqueeze(1).expand(response_mask.shape)
    mean = masked_mean(spread, response_mask)
    std = masked_mean((spread - mean).square(), response_mask).sqrt()
    return where_masked((spread - mean) / (std + 1e-6), response_mask)


class Retry(NamedTuple):
    responses: Int64[Tensor, "B T"]
    response_mask: Mask
    response_lengths: Ids
    response_text: Objects[str] | None


@node(needs="rollout")
def greedy_again(
    actor: Policy, messages: Objects[list[Message]], seeds: Ids, *, max_new_tokens: int, wanted: frozenset[str]
) -> Retry:
    found = actor.generate(actor.apply_chat_template(messages), seeds, Sampling(max_new_tokens=max_new_tokens))
    rows = [row[:length] for row, length in zip(found.responses.tolist(), found.lengths.tolist(), strict=True)]
    text = actor.decode(rows) if "response_text" in wanted else None
    mask = mask_from_lengths(found.lengths, found.responses.shape[1])
    return Retry(found.responses, mask, found.lengths, text)


@node()
def longest(response_lengths: Ids) -> Metrics:
    return Metrics({"longest": Max(float(response_lengths.max()))} if len(response_lengths) else {})


@node(writes="parts")
def counts_of_each_kind(response_text: Objects[str]) -> Int64[Tensor, "B K"]:
    counts = [[sum(c.isdigit() for c in text), sum(c.isspace() for c in text)] for text in response_text]
    return torch.tensor(counts, dtype=torch.int64).reshape(len(response_text), 2)


@node(writes="notes")
def writes_objects(response_text: Objects[str], answers: Objects[str] | None = None) -> Objects[dict]:
    wanted = [None] * len(response_text) if answers is None else list(answers)
    return [{"text": text, "answer": answer} for text, answer in zip(response_text, wanted, strict=True)]


NODES = [
    centred_by_a_running_mean,
    noisy_by_seed,
    groups_that_differ,
    whitened,
    greedy_again,
    longest,
    counts_of_each_kind,
    writes_objects,
]


@loss()
def sequence_entropy(
    new_logprobs: BT, new_entropy: BT, response_mask: Mask, values: BT | None = None, *, kind: str = "mean"
) -> tuple[BT, Metrics]:
    value = 0.0 if values is None else where_masked(values, response_mask)
    losses = row_mean(new_entropy, response_mask).unsqueeze(1) - new_logprobs + value
    return losses, Metrics({"actor/own": mean_metric(losses.detach(), response_mask)})


@loss()
def value_loss(new_values: BT, returns: BT, response_mask: Mask) -> tuple[BT, Metrics]:
    gap = where_masked(new_values, response_mask) - where_masked(returns, response_mask)
    return 0.5 * gap.square(), Metrics({"critic/gap": mean_metric(gap, response_mask)})


@pytest.mark.parametrize("declared", NODES, ids=lambda one: one.contract.name)
def test_node(declared) -> None:
    assert [str(violation) for violation in check_node(declared)] == []


@pytest.mark.parametrize("declared", [sequence_entropy, value_loss], ids=lambda one: one.contract.name)
def test_loss(declared) -> None:
    assert [str(violation) for violation in check_loss(declared)] == []
