"""Losses that prepare over a mini-batch or project logits are the same on 1 and 2 processes, however these hold it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hook_rows import HookCase, HookOutcome, teach, train_all_hooked, train_hooked
from ranks import run_on_ranks
from recorded_rows import VOCABULARY

from dagrl.data.metrics import merge_all

CASES = {
    "clip_cov": HookCase("clip_cov"),
    "clip_cov, micro-batches": HookCase("clip_cov", micro_batch_size=2),
    "clip_cov, mini-batches of which a rank has no row": HookCase("clip_cov", mini_batch_size=2, micro_batch_size=1),
    "kl_cov, epochs": HookCase("kl_cov", epochs=2, micro_batch_size=3),
    "rows that pad": HookCase("drawn", padded=True, poison=float("nan")),
    "rows that pad, mini-batches": HookCase("drawn", mini_batch_size=3, epochs=2),
    "K read ahead": HookCase("spread", micro_batch_size=2),
    "K read ahead, a rank without rows": HookCase("spread", only_rank=0),
    "K read ahead, the first rank without rows": HookCase("spread", only_rank=1, micro_batch_size=3),
    "sampled": HookCase("reverse_kl"),
    "top-k": HookCase("topk forward", micro_batch_size=2),
    "top-k renormalized": HookCase("topk renormalized", micro_batch_size=1),
    "top-k without its tail": HookCase("topk dropped", micro_batch_size=3),
    "top-k in chunks": HookCase("topk reverse", max_logits=2 * VOCABULARY),
    "all": HookCase("all", micro_batch_size=3, mode="seq-mean-token-mean"),
    "all in chunks": HookCase("all", model="untied", max_logits=2 * VOCABULARY),
}
RUNS = [(strategy, name) for strategy in ("replicate", "fsdp") for name in CASES]


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> dict[tuple[str, str], list[HookOutcome]]:
    """What each of two ranks has afterwards."""
    cases = [(strategy, CASES[name]) for strategy, name in RUNS]
    by_rank: Any = run_on_ranks(train_all_hooked, 2, tmp_path_factory.mktemp("two"), cases)
    return dict(zip(RUNS, map(list, zip(*by_rank, strict=True)), strict=True))


@pytest.mark.parametrize(("strategy", "name"), RUNS)
def test_an_update_is_that_of_one_process(two, strategy: str, name: str) -> None:
    found, expected = two[strategy, name], train_hooked(CASES[name])
    metrics = merge_all(outcome.metrics for outcome in found).numbers()
    for key, value in expected.metrics.numbers().items():
        assert metrics[key] == pytest.approx(value, rel=1e-6, abs=1e-6), key
    assert metrics.keys() == expected.metrics.keys()
    for outcome in found:
        for key, grad in expected.gradient.items():
            assert (outcome.gradient[key] - grad).abs().max() <= 1e-6 * max(1.0, float(grad.abs().max())), key
        assert outcome.weights.keys() == expected.weights.keys()


def test_all_ranks_end_with_the_same_bits(two) -> None:
    for run, (first, second) in two.items():
        assert all(torch.equal(first.weights[key], weight) for key, weight in second.weights.items()), run


def test_a_pass_is_spared_only_where_all_ranks_have_theirs(two) -> None:
    """Shared-out weights make every pass a collective, so a rank without rows has none to spare."""
    assert [outcome.passes for outcome in two["replicate", "clip_cov"]] == [(0, 1), (0, 1)]
    assert [outcome.passes for outcome in two["fsdp", "clip_cov"]] == [(0, 1), (0, 1)]
    first, second = two["fsdp", "clip_cov, micro-batches"]
    assert first.passes == second.passes
    assert first.passes[0] > 0


@pytest.mark.parametrize("strategy", ["replicate", "fsdp"])
def test_a_teachers_top_k_is_that_of_one_process(strategy: str, tmp_path: Path) -> None:
    _, expected = teach(0, 1, "none")
    for own, found in run_on_ranks(teach, 2, tmp_path, strategy):
        assert torch.equal(found.topk_ids, expected.topk_ids[own])
        assert torch.allclose(found.topk_logprobs, expected.topk_logprobs[own], rtol=0, atol=2e-6)
        assert torch.allclose(found.logprobs, expected.logprobs[own], rtol=0, atol=2e-6)
