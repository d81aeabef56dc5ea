"""The made-up rows: what the legend says holds, holes and scattered groups, columns of one's own, examples."""

from collections.abc import Mapping
from typing import Any, Literal

import pytest
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import Metrics, Objects, loss, node
from dagrl.contracts import check_loss, check_node
from dagrl.contracts.batch import shuffled_order, sub_batches
from dagrl.contracts.make_batch import make_batch
from dagrl.contracts.options import option_values
from dagrl.contracts.violation import RunFault
from dagrl.data.columns import DTYPES, LEGEND
from dagrl.errors import ContractError
from dagrl.graph.contract import Read
from dagrl.ops.masks import position_ids

READS = [Read(column.name, column.type) for column in LEGEND.values() if not column.type.is_object]


def no_hints(
    policy_version: Int64[Tensor, " B"], row_fields: Objects[Mapping[str, Any]], reward_details: Objects[dict]
) -> None:
    """Annotations that a made-up node would have."""


def test_the_rows_are_those_of_a_rollout() -> None:
    batch = make_batch(READS, no_hints, {})
    mask, attention = batch.tensor("response_mask"), batch.tensor("attention_mask")
    real = attention[:, batch.widths.P :]
    lengths = batch.tensor("response_lengths")
    assert torch.equal(real.sum(1), lengths)
    assert mask.any(1).all()
    assert not (mask & ~real).any()
    assert (real & ~mask).any()  # a hole
    assert lengths.max() == batch.widths.T
    assert lengths.min() < batch.widths.T
    assert torch.equal(batch.tensor("position_ids"), position_ids(attention))
    assert torch.equal(batch.tensor("input_ids")[:, batch.widths.P :], batch.tensor("responses"))
    assert (batch.tensor("temperatures") > 0).all()
    assert (batch.tensor("old_logprobs") < 0).all()
    for read in READS:
        column = batch.tensor(read.name)
        sizes = {"B": 12, "P": batch.widths.P, "T": batch.widths.T, "S": batch.widths.S, "K": 3}
        assert column.dtype == getattr(torch, DTYPES[read.type.dtype])
        assert list(column.shape) == [sizes[dim] for dim in read.type.dims], read.name


def test_groups_are_scattered_and_share_their_prompt() -> None:
    batch = make_batch([], no_hints, {})
    groups = sub_batches(batch)
    assert sorted(len(rows) for rows in groups.values()) == [3, 3, 3, 3]
    for rows in groups.values():
        assert (rows.diff() > 1).all()
        assert len({batch.columns["answers"][row] for row in rows.tolist()}) == 1
        assert len(batch.positions[rows].unique()) == 1
    assert (shuffled_order(12) != torch.arange(12)).sum() > 8
    assert len(batch.seeds.unique()) == 12


def test_wider_padding_keeps_every_real_value() -> None:
    batch = make_batch(READS, no_hints, {})
    wide = batch.widened(3, 2)
    assert wide.widths.S == batch.widths.S + 5
    assert torch.equal(wide.tensor("input_ids")[:, 3:-2], batch.tensor("input_ids"))
    assert not wide.tensor("attention_mask")[:, :3].any()
    assert torch.equal(wide.tensor("advantages")[:, :-2], batch.tensor("advantages"))


class Grade:
    pass


@node(
    writes="rewards",
    examples={"marks": [1.0, 2.5], "notes": ["good", "bad"], "pattern": "a+", "grade": Grade()},
)
def uses_examples(
    marks: Float32[Tensor, " B"], notes: Objects[str], *, pattern: str, grade: Grade, mode: Literal["x", "y"], top: int
) -> Float32[Tensor, " B"]:
    if not set(marks.tolist()) <= {1.0, 2.5} or not set(notes) <= {"good", "bad"}:
        raise ValueError("these are no examples")
    if pattern != "a+" or not isinstance(grade, Grade) or mode != "x" or top != 2:
        raise ValueError("these are no examples")
    return marks * 2


@loss(examples={"power": 3})
def loss_with_examples(
    new_logprobs: Float32[Tensor, "B T"], response_mask: Bool[Tensor, "B T"], *, power: int
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    return -(new_logprobs**power), Metrics()


def test_examples_go_before_types_and_given_options_before_examples() -> None:
    assert check_node(uses_examples) == []
    assert option_values(uses_examples.contract, {})["pattern"] == "a+"
    assert option_values(uses_examples.contract, {"pattern": "b"})["pattern"] == "b"
    (violation,) = check_node(uses_examples, {"pattern": "b"})
    assert "these are no examples" in violation.what
    assert check_loss(loss_with_examples) == []
    assert option_values(loss_with_examples.contract, {}) == {"power": 3}


@pytest.mark.parametrize(
    ("given", "text"), [({"top": "many"}, "got `top='many'`"), ({"tpo": 3}, "has no option `tpo`")]
)
def test_options_that_do_not_fit_are_refused(given, text: str) -> None:
    with pytest.raises(RunFault, match=text):
        option_values(uses_examples.contract, given)


@pytest.mark.parametrize("kind", ["node", "loss"])
def test_an_example_of_nothing_is_a_fault_of_the_declaration(kind: str) -> None:
    declare = node(writes="rewards", examples={"nothing": 1}) if kind == "node" else loss(examples={"nothing": 1})
    with pytest.raises(ContractError, match="examples= names `nothing`, which it neither reads nor takes"):
        declare((uses_examples if kind == "node" else loss_with_examples).function)


def test_columns_of_ones_own_are_drawn_by_their_type() -> None:
    @node(writes="rewards")
    def own(
        levels: Int64[Tensor, "B K"], flags: Bool[Tensor, "B T"], fields: Objects[dict], tools: Objects[list[str]]
    ) -> Float32[Tensor, " B"]:
        """Reads four columns that no legend knows."""
        sizes = [len(tool) + len(field) for tool, field in zip(tools, fields, strict=True)]
        return levels.float().mean(1) + flags.sum(1) + torch.tensor(sizes, dtype=torch.float32)

    assert check_node(own) == []
