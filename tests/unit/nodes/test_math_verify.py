"""`math_verify`: answers compared as mathematics, in processes with a time limit."""

import math
from threading import Thread

import pytest
import torch

from dagrl.nodes import math_verify

pytest.importorskip("math_verify", exc_type=ImportError)


def test_equal_expressions_are_right_however_they_are_written() -> None:
    answers = ["1/2", r"\frac{1}{2}", "1000", "$x^2+2x+1$", "7", "7"]
    texts = ["so $0.5$", r"\boxed{1/2}", "it is 1,000.", "$(x+1)^2$", "It is 8.", "first 8, then 7"]
    rewards, metrics = math_verify(answers, texts)
    assert rewards.tolist() == [1, 1, 1, 1, 0, 1]
    assert {name: one.value for name, one in metrics.items()} == {
        "math_verify/unparsable": 0, "math_verify/given_up": 0, "math_verify/unreadable_answers": 0,
    }  # fmt: skip


def test_what_cannot_be_read_is_counted() -> None:
    rewards, metrics = math_verify(["5", "hmm", "5"], ["no idea", "5", "5"])
    assert rewards[0] == 0
    assert math.isnan(rewards[1])
    assert rewards[2] == 1
    assert metrics["math_verify/unparsable"].value == 1
    assert metrics["math_verify/unreadable_answers"].value == 1


def test_a_response_that_takes_for_ever_gets_0_and_holds_up_no_other() -> None:
    rewards, metrics = math_verify(["3", "7"], ["$9^{9^{9^{9}}}+\\sum_{i=1}^{10^9} i!$", "7"], time_limit=1.0)
    assert rewards.tolist() == [0, 1]
    assert metrics["math_verify/given_up"].value == 1


def test_it_runs_in_a_thread() -> None:
    found: list[float] = []
    thread = Thread(target=lambda: found.extend(math_verify(["1/2"], ["0.5"])[0].tolist()))
    thread.start()
    thread.join()
    assert found == [1]


def test_a_truncated_response_is_wrong_unless_allowed() -> None:
    cut = torch.tensor([True])
    assert math_verify(["5"], ["5"], cut)[0].tolist() == [0]
    assert math_verify(["5"], ["5"], cut, allow_truncated=True)[0].tolist() == [1]
    assert math_verify([], [])[0].shape == (0,)
