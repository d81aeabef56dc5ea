"""Engines of vLLM in the processes of one group: one in each, or one over two of them."""

import pytest
import torch
from ranks import run_on_ranks
from vllm_rank_cases import draw_and_learn, fail_and_go_on
from worker_cases import make_model

pytest.importorskip("vllm")

pytestmark = pytest.mark.long
#: Two processes import vLLM at once.
SECONDS = 240.0
CASES = [("replicate", "bf16", 1), ("fsdp", "fp32", 1), ("fsdp", "fp32", 2), ("replicate", "bf16", 2)]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}-tp{case[2]}")
def found(request, tmp_path_factory):
    strategy, precision, size = request.param
    folder = tmp_path_factory.mktemp("ranks")
    model = make_model(folder / "model", tied=precision == "bf16")
    ranks = run_on_ranks(draw_and_learn, 2, folder, strategy, model, precision, size, deadline_seconds=SECONDS)
    return ranks, precision, size


def test_each_sync_brings_the_new_weights(found):
    ranks, precision, _ = found
    bound = 1e-3 if precision == "fp32" else 0.05
    for rank in ranks:
        for new, old in rank["gaps"]:
            assert new < bound
            assert old > 2 * bound


def test_each_process_gets_its_own_rows(found):
    ranks, _, _ = found
    assert [len(rank["rows"]) for rank in ranks] == [5, 2]
    assert [len(rank["again"]) for rank in ranks] == [5, 2]
    assert [len(rank["greedy"]) for rank in ranks] == [5, 0]


def test_a_prompt_of_one_process_is_refused_in_all_that_share_the_engine(found):
    ranks, _, size = found
    assert "leaves no room" in ranks[0]["overlong"]
    assert ("leaves no room" in ranks[1]["overlong"]) == (size == 2)


def test_processes_that_share_an_engine_hold_a_share_of_its_weights(found):
    ranks, precision, size = found
    for rank in ranks:
        whole = rank["weights"] * (2 if precision == "bf16" else 4)
        assert whole <= rank["bytes"] * size < 1.3 * whole  # embeddings are filled up, and norms are whole in each


def test_a_shared_engine_draws_what_an_engine_of_one_process_draws(tmp_path):
    model = make_model(tmp_path / "model", tied=False)
    alone, shared = (
        run_on_ranks(draw_and_learn, 2, tmp_path / str(size), "fsdp", model, "fp32", size, deadline_seconds=SECONDS)
        for size in (1, 2)
    )
    for one, other in zip(alone, shared, strict=True):
        assert [tokens for tokens, _ in one["rows"]] == [tokens for tokens, _ in other["rows"]]
        for (_, wanted), (_, got) in zip(one["rows"], other["rows"], strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("strategy", "size"), [("fsdp", 1), ("fsdp", 2), ("replicate", 1)])
def test_engines_that_die_of_a_sync_are_built_anew_and_the_ranks_stay_together(tmp_path, strategy, size):
    model = make_model(tmp_path / "model", tied=False)
    for rank in run_on_ranks(fail_and_go_on, 2, tmp_path, strategy, model, size, deadline_seconds=SECONDS):
        assert "did not come" in rank["error"]
        assert rank["gap"] < 1e-3
        if strategy == "fsdp":  # a rank that has the weights whole builds a new engine by itself
            assert "is dead" in rank["dead"]
