"""A rule that breaks on inputs which the suite had to invent: the message says so, and how to give real ones."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl import Metrics, Objects, loss, node
from dagrl.contracts import check_loss, check_node

B, BT = Float32[Tensor, " B"], Float32[Tensor, "B T"]


def draw(probabilities: B) -> B:
    """Raises for what is no probability."""
    return torch.distributions.Bernoulli(probabilities, validate_args=True).mean


def levels(row_fields: Objects[Mapping[str, Any]]) -> B:
    """Reads a field of the user's own rows."""
    return torch.tensor([float(fields["level"]) for fields in row_fields], dtype=torch.float32)


def ranged(rewards: B, *, low: float, high: float) -> B:
    """Has options that depend on each other."""
    if not low < high:
        raise ValueError("low is not below high")
    return (rewards - low) / (high - low)


def from_a_file(rewards: B, *, path: str) -> B:
    """Reads a file."""
    with open(path, encoding="utf-8") as file:
        return rewards * len(file.read())


def root(rewards: B) -> B:
    """Knows that rewards are not negative."""
    if (rewards < 0).any():
        raise ValueError("a negative reward")
    return rewards.sqrt()


def cut_shares(shares: B) -> B:
    """A column of its own, and a fault that has nothing to do with it."""
    return shares - shares.mean()


def low_order(call) -> list[str]:
    options = call.options
    return [] if options["low"] < options["high"] else ["`low` is not below `high`"]


CASES = [
    (
        draw,
        "made up  `probabilities` (e.g. ",
        '`@node(examples={"probabilities": [...]})`',
        {"probabilities": [0.1, 1.0]},
    ),
    (
        levels,
        "made up  `row_fields` (e.g. {'prompt': ",
        '`@node(examples={"row_fields": [...]})`',
        {"row_fields": [{"level": 3}]},
    ),
    (ranged, "`low=0.5`\n         `high=0.5`\n", '"low": ..., "high": ...})`', {"low": 0.0, "high": 1.0}),
    (from_a_file, "`path='text'`", '"path": ...})`', {"path": __file__}),
    (root, "made up  `rewards` (e.g. ", '`@node(examples={"rewards": [...]})`', {"rewards": [0.0, 4.0]}),
]


@pytest.mark.parametrize(
    ("function", "made_up", "fix", "examples"), CASES, ids=lambda value: getattr(value, "__name__", "")
)
def test_an_input_that_was_made_up_is_named(function, made_up, fix, examples) -> None:
    (violation,) = check_node(node(writes="rewards")(function))
    text = str(violation)
    assert violation.what.startswith("raised ")
    assert made_up in text
    assert fix in text
    assert "if it is never given such inputs, give it others" in text
    assert check_node(node(writes="rewards", examples=examples)(function)) == []


def test_a_broken_rule_names_a_column_of_ones_own_but_not_those_of_the_legend() -> None:
    (violation, *_) = check_node(node(writes="rewards")(cut_shares))
    assert violation.rule == "each row by itself"
    assert violation.made_up
    assert violation.made_up[0].startswith("`shares` (e.g. ")
    assert "split=" in violation.fix.split("\n")[0]

    @node(writes="rewards")
    def cut_rewards(rewards: B) -> B:
        return rewards - rewards.nanmean()

    (violation, *_) = check_node(cut_rewards)
    assert violation.made_up == ()
    assert "examples" not in violation.fix


def test_a_fault_that_no_input_could_excuse_says_nothing_of_them() -> None:
    @node(writes="scores")
    def wrong(shares: B) -> B:
        return shares.double()

    (violation,) = check_node(wrong)
    assert violation.made_up == ()


def test_a_check_that_refuses_made_up_options_asks_for_all_of_them() -> None:
    (violation,) = check_node(node(writes="rewards", check=low_order)(ranged))
    assert "its own check refuses {'low': 0.5, 'high': 0.5}: `low` is not below `high`" in violation.what
    assert violation.fix == 'give values that fit in the declaration: `@node(examples={"low": ..., "high": ...})`'


def test_options_that_were_given_or_have_a_default_are_not_made_up() -> None:
    assert check_node(node(writes="rewards")(ranged), {"low": 0.0, "high": 1.0}) == []
    (violation,) = check_node(node(writes="rewards")(ranged), {"low": 3.0})
    assert violation.made_up[-1] == "`high=0.5`"
    assert not any("low" in one for one in violation.made_up)


def test_a_loss_says_so_too() -> None:
    @loss()
    def scaled(new_logprobs: BT, shares: BT, response_mask: Bool[Tensor, "B T"], *, power: float) -> tuple[BT, Metrics]:
        if (shares < 0).any() or power > 1:
            raise ValueError("no share")
        return -new_logprobs * shares, Metrics()

    (violation,) = check_loss(scaled)
    assert '`@loss(examples={"shares": [...], ' in violation.fix
    assert '"power": ...})`' in violation.fix
