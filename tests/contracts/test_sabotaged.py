"""Nodes and losses with one fault each: the suite names the fault, the rule and the place."""

import copy
import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import Mean, Metrics, Objects, loss, node
from dagrl.contracts import check_loss, check_node
from dagrl.ops.masks import row_mean, where_masked

B, BT = Float32[Tensor, " B"], Float32[Tensor, "B T"]
Flags, Ids, Mask = Bool[Tensor, " B"], Int64[Tensor, " B"], Bool[Tensor, "B T"]


@node(writes="rewards")
def edits_its_input(rewards: B) -> B:
    return rewards.sub_(1.0)


@node(writes="rewards")
def edits_behind_torchs_back(rewards: B) -> B:
    rewards.numpy()[...] = 0.0
    return rewards + 1


@node(writes="scores", split="group")
def edits_the_group_ids(rewards: B, group_ids: Ids) -> B:
    group_ids -= group_ids.min()
    return rewards


@node(writes="rewards")
def mutates_an_object(messages: Objects[list]) -> B:
    for message in messages:
        message.append({"role": "system", "content": "hurry"})
    return torch.zeros(len(messages))


@node(writes="rewards", split="row")
def cuts_a_group(rewards: B, group_ids: Ids) -> B:
    same = group_ids.unsqueeze(0) == group_ids.unsqueeze(1)
    return rewards - (same * rewards.nan_to_num()).sum(1) / same.sum(1)


@node(writes="rewards", split="group")
def whitens_over_the_batch(rewards: B) -> B:
    return rewards - rewards.nanmean()


@node(writes="rewards", split="group")
def takes_places_for_groups(rewards: B) -> B:
    size = 3 if len(rewards) % 3 == 0 else 1
    groups = rewards.view(-1, size)
    return (groups - groups.mean(1, keepdim=True)).flatten()


@node(writes="rewards", split="batch")
def depends_on_row_order(rewards: B) -> B:
    return rewards.cumsum(0)


@node(writes="rewards")
def returns_another_dtype(rewards: B) -> B:
    return rewards.double()


@node(writes="rewards")
def returns_fewer_rows(rewards: B) -> B:
    return rewards[1:]


@node(writes="advantages")
def returns_other_dims(rewards: B, response_mask: Mask) -> BT:
    return rewards


@node(writes="rewards")
def returns_a_list(rewards: B) -> B:
    return rewards.tolist()


@node(writes="rewards")
def draws_from_torch(rewards: B) -> B:
    return rewards + torch.rand(len(rewards))


@node(writes="rewards")
def draws_from_numpy(rewards: B) -> B:
    return rewards + np.random.rand()


@node(writes="rewards")
def draws_from_python(rewards: B) -> B:
    return rewards + random.random()


COUNTER = [0]


@node(writes="rewards")
def remembers_calls(rewards: B) -> B:
    COUNTER[0] += 1
    return rewards + COUNTER[0]


@node(writes="rewards")
def averages_over_padding(token_rewards: BT, response_mask: Mask) -> B:
    return where_masked(token_rewards, response_mask).mean(1)


@node(writes="rewards")
def measures_the_width(response_lengths: Ids, response_mask: Mask) -> B:
    return response_lengths / response_mask.shape[1]


@node(writes="rewards")
def forgets_the_mask(token_rewards: BT) -> B:
    return token_rewards.sum(1)


@node(writes="rewards")
def multiplies_by_the_mask(token_rewards: BT, response_mask: Mask) -> B:
    return (token_rewards * response_mask).sum(1)


@node(writes="rewards", split="batch")
def crashes_on_no_rows(rewards: B) -> B:
    return rewards / rewards.abs().max()


@node(writes="rewards", split="batch")
def crashes_on_a_single_row(rewards: B) -> B:
    if len(rewards) == 1:
        raise IndexError("no second row")
    return rewards


@node(writes="rewards")
def needs_its_optional_column(rewards: B, truncated: Flags | None = None) -> B:
    return rewards * truncated.float()


class Two(NamedTuple):
    rewards: B
    scores: B | None


@node()
def owes_a_wanted_column(response_lengths: Ids) -> Two:
    return Two(response_lengths.float(), None)


@node()
def changes_with_what_is_wanted(response_lengths: Ids, *, wanted: frozenset[str]) -> Two:
    return Two(response_lengths.float() + len(wanted), response_lengths.float())


