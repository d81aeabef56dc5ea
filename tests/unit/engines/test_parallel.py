"""Numbers and gradients over ranks, by real processes; a rank that waits in vain fails."""

import math
import time
from pathlib import Path

import pytest
import torch
from collective_cases import SHAPES, parameters, talk, wait_for_nobody
from ranks import DEADLINE_SECONDS, run_on_ranks
from torch.multiprocessing import ProcessRaisedException

from dagrl.engines.gradients import clip_gradients, global_norm
from dagrl.engines.parallel import SINGLE, DataParallel, start_process_group


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return run_on_ranks(talk, 3, tmp_path_factory.mktemp("three"))


def test_numbers_are_the_same_on_every_rank(three) -> None:
    for found in three:
        assert found["sum"] == [3.0, 1.5, pytest.approx(3 * math.pi * 1e9, rel=1e-15)]
        assert found["max"] == [2, 0]
        assert [ids.tolist() for ids in found["gather"]] == [[], [1 << 60], [1 << 60, (1 << 60) + 1]]


def test_gradients_are_sums_in_buckets_of_any_size(three) -> None:
    for found in three:
        for grads in found["sums"].values():
            totals = [None if grad is None else float(grad.unique()) for grad in grads]
            assert totals == [6.0, 20.0, 600.0, None, 60000.0]
            assert [tuple(grad.shape) for grad in grads if grad is not None] == [SHAPES[n] for n in (0, 1, 2, 4)]


def test_one_rank_says_nothing() -> None:
    start_process_group(0, 1, "nowhere", 0, 1.0)
    assert not torch.distributed.is_initialized()
    ids = torch.arange(3)
    assert SINGLE.gather(ids)[0] is ids
    assert SINGLE.sum([1, 2.5]) == [1.0, 2.5]
    assert SINGLE.max(4) == 4
    assert not SINGLE.sharded
    assert not DataParallel(0, 1, "fsdp").sharded


def test_norm_and_clipping_are_torchs_own() -> None:
    ours, theirs = parameters(1)[:4], parameters(1)[:4]
    norm = global_norm(ours, SINGLE)
    clip_gradients(ours, 2.0, norm)
    assert float(norm) == float(torch.nn.utils.clip_grad_norm_(theirs, 2.0))
    assert all(a.grad is b.grad is None or torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))


def test_a_rank_that_waits_for_nobody_raises(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(ProcessRaisedException, match="RuntimeError"):
        run_on_ranks(wait_for_nobody, 2, tmp_path)
    assert time.monotonic() - started < DEADLINE_SECONDS
