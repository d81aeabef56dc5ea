"""Policy workers of several processes: state, resume, rollout weights and saved models, in either strategy."""

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_on_ranks
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from worker_cases import (
    PADDED_LR,
    as_ranks,
    fail_to_load,
    go_on,
    learn_padded,
    make_model,
    read_state,
    start,
    stop_and_go_on,
    sync_and_save,
    weights,
)

from dagrl.data.metrics import merge_all
from dagrl.engines.parallel import SINGLE, DataParallel
from dagrl.errors import CheckpointError

KINDS = ("tied", "untied")
#: How ranks hold the model, the rows of the batch, how dispatch spreads them, and how losses become one.
PADDED = [
    ("replicate", 5, "blocks", "seq-mean-token-mean"),
    ("replicate", 5, "blocks of mini-batches", "token-mean"),
    ("replicate", 1, "blocks", "seq-mean-token-sum-norm"),
    ("replicate", 7, "balanced", "seq-mean-token-sum"),
    ("fsdp", 7, "groups", "seq-mean-token-mean"),
    ("fsdp", 1, "blocks of mini-batches", "token-sum"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: make_model(folder / kind, tied=kind == "tied") for kind in KINDS}


@pytest.fixture(scope="module")
def states(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def two(models, states) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """What two ranks found."""
    cases = {
        ("go on", "replicate"): (stop_and_go_on, "replicate", models["tied"], states / "replicate"),
        **{("go on", "fsdp", kind): (stop_and_go_on, "fsdp", models[kind], states / f"fsdp-{kind}") for kind in KINDS},
        **{("sync", "fsdp", kind): (sync_and_save, "fsdp", models[kind], states / f"saved-{kind}") for kind in KINDS},
        ("sync", "replicate"): (sync_and_save, "replicate", models["tied"], states / "saved"),
    }
    by_rank = run_on_ranks(as_ranks, 2, states / "two", list(cases.values()))
    return dict(zip(cases, map(list, zip(*by_rank, strict=True)), strict=True))


@pytest.fixture(scope="module")
def four(two, models, states) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """What four ranks found in the states that two had written."""
    cases = {
        ("replicate", "tied"): (go_on, "replicate", models["tied"], states / "fsdp-tied"),
        **{("fsdp", kind): (go_on, "fsdp", models[kind], states / f"fsdp-{kind}") for kind in KINDS},
        ("fsdp", "whole"): (go_on, "fsdp", models["tied"], states / "replicate"),
    }
    by_rank = run_on_ranks(as_ranks, 4, states / "four", list(cases.values()))
    return dict(zip(cases, map(list, zip(*by_rank, strict=True)), strict=True))


@pytest.fixture(scope="module")
def failed(models, tmp_path_factory) -> dict[str, list[dict[str, Any]]]:
    """What two ranks found whose rollout weights had not come."""
    cases = {strategy: (fail_to_load, strategy, models["tied"]) for strategy in ("replicate", "fsdp")}
    by_rank = run_on_ranks(as_ranks, 2, tmp_path_factory.mktemp("failed"), list(cases.values()))
    return dict(zip(cases, map(list, zip(*by_rank, strict=True)), strict=True))


@pytest.fixture(scope="module")
def padded(models, tmp_path_factory) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """What two ranks learned of shares that dispatch had padded."""
    cases = [(learn_padded, strategy, models["tied"], *more) for strategy, *more in PADDED]
    by_rank = run_on_ranks(as_ranks, 2, tmp_path_factory.mktemp("padded"), cases)
    return dict(zip(PADDED, map(list, zip(*by_rank, strict=True)), strict=True))


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    assert [name for name, tensor in left.items() if not torch.equal(tensor, right[name])] == []


def read_whole(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of all parts, put together by hand; random numbers left out."""
    pieces: dict[str, list[tuple[int, torch.Tensor]]] = {}
    for part in read_state(folder):
        for name in part.names:
            offset = part.info["shares"].get(name, {"offset": 0})["offset"]
            pieces.setdefault(name, []).append((offset, part.tensor(name)))
    found = {}
    for name, parts in pieces.items():
        ordered = [tensor for _, tensor in sorted(parts, key=lambda part: part[0])]
        if name.startswith("rng/"):
            continue
        found[name] = ordered[0] if ordered[0].ndim == 0 or len(ordered) == 1 else torch.cat(ordered)
    return found


def test_one_process_goes_on_to_the_bit(models, tmp_path: Path) -> None:
    found = stop_and_go_on(0, 1, "none", models["tied"], tmp_path)
    assert_equal(found["whole"], found["parts"])
    assert_equal(found["half"], found["loaded"])


@pytest.mark.parametrize("case", [("go on", "replicate"), *(("go on", "fsdp", kind) for kind in KINDS)])
def test_two_processes_go_on_to_the_bit(two, case: tuple[str, ...]) -> None:
    for found in two[case]:
        assert_equal(found["whole"], found["parts"])
        assert_equal(found["half"], found["loaded"])
    assert_equal(two[case][0]["whole"], two[case][1]["whole"])


@pytest.mark.parametrize("case", [("go on", "replicate"), ("go on", "fsdp", "tied"), ("go on", "fsdp", "untied")])
def test_weights_that_were_offloaded_learn_on_as_if_they_had_stayed(two, case) -> None:
    for found in two[case]:
        assert_equal(found["whole"], found["moved"])


def test_a_replica_adds_its_random_numbers_alone(two) -> None:
    first, second = two["go on", "replicate"]
    assert second["names"] == ["rng/cpu"]
    assert {"rng/cpu", "model/model.norm.weight", "adamw/model.norm.weight/exp_avg_sq"} <= set(first["names"])


def test_shares_are_shares(two, states: Path) -> None:
    first, second = (part.tensor("model/model.embed_tokens.weight") for part in read_state(states / "fsdp-tied"))
    whole = two["go on", "fsdp", "tied"][0]["half"]["model.embed_tokens.weight"]
    assert len(first) < len(whole)
    assert torch.equal(torch.cat([first, second]), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_two_ranks_is_taken_up_by_one(two, models, states: Path, kind: str) -> None:
    actor = start(models[kind], SINGLE)
    actor.load_state(read_state(states / f"fsdp-{kind}"))
    assert_equal(weights(actor), two["go on", "fsdp", kind][0]["half"])
    state = actor.state()
    assert state is not None
    assert_equal({n: t for n, t in state.tensors.items() if n != "rng/cpu"}, read_whole(states / f"fsdp-{kind}"))


@pytest.mark.parametrize(
    ("case", "source"),
    [
        (("fsdp", "tied"), "fsdp-tied"),
        (("fsdp", "untied"), "fsdp-untied"),
        (("replicate", "tied"), "fsdp-tied"),
        (("fsdp", "whole"), "replicate"),
    ],
)
def test_a_state_of_two_ranks_is_taken_up_by_four(four, states: Path, case: tuple[str, ...], source: str) -> None:
    before = read_whole(states / source)
    assert_equal(read_whole(states / f"{source}-{case[0]}-4"), before)
    for found in four[case]:
        assert_equal({f"model/{name}": weight for name, weight in found["weights"].items()} | before, before)


@pytest.mark.parametrize("case", [("sync", "replicate"), *(("sync", "fsdp", kind) for kind in KINDS)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_rollout_has_the_trained_weights(two, case: tuple[str, ...], precision: str) -> None:
    for found in two[case]:
        trained, rollout = found[precision]["trained"], found[precision]["rollout"]
        assert_equal({name: tensor.to(rollout[name].dtype) for name, tensor in trained.items()}, rollout)
        assert any(not torch.equal(found[precision]["before"][name], tensor) for name, tensor in rollout.items())
    assert torch.equal(two[case][0][precision]["texts"], two[case][1][precision]["texts"])


@pytest.mark.parametrize(("strategy", "num_errors"), [("replicate", 1), ("fsdp", 2)])
def test_after_a_failed_load_shares_come_together_at_a_sync_alone(failed, strategy: str, num_errors: int) -> None:
    """A rank that has the weights whole builds its engine anew when it next draws."""
    for found in failed[strategy]:
        assert len(found["said"]) == num_errors
        assert "did not come" in found["said"][0]
        assert all("is dead: loading weights failed" in said for said in found["said"][1:])
        assert_equal({name: tensor.bfloat16() for name, tensor in found["trained"].items()}, found["rollout"])
    assert torch.equal(*(found["texts"] for found in failed[strategy]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_shared_out_model_is_saved_whole(two, states: Path, kind: str, precision: str) -> None:
    trained = two["sync", "fsdp", kind][0][precision]["trained"]
    folder = states / f"saved-{kind}" / precision
    saved = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32 if precision == "fp32" else torch.bfloat16}
    assert ("lm_head.weight" in saved) == (kind == "untied")
    assert_equal({name: trained[name].to(tensor.dtype) for name, tensor in saved.items()}, saved)
    AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_frozen_model_scores_alike_however_it_is_held(two, models, kind: str, precision: str) -> None:
    ref = start(models[kind], SINGLE, precision=precision, trains=False)
    for found in two["sync", "fsdp", kind]:
        logprobs = ref.compute_logprobs(found[precision]["rows"]).logprobs
        assert torch.equal(logprobs, found[precision]["ref"])


def test_a_state_of_another_model_is_refused(two, models, states: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lacks .* rows of `model/lm_head.weight`"):
        start(models["untied"], SINGLE).load_state(read_state(states / "fsdp-tied"))
    with pytest.raises(CheckpointError, match=r"lacks \d+ of \d+ rows of `model/model.embed_tokens.weight`"):
        start(models["tied"], SINGLE).load_state(read_state(states / "fsdp-tied")[1:])


def test_several_ranks_need_a_strategy() -> None:
    with pytest.raises(ValueError, match="2 ranks cannot train by strategy `none`"):
        DataParallel(0, 2)
    with pytest.raises(ValueError, match="rank 2 is not one of 2"):
        DataParallel(2, 2, "fsdp")


@pytest.mark.parametrize("case", PADDED)
def test_rows_that_dispatch_repeats_are_not_learned_from(padded, models, case: tuple[Any, ...]) -> None:
    """Two ranks with padded shares become what one process becomes that has the rows as they are.

    A step of Adam moves a weight by about the learning rate however small its gradient: sums of another order show as
    a hundredth of that.
    """
    alone = learn_padded(0, 1, "none", models["tied"], *case[1:])
    found = padded[case]
    assert alone["padding"] == 0
    assert sum(each["padding"] for each in found) > 0
    assert all(each["silent"] for each in found)
    for each in found:
        assert (
            max(float((alone["weights"][name] - got).abs().max()) for name, got in each["weights"].items())
            < 0.05 * PADDED_LR
        )
    for step, wanted in enumerate(alone["metrics"]):
        numbers = merge_all([each["metrics"][step] for each in found]).numbers()
        assert numbers == pytest.approx(wanted.numbers(), rel=1e-3, abs=1e-5)