@node(writes="advantages", split="group")
def spreads_an_unscorable_reward(rewards: B, group_ids: Ids, response_mask: Mask) -> BT:
    same = group_ids.unsqueeze(0) == group_ids.unsqueeze(1)
    mean = (same * rewards).sum(1) / same.sum(1)
    return (rewards - mean).unsqueeze(-1) * response_mask


@node(writes="scores", split="group")
def lets_nan_into_other_groups(rewards: B, group_ids: Ids) -> B:
    same = group_ids.unsqueeze(0) == group_ids.unsqueeze(1)
    return (same * rewards).sum(1)


@node(writes="advantages", split="batch")
def keeps_the_unscorable_advantage(rewards: B, response_mask: Mask) -> BT:
    return rewards.unsqueeze(-1) * response_mask


@node(writes="advantages")
def divides_by_trained_tokens(response_mask: Mask) -> BT:
    mask = response_mask.float()
    share = mask / mask.sum() * len(mask) if len(mask) else mask
    return share / (mask.sum(1, keepdim=True) != 0).all()


@node(writes="rewards")
def averages_averages(rewards: B) -> tuple[B, Metrics]:
    mean = float(rewards.mean()) if len(rewards) else 0.0
    return rewards, Metrics({"reward/own_mean": Mean(mean, 1.0)})


@node(rows="filter")
def keeps_the_first_rows(rewards: B) -> Flags:
    return torch.arange(len(rewards)) < 2


@node(writes="rewards")
def raises(rewards: B) -> B:
    raise RuntimeError("out of ideas")


class Opaque:
    pass


@node(writes="rewards")
def wants_the_unknowable(rewards: B, *, helper: Opaque) -> B:
    return rewards


@node(writes="rewards", check=lambda call: [f"`size` is {call.options['size']}: it must be even"])
def refuses_its_example(rewards: B, *, size: int) -> B:
    return rewards


@node(writes="rewards", check=lambda call: call.options["missing"])
def cannot_check(rewards: B) -> B:
    return rewards


@dataclass(frozen=True)
class Counted:
    count: int


@node(writes="rewards", split="batch")
def has_no_first_state(rewards: B, *, state: Counted) -> tuple[B, Counted]:
    return rewards, state


@node(writes="rewards")
def returns_a_number(rewards: B) -> B:
    return 3


@node(writes="rewards", check=lambda call: [("`size` is 2", "make it odd")])
def refuses_with_a_fix(rewards: B, *, size: int) -> B:
    return rewards


@node(writes="rewards", check=lambda call: [("no fix",)])
def checks_with_half_a_pair(rewards: B) -> B:
    return rewards


NODES = [
    (edits_its_input, "runs", "edited its input `rewards`"),
    (edits_behind_torchs_back, "runs", "edited its input `rewards`"),
    (edits_the_group_ids, "runs", "edited its input `group_ids`"),
    (mutates_an_object, "runs", "edited its input `messages`"),
    (cuts_a_group, "each row by itself", "a row alone gives another result than among others: `rewards` of row 0 was"),
    (whitens_over_the_batch, "each group by itself", "a group alone gives another result than among others"),
    (takes_places_for_groups, "row order", "depends on the order of the rows: `rewards` of row"),
    (depends_on_row_order, "row order", "depends on the order of the rows"),
    (returns_another_dtype, "runs", "returned float64[12] for `rewards`, declared f32[B]"),
    (returns_fewer_rows, "runs", "returned 11 rows for `rewards`, it was given 12"),
    (returns_other_dims, "runs", "returned float32[12] for `advantages`, declared f32[B T]"),
    (returns_a_list, "runs", "returned a list for `rewards`, declared f32[B]"),
    (draws_from_torch, "same call, same result", "gives another result when called again"),
    (draws_from_numpy, "same call, same result", "gives another result when called again"),
    (draws_from_python, "same call, same result", "gives another result when called again"),
    (remembers_calls, "same call, same result", "gives another result when called again"),
    (averages_over_padding, "padding width", "depends on the padding width: `rewards` of row 0 was"),
    (measures_the_width, "padding width", "depends on the padding width"),
    (forgets_the_mask, "masked places", "reads masked places, where nan stood: `rewards` of row 0"),
    (multiplies_by_the_mask, "masked places", "reads masked places, where nan stood"),
    (crashes_on_no_rows, "no rows", "(on no rows at all, which a filter may leave)"),
    (crashes_on_a_single_row, "single row", "raised IndexError: no second row (on a single row)"),
    (needs_its_optional_column, "optional reads", "(without the optional `truncated`)"),
    (owes_a_wanted_column, "runs", "returned None for `scores`"),
    (changes_with_what_is_wanted, "optional writes", "gives another result when only rewards is wanted"),
    (spreads_an_unscorable_reward, "unscorable reward", "`advantages` of row 0 are not finite with an unscorable"),
    (lets_nan_into_other_groups, "unscorable reward", "rows it has no part in change: `scores` of row 1 was"),
    (keeps_the_unscorable_advantage, "unscorable reward", "`advantages` of row 0 are not finite with an unscorable"),
    (divides_by_trained_tokens, "untrained row", "are not finite with a row that has no trained token"),
    (averages_averages, "each row by itself", "metrics of parts do not merge to those of the whole: metric"),
    (keeps_the_first_rows, "row order", "depends on the order of the rows: its flags of row"),
    (raises, "runs", "raised RuntimeError: out of ideas"),
    (wants_the_unknowable, "runs", "the option `helper` has no default"),
    (refuses_its_example, "runs", "its own check refuses {'size': 2}: `size` is 2: it must be even"),
    (cannot_check, "runs", "its check raised KeyError"),
    (returns_a_number, "runs", "returned an int for `rewards`, declared f32[B]"),
    (refuses_with_a_fix, "runs", "its own check refuses {'size': 2}: `size` is 2"),
    (checks_with_half_a_pair, "runs", "its check returned [('no fix',)]"),
    (has_no_first_state, "runs", "its state `Counted` cannot be made without arguments"),
]


