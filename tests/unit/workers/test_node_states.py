"""States as JSON and tensors, and back, by the class that is declared."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dagrl.errors import CheckpointError, NodeError
from dagrl.storage.checkpoints import StatePart
from dagrl.workers.node_states import check_state, read_node_states, write_node_states


@dataclass(frozen=True)
class Inner:
    best: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Other:
    best: int


@dataclass(frozen=True)
class State:
    count: int
    number: float
    on: bool
    inner: Inner | Other | None
    many: tuple[Inner, ...]
    pair: tuple[int, Inner] | None
    tensor: Tensor
    half: Tensor


def state(**values: Any) -> State:
    tensor = torch.arange(4.0)
    fields = {
        "count": 2**70, "number": 0.1, "on": True, "inner": Other(3), "pair": (1, Inner(2.0)), "tensor": tensor,
        "many": (Inner(math.inf), Inner(1e-320, ("ä", ""))), "half": tensor[1:3].to(torch.bfloat16), **values,
    }  # fmt: skip
    return State(**fields)


def back(folder: Path, value: State) -> State:
    write_node_states(str(folder), {"step": {"call": value}})
    return read_node_states(StatePart(str(folder), "nodes"), {"step": {"call": state()}})["step"]["call"]


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    value = state()
    read = back(tmp_path, value)
    assert read.tensor.equal(value.tensor)
    assert read.half.equal(value.half)
    assert read.half.dtype == torch.bfloat16
    for name in ("count", "number", "on", "inner", "many", "pair"):
        assert getattr(read, name) == getattr(value, name)
        assert type(getattr(read, name)) is type(getattr(value, name))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -0.0, 5])
def test_every_number_comes_back(tmp_path: Path, number: float) -> None:
    read = back(tmp_path, state(number=number)).number
    assert repr(read) == repr(number)


@dataclass(frozen=True)
class Heir(Inner):
    more: int = 0


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"number": [1.0]}, "`call`.number is a list where its class declares `float`"),
        ({"many": (Inner(1.0), {"best": 1})}, r"`call`.many\[1\] is a dict where its class declares `Inner`"),
        ({"inner": Inner(torch.float32)}, "`call`.inner.best is a dtype"),
        ({"inner": Heir(1.0)}, "`call`.inner is a Heir where"),
    ],
)
def test_a_value_that_its_class_does_not_declare_is_refused(values: dict[str, Any], where: str) -> None:
    check_state("call", state(), State)
    with pytest.raises(NodeError, match=where):
        check_state("call", state(**values), State)


def test_a_class_that_has_changed_is_told(tmp_path: Path) -> None:
    write_node_states(str(tmp_path), {"step": {"call": Inner(1.0)}})
    part = StatePart(str(tmp_path), "nodes")
    for present in ({"step": {"call": Other(1)}}, {"step": {"other": Inner(1.0)}}):
        with pytest.raises(CheckpointError, match="the checkpoint holds no state of"):
            read_node_states(part, present)
