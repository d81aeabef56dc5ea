"""One update from the same recorded rows is the same on 1, 2 and 4 processes, however they hold the model."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ranks import run_on_ranks
from recorded_rows import NUM_ROWS, Case, Outcome, train, train_all

from dagrl.data.metrics import merge_all
from dagrl.ops.aggregate import AGG_MODES

CASES = {
    **{f"{mode}": Case(mode=mode) for mode in AGG_MODES},
    "untied head": Case(model="untied"),
    "gpt2": Case(model="gpt2"),
    "no clipping, budget of tokens": Case(max_grad_norm=None, micro_batch_size=0),
    "one mini-batch": Case(mini_batch_size=0),
    "mini-batches of one row, two of them empty": Case(mini_batch_size=1, epochs=1),
    "not finite": Case(nan_row=3),
    "three updates": Case(updates=3, epochs=1),
}
STRATEGIES = ("replicate", "fsdp")
RUNS = [(strategy, name) for strategy in STRATEGIES for name in CASES]
REPEATED = [(strategy, name) for strategy in STRATEGIES for name in ("token-mean", "gpt2", "three updates")]

Outcomes = dict[tuple[str, str], list[Outcome]]


def outcomes_of(folder: Path, size: int, runs: list[tuple[str, str]]) -> Outcomes:
    """Each run's outcome by rank."""
    by_rank = run_on_ranks(train_all, size, folder, [(strategy, CASES[name]) for strategy, name in runs])
    return dict(zip(runs, map(list, zip(*by_rank, strict=True)), strict=True))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[int, Outcomes]:
    folder = tmp_path_factory.mktemp("ranks")
    return {size: outcomes_of(folder / str(size), size, RUNS) for size in (2, 4)}


@pytest.fixture(scope="module")
def alone() -> dict[str, Outcome]:
    return {name: train(case) for name, case in CASES.items()}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(("strategy", "name"), RUNS)
def test_an_update_is_that_of_one_process(outcomes, alone, size: int, strategy: str, name: str) -> None:
    found, expected = outcomes[size][strategy, name], alone[name]
    metrics = merge_all(outcome.metrics for outcome in found)
    assert metrics.keys() == expected.metrics.keys()
    for key, value in expected.metrics.numbers().items():
        assert metrics.numbers()[key] == pytest.approx(value, rel=1e-6, abs=1e-6), key
    for outcome in found:
        assert outcome.error == expected.error
        for key, weight in expected.weights.items():
            assert (outcome.weights[key] - weight).abs().max() <= 1e-6, key
        assert torch.allclose(outcome.logprobs, expected.logprobs[list(outcome.row_numbers)], rtol=0, atol=2e-6)
    assert sorted(row for outcome in found for row in outcome.row_numbers) == list(range(NUM_ROWS))


def test_two_ranks_give_the_same_bits_twice(outcomes, tmp_path: Path) -> None:
    for run, again in outcomes_of(tmp_path, 2, REPEATED).items():
        for first, second in zip(outcomes[2][run], again, strict=True):
            assert first.metrics == second.metrics
            assert all(torch.equal(first.weights[key], weight) for key, weight in second.weights.items())


@pytest.mark.parametrize("size", [2, 4])
def test_all_ranks_end_with_the_same_bits(outcomes, size: int) -> None:
    for run in RUNS:
        first, *others = outcomes[size][run]
        for other in others:
            assert all(torch.equal(first.weights[key], weight) for key, weight in other.weights.items()), run


def test_the_cases_are_what_they_say(alone) -> None:
    """Clipping bites, mini-batches are empty, weights move, and where a gradient is not finite they stay."""
    usual = alone["token-mean"].metrics.numbers()
    assert usual["actor/grad_norm"] > 0.05
    assert usual["actor/optimizer_steps"] == 4
    assert usual["actor/empty_mini_batches"] == 2
    assert alone["mini-batches of one row, two of them empty"].metrics.numbers()["actor/empty_mini_batches"] == 2
    assert "the gradient norm is nan" in alone["not finite"].error
    moved = [(a - b).abs().max() for a, b in zip(alone["token-mean"].weights.values(), start(), strict=True)]
    assert all(float(distance) > 1e-4 for distance in moved)


def test_a_gradient_that_is_not_finite_stops_all_ranks_before_they_step(outcomes) -> None:
    """Its mini-batch may not be the first: then the weights are those after the one before, on every rank."""
    for size in (2, 4):
        for strategy in STRATEGIES:
            found = outcomes[size][strategy, "not finite"]
            assert all("the gradient norm is nan" in outcome.error for outcome in found)
            assert all(bool(weight.isfinite().all()) for outcome in found for weight in outcome.weights.values())


def start() -> list[torch.Tensor]:
    return list(train(replace(CASES["token-mean"], updates=0)).weights.values())