@loss()
def shares_a_micro_batch(new_logprobs: BT, advantages: BT, response_mask: Mask) -> tuple[BT, Metrics]:
    advantages = where_masked(advantages, response_mask)
    return -new_logprobs * advantages / advantages.std(), Metrics()


@loss()
def loss_over_padding(new_logprobs: BT, response_mask: Mask) -> tuple[BT, Metrics]:
    return where_masked(new_logprobs, response_mask).mean(1, keepdim=True).expand_as(new_logprobs), Metrics()


@loss()
def loss_without_mask(new_logprobs: BT, old_logprobs: BT, response_mask: Mask) -> tuple[BT, Metrics]:
    gap = (new_logprobs - old_logprobs).sum(1, keepdim=True)
    return gap.expand_as(new_logprobs), Metrics()


@loss()
def loss_reads_masked_outputs(new_logprobs: BT, response_mask: Mask) -> tuple[BT, Metrics]:
    total = new_logprobs.cumsum(1) / response_mask.cumsum(1).clamp(min=1)
    return total, Metrics()


@loss()
def metric_without_mask(new_logprobs: BT, old_logprobs: BT, response_mask: Mask) -> tuple[BT, Metrics]:
    old = float((old_logprobs * response_mask).sum())
    return -new_logprobs, Metrics({"actor/old": Mean(old, float(response_mask.sum()))})


@loss()
def loss_without_gradient(new_logprobs: BT, advantages: BT, response_mask: Mask) -> tuple[BT, Metrics]:
    return -new_logprobs.detach() * advantages, Metrics()


@loss()
def loss_edits_a_column(new_logprobs: BT, old_logprobs: BT, response_mask: Mask) -> tuple[BT, Metrics]:
    old_logprobs[~response_mask] = 0.0
    return old_logprobs - new_logprobs, Metrics()


@loss()
def averaged_loss(new_logprobs: BT, response_mask: Mask) -> tuple[BT, Metrics]:
    return -(new_logprobs * response_mask).sum() / response_mask.sum(), Metrics()


@loss()
def double_loss(new_logprobs: BT, response_mask: Mask) -> tuple[BT, Metrics]:
    return -new_logprobs.double(), Metrics()


@loss()
def loss_alone(new_logprobs: BT, response_mask: Mask) -> tuple[BT, Metrics]:
    return -new_logprobs


@loss()
def loss_with_dropout(new_logprobs: BT, response_mask: Mask) -> tuple[BT, Metrics]:
    return torch.nn.functional.dropout(-new_logprobs, 0.3), Metrics()


@loss()
def loss_by_place(new_logprobs: BT, response_mask: Mask) -> tuple[BT, Metrics]:
    ages = torch.arange(len(new_logprobs)) + 1.0
    return -new_logprobs * ages.unsqueeze(1), Metrics()


@loss()
def mean_of_means(new_logprobs: BT, response_mask: Mask) -> tuple[BT, Metrics]:
    means = row_mean(new_logprobs.detach(), response_mask)
    return -new_logprobs, Metrics({"actor/mean": Mean(float(means.mean()), 1.0)})


