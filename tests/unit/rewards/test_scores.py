from decimal import Decimal
from fractions import Fraction
from math import isnan
from typing import Any

import numpy as np
import pytest
import torch

from dagrl.rewards.scores import BadResult, RowFailure, Scores, as_list, plain


@pytest.mark.parametrize(
    "value",
    [1, 1.0, True, np.float32(1), np.int64(1), np.bool_(True), torch.tensor(1.0), torch.tensor([1]), np.array(1.0),
     Fraction(2, 2), Decimal(1), {"score": True}, {"score": torch.tensor(1), "acc": 0}],
)  # fmt: skip
def test_a_number_of_any_kind_is_a_score(value: Any) -> None:
    scores = Scores.unscored(2)
    scores.keep(1, value, may_decline=False)
    assert isnan(scores.values[0])
    assert scores.values[1] == 1.0
    assert type(scores.values[1]) is float


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1.0", "returned the str '1.0', not a number"),
        (b"1", "returned a bytes"),
        (None, "returned None"),
        ([1.0], "returned a list"),
        ({"acc": 1}, "dict without `score`; it has `acc`"),
        ({}, "it has no key"),
        ({"score": None}, "returned None"),
        (float("nan"), "returned nan"),
        (float("-inf"), "returned -inf"),
        (1e39, "not a finite number"),
        (10**400, "not one number"),
        (torch.ones(2), "not one number"),
        (1j, "returned a complex"),
    ],
)
def test_what_is_no_score_says_what_it_was(value: Any, message: str) -> None:
    with pytest.raises(BadResult, match=message):
        Scores.unscored(1).keep(0, value, may_decline=False)


def test_none_declines_where_it_may() -> None:
    scores = Scores.unscored(1)
    scores.keep(0, None, may_decline=True)
    assert scores.declined == [0]
    assert isnan(scores.values[0])


@pytest.mark.parametrize("value", [[1, 2], (1, 2), np.ones(2), torch.ones(2), iter([1, 2])])
def test_lists_of_any_kind_are_lists(value: Any) -> None:
    assert len(as_list(value, 2)) == 2


@pytest.mark.parametrize("value", [None, "ab", {1: 1, 2: 2}, {1, 2}, 2, [1], [1, 2, 3], torch.tensor(1.0)])
def test_other_results_are_no_lists(value: Any) -> None:
    with pytest.raises(BadResult):
        as_list(value, 2)


def test_details_are_plain_and_bounded() -> None:
    details = plain({"a": np.float32(0.5), "b": [1, (2, None)], 3: object(), "long": "x" * 10_000, "t": torch.ones(2)})
    assert details["a"] == 0.5
    assert details["b"] == [1, [2, None]]
    assert details["3"].startswith("<object")
    assert len(details["long"]) == 2000
    assert details["t"] == repr(torch.ones(2))


def test_parts_are_placed_by_row() -> None:
    whole, part = Scores.unscored(4), Scores.unscored(2)
    part.keep(0, {"score": 1, "acc": 2}, may_decline=False)
    part.failures.append(RowFailure(1, "no"))
    whole.place([3, 1], part)
    assert whole.values[3] == 1.0
    assert whole.details == {3: {"score": 1, "acc": 2}}
    assert [failure.row for failure in whole.failures] == [1]
