"""What a state may be declared of."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pytest
from jaxtyping import Float32
from torch import Tensor

from dagrl.graph.states import state_faults


@dataclass(frozen=True)
class Inner:
    best: float
    again: "Inner | None" = None


@dataclass(frozen=True)
class Sound:
    count: int
    mean: float
    name: str
    on: bool
    kind: Literal["a", "b"]
    pair: tuple[int, str]
    many: tuple[Inner, ...]
    either: Inner | tuple[float, ...] | None
    weights: Tensor
    rows: Float32[Tensor, "N 2"]
    bare: tuple


def test_a_sound_one_has_no_fault() -> None:
    assert state_faults(Sound) == []


class Pair(NamedTuple):
    a: int


@pytest.mark.parametrize(
    "annotation", [list[int], dict, set[str], bytes, complex, Any, object, Callable, Pair, tuple[dict, ...], int | list]
)
def test_anything_else_is_named(annotation: Any) -> None:
    @dataclass(frozen=True)
    class Odd:
        fine: int
        odd: Any

    Odd.__annotations__["odd"] = annotation
    (fault,) = state_faults(Odd)
    assert fault.startswith("`Odd.odd` is `")


def test_a_dataclass_that_can_change_and_a_field_that_is_not_given() -> None:
    @dataclass
    class Loose:
        a: int

    @dataclass(frozen=True)
    class Derived:
        a: int
        b: int = field(init=False, default=0)

    assert state_faults(Loose) == ["`Loose` is a dataclass that is not frozen"]
    assert state_faults(Derived) == ["`Derived.b` is a field that `__init__` does not take"]
