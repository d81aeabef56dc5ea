"""Rows that come as they finish, put side by side."""

import pytest
import torch

from dagrl.engines.rollout.base import Response, samples_of
from dagrl.errors import TrainingError

CPU = torch.device("cpu")


def test_rows_are_put_in_their_places():
    rows = [(1, Response([5], [-0.5], False)), (0, Response([3, 4], [-1.0, -2.0], True))]
    samples = samples_of(iter(rows), 2, 9, CPU)
    assert samples.responses.tolist() == [[3, 4], [5, 9]]
    assert samples.logprobs.tolist() == [[-1.0, -2.0], [-0.5, 0.0]]
    assert samples.lengths.tolist() == [2, 1]
    assert samples.truncated.tolist() == [True, False]


def test_rows_are_drawn_to_the_end_also_for_nobody():
    rows = iter([])
    drawn = []

    def stream():
        drawn.append("all")
        yield from rows

    assert samples_of(stream(), 0, 9, CPU).responses.shape == (0, 0)
    assert drawn == ["all"]


def test_the_first_log_prob_that_is_not_finite_is_named():
    rows = [(0, Response([3, 4], [-1.0, float("nan")], True)), (1, Response([5], [float("-inf")], False))]
    with pytest.raises(TrainingError, match="response token 0 of row 1"):
        samples_of(iter(rows), 2, 9, CPU)
