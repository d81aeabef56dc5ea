"""The gap between the log-probs of rollout and trainer: over micro-batches and ranks, and when it is too large."""

import re
from pathlib import Path

import pytest
import torch
from canary_cases import MASKED, both, masked_rows
from ranks import run_on_ranks
from worker_cases import make_model

from dagrl.data.metrics import Metrics
from dagrl.engines.canary import GapMeter
from dagrl.engines.parallel import SINGLE
from dagrl.errors import TrainingError
from dagrl.graph.roles import Canary


def canary(tolerance: float) -> Canary:
    return Canary(group="actor", rollout="sampler", tolerance=tolerance)


def rows(seed: int, holes: float = 0.3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    trainer, rollout = -torch.rand(2, 5, 7, generator=draw)
    mask = torch.rand(5, 7, generator=draw) > holes
    mask[3] = False
    return trainer, rollout, mask


def reference(parts: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> tuple[float, float]:
    """Mean and largest gap token by token."""
    gaps = [
        abs(float(trainer[row, place]) - float(rollout[row, place]))
        for trainer, rollout, mask in parts
        for row in range(len(mask))
        for place in range(mask.shape[1])
        if mask[row, place]
    ]
    return sum(gaps) / len(gaps), max(gaps)


def test_the_gap_is_the_mean_over_tokens_of_all_micro_batches() -> None:
    parts = [rows(seed) for seed in range(3)]
    mean, largest = reference(parts)
    meter, metrics = GapMeter(), Metrics()
    for trainer, rollout, mask in parts:
        odd = torch.where(mask, rollout, float("nan"))  # what is masked may hold anything
        metrics = metrics.merge(meter.add(torch.where(mask, trainer, float("inf")), odd, mask))
    numbers = metrics.numbers()
    assert numbers["rollout/logprob_gap"] == pytest.approx(mean, abs=1e-6)
    assert numbers["rollout/logprob_gap_max"] == pytest.approx(largest, abs=1e-6)
    meter.require_small(canary(mean + 1e-5), 1, SINGLE)
    with pytest.raises(TrainingError, match=rf"are {mean:.4g} nats from the trainer's in the mean"):
        meter.require_small(canary(mean - 1e-5), 1, SINGLE)


def test_it_says_both_means_the_groups_the_step_and_the_way_out() -> None:
    meter = GapMeter()
    meter.add(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-3.0, -2.0]]), torch.tensor([[True, True]]))
    with pytest.raises(TrainingError) as error:
        meter.require_small(canary(0.25), 7, SINGLE)
    text = str(error.value)
    for part in (
        "the rollout of `sampler`", "`actor` trains", "step 7", "2 tokens are 1 nats", "more than the 0.25",
        "-2.5000 by the rollout, -1.5000 by the trainer", "`logprob_gap_tolerance`",
    ):  # fmt: skip
        assert part in text


def test_without_a_token_nothing_is_said() -> None:
    meter = GapMeter()
    meter.require_small(canary(0.0), 1, SINGLE)
    meter.add(torch.full((2, 3), float("nan")), torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool))
    meter.require_small(canary(0.0), 1, SINGLE)


def test_a_rollout_that_is_no_number_is_too_far() -> None:
    meter = GapMeter()
    meter.add(torch.zeros(1, 1), torch.full((1, 1), float("nan")), torch.ones(1, 1, dtype=torch.bool))
    with pytest.raises(TrainingError, match="nan nats"):
        meter.require_small(canary(1e9), 1, SINGLE)


@pytest.mark.long
def test_all_ranks_raise_together_and_none_has_stepped(tmp_path: Path) -> None:
    """The gap is on one rank's rows alone: the mean over all is what counts, and the other rank hears of it."""
    by_rank = run_on_ranks(both, 2, tmp_path, make_model(tmp_path / "model", tied=True))
    for first, second in zip(*by_rank, strict=True):
        assert first["error"] == second["error"]
        assert first["unchanged"] == second["unchanged"] == bool(first["error"])
    errors = [one["error"] for one in by_rank[0]]
    assert [bool(error) for error in errors] == [True, False] * 4
    for number, error in enumerate(errors):
        if error:
            tokens = [one[number]["tokens"] for one in by_rank]
            share = 0.5 * tokens[(number // 2) % 2] / sum(tokens)
            assert float(re.findall(r"are ([\d.]+) nats", error)[0]) == pytest.approx(share, abs=1e-3)
            assert f"its {sum(tokens)} tokens" in error


@pytest.mark.long
def test_ranks_agree_on_the_mini_batch_that_is_measured(tmp_path: Path) -> None:
    """It is the first with a token on any rank: a rank whose own rows have none hears of the gap too."""
    by_rank = run_on_ranks(masked_rows, 2, tmp_path, make_model(tmp_path / "model", tied=True))
    assert by_rank[0] == by_rank[1]
    counts = [int(re.findall(r"its (\d+) tokens are 0\.5 nats", one["error"])[0]) for one in by_rank[0]]
    assert all(one["unchanged"] for one in by_rank[0])
    for found in (counts[: len(MASKED)], counts[len(MASKED) :]):
        assert found[:2] == [12, 12]
        assert sorted(found[2:]) == [8, 12], "rank 0 has rows of the first mini-batch, and of the second"