@loss()
def metric_of_an_untrained_row(new_logprobs: BT, response_mask: Mask) -> tuple[BT, Metrics]:
    means = where_masked(new_logprobs.detach(), response_mask).sum(1) / response_mask.sum(1)
    return -new_logprobs, Metrics({"actor/row_mean": Mean(float(means.sum()), float(len(means)))})


@loss()
def loss_of_an_unscorable_row(new_logprobs: BT, rewards: B, response_mask: Mask) -> tuple[BT, Metrics]:
    return -new_logprobs * rewards.unsqueeze(1), Metrics()


@loss()
def log_of_an_advantage(new_logprobs: BT, advantages: BT, response_mask: Mask) -> tuple[BT, Metrics]:
    return -new_logprobs * advantages.log(), Metrics()


@loss()
def needs_its_optional_reference(
    new_logprobs: BT, response_mask: Mask, ref_logprobs: BT | None = None
) -> tuple[BT, Metrics]:
    return new_logprobs - ref_logprobs, Metrics()


@loss(check=lambda call: ["`cap` must be above 1"] if call.options["cap"] <= 1 else [])
def refuses_its_default(new_logprobs: BT, response_mask: Mask, *, cap: float = 1.0) -> tuple[BT, Metrics]:
    return -new_logprobs.clamp(max=cap), Metrics()


@loss()
def loss_of_a_number(new_logprobs: BT, response_mask: Mask) -> tuple[BT, Metrics]:
    return 3


LOSSES = [
    (loss_of_a_number, "runs", "returned an int, not losses and metrics"),
    (shares_a_micro_batch, "micro-batch", "depends on which rows share its micro-batch: the loss of row 0 was"),
    (loss_over_padding, "padding width", "depends on the padding width: the loss of row"),
    (loss_without_mask, "masked places", "reads masked places, where nan stood: the loss of row"),
    (loss_reads_masked_outputs, "masked places", "reads masked places of the engine's outputs: the loss of row"),
    (metric_without_mask, "masked places", "reads masked places, where nan stood: metric `actor/old` was"),
    (loss_without_gradient, "gradient", "no gradient reaches `new_logprobs`"),
    (loss_edits_a_column, "runs", "edited its input `old_logprobs`"),
    (averaged_loss, "runs", "returned float32[] for the losses of [12, 6] tokens"),
    (double_loss, "runs", "returned float64[12, 6] for the losses"),
    (loss_alone, "runs", "returned a Tensor, not losses and metrics"),
    (loss_with_dropout, "same call, same result", "gives another result when called again"),
    (loss_by_place, "row order", "depends on the order of the rows: the loss of row"),
    (mean_of_means, "micro-batch", "metrics depend on the micro-batch: metric `actor/mean`"),
    (metric_of_an_untrained_row, "untrained row", "metric `actor/row_mean` is NaN with a row that has no trained"),
    (loss_of_an_unscorable_row, "unscorable reward", "the loss of row 0 is not finite with an unscorable"),
    (log_of_an_advantage, "finite", "is not finite on ordinary rows"),
    (needs_its_optional_reference, "optional reads", "(without the optional `ref_logprobs`)"),
    (refuses_its_default, "runs", "its own check refuses {'cap': 1.0}: `cap` must be above 1"),
]


def assert_named(declared, violations, rule: str, text: str) -> None:
    named = {violation.rule: violation for violation in violations}
    assert rule in named, [str(violation) for violation in violations]
    found = named[rule]
    assert text in found.what
    assert f"`{declared.contract.name}`" in str(found)
    assert found.at.file == __file__
    assert found.at.line >= declared.contract.at.line
    assert found.fix
    assert len(violations) == len(named)


@pytest.mark.parametrize(("declared", "rule", "text"), NODES, ids=lambda value: getattr(value, "__name__", None))
def test_node(declared, rule: str, text: str) -> None:
    assert_named(declared, check_node(declared), rule, text)


@pytest.mark.parametrize(("declared", "rule", "text"), LOSSES, ids=lambda value: getattr(value, "__name__", None))
def test_loss(declared, rule: str, text: str) -> None:
    assert_named(declared, check_loss(declared), rule, text)


def test_an_exception_is_named_at_its_own_line() -> None:
    (violation,) = check_node(raises)
    assert violation.at.line > raises.contract.at.line


def test_the_suite_leaves_the_global_generators_as_they_were() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state(), copy.deepcopy(np.random.get_state()), random.getstate()
    check_node(draws_from_torch)
    check_loss(loss_with_dropout)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1][1])
    assert random.getstate() == before[2]
