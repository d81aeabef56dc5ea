"""A critic of several processes is that of one: weights, values, metrics, state and export, in either strategy."""

from pathlib import Path
from typing import Any

import pytest
import torch
from critic_cases import as_ranks, go_on, make_model, read_state, start, train_and_go_on, weights
from ranks import run_on_ranks

from dagrl.data.metrics import merge_all

CASES = {
    "llama": ("llama", {"micro_batch_size": 2}),
    "gpt2": ("gpt2", {"mini_batch_size": 3, "micro_batch_size": 1, "epochs": 2}),
    "rows": ("llama", {"loss_agg_mode": "seq-mean-token-mean", "mini_batch_size": 4}),
}
STRATEGIES = ("replicate", "fsdp")
RUNS = [(strategy, name) for strategy in STRATEGIES for name in CASES]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    """One of them with a new head."""
    folder = tmp_path_factory.mktemp("models")
    heads = {"llama": "token", "gpt2": "none", "rows": "sequence"}
    return {name: make_model(folder / name, family, heads[name]) for name, (family, _) in CASES.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def alone(models, folder: Path) -> dict[str, dict[str, Any]]:
    return {
        name: train_and_go_on(0, 1, "none", models[name], folder / f"alone-{name}", changes)
        for name, (_, changes) in CASES.items()
    }


@pytest.fixture(scope="module")
def two(models, folder: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    cases = [
        (train_and_go_on, strategy, models[name], folder / f"{strategy}-{name}", CASES[name][1])
        for strategy, name in RUNS
    ]
    by_rank = run_on_ranks(as_ranks, 2, folder / "two", cases)
    return dict(zip(RUNS, map(list, zip(*by_rank, strict=True)), strict=True))


@pytest.mark.parametrize(("strategy", "name"), RUNS)
def test_two_ranks_learn_what_one_learns(two, alone, strategy: str, name: str) -> None:
    found, expected = two[strategy, name], alone[name]
    merged = merge_all(each["metrics"] for each in found).numbers()
    assert merged == pytest.approx(expected["metrics"].numbers(), rel=1e-5, abs=1e-5)
    for each in found:
        for key, weight in expected["weights"].items():
            assert (each["weights"][key] - weight).abs().max() <= 1e-5, key
        torch.testing.assert_close(each["values"], expected["values"][each["rows"]], rtol=1e-4, atol=1e-5)
    assert sorted(row for each in found for row in each["rows"]) == expected["rows"]


@pytest.mark.parametrize(("strategy", "name"), RUNS)
def test_two_ranks_agree_and_go_on_to_the_bit(two, strategy: str, name: str) -> None:
    first, second = two[strategy, name]
    for key, weight in first["weights"].items():
        assert torch.equal(weight, second["weights"][key]), key
        assert torch.equal(weight, first["resumed"][key]), key


def test_one_goes_on_to_the_bit(alone) -> None:
    for found in alone.values():
        assert all(torch.equal(weight, found["resumed"][key]) for key, weight in found["weights"].items())


@pytest.mark.parametrize(("strategy", "name"), RUNS)
def test_what_ranks_export_is_what_they_hold(two, folder: Path, strategy: str, name: str) -> None:
    exported = weights(start(str(folder / f"{strategy}-{name}" / "saved")))
    held = two[strategy, name][0]["weights"]
    assert all(torch.equal(weight, exported[key]) for key, weight in held.items())


def test_another_number_of_ranks_takes_the_state_up(two, alone, models, folder: Path, tmp_path: Path) -> None:
    for strategy in STRATEGIES:
        saved = folder / f"{strategy}-llama" / "state"
        worker = start(models["llama"])
        worker.load_state(read_state(saved))
        from_two = weights(worker)
        for other in STRATEGIES:
            by_rank = run_on_ranks(go_on, 2, tmp_path / f"{strategy}-{other}", other, models["llama"], saved)
            for found in by_rank:
                assert all(torch.equal(weight, found[key]) for key, weight in from_two.items())
