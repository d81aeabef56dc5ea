"""Trained weights on their way to an engine: names, buckets, shares of ranks, and what is refused."""

from itertools import pairwise

import pytest
import torch
from ranks import run_on_ranks
from rollout_engines import CONTEXT, PAD, STOPS, build_llama

from dagrl.engines.bucket_memory import BucketMemory
from dagrl.engines.parallel import DataParallel
from dagrl.engines.rollout.hf import HFRollout
from dagrl.engines.sharding import shard
from dagrl.engines.weights import TrainedWeights, check_layout, layout_of
from dagrl.errors import EngineError


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bucket_bytes", [1, 30_000, 1 << 30])
def test_every_weight_comes_once_under_each_of_its_names(tied, bucket_bytes):
    model = build_llama(tied=tied)
    weights = TrainedWeights(model, dtype=torch.bfloat16, bucket_bytes=bucket_bytes)
    found = list(weights)
    wanted = model.state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in found} == dict(weights.layout) == dict(layout_of(model))
    assert sorted(name for name, _ in found) == sorted(wanted)
    assert "lm_head.weight" in wanted
    for name, tensor in found:
        assert torch.equal(tensor, wanted[name].bfloat16())
    head = dict(found)["lm_head.weight"]
    assert torch.equal(head, dict(found)["model.embed_tokens.weight"]) == tied


def test_in_the_trained_dtype_nothing_is_copied():
    model = build_llama(tied=False)
    wanted = model.state_dict(keep_vars=True)
    for name, tensor in TrainedWeights(model, dtype=torch.float32):
        assert tensor.data_ptr() == wanted[name].data_ptr()
        assert not tensor.requires_grad


def test_buckets_hold_as_many_bytes_as_they_may():
    weights = TrainedWeights(build_llama(tied=True), dtype=torch.bfloat16, bucket_bytes=20_000)
    sizes = [[value.numel() * 2 for value in bucket] for bucket in weights._buckets()]
    assert len(sizes) > 3
    assert all(len(bucket) == 1 or sum(bucket) <= 20_000 for bucket in sizes)
    assert all(sum(left) + right[0] > 20_000 for left, right in pairwise(sizes))


def gather_shares(rank, size, dtype):
    model = build_llama(tied=True)
    wanted = {name: value.clone() for name, value in model.state_dict().items()}
    parallel = DataParallel(rank, size, "fsdp")
    shard(model, list(model.model.layers), parallel)
    found = {}
    for bucket_bytes in (1, 30_000, 1 << 30):
        weights = TrainedWeights(model, dtype=dtype, parallel=parallel, bucket_bytes=bucket_bytes)
        assert dict(weights.layout) == {name: tuple(value.shape) for name, value in wanted.items()}
        found[bucket_bytes] = all(torch.equal(tensor, wanted[name].to(dtype)) for name, tensor in weights)
    return found


@pytest.mark.parametrize(("size", "dtype"), [(2, torch.float32), (3, torch.bfloat16)])
def test_shares_of_ranks_come_together(size, dtype, tmp_path):
    for found in run_on_ranks(gather_shares, size, tmp_path, dtype):
        assert found == dict.fromkeys((1, 30_000, 1 << 30), True)


class Noting(BucketMemory):
    """Knows where the buckets lay."""

    def __init__(self):
        super().__init__()
        self.places = []

    def take(self, numel, dtype, device):
        taken = super().take(numel, dtype, device)
        self.places.append(taken.data_ptr())
        return taken


def sync_twice(rank, size):
    """Where the buckets of two syncs lay, and the bytes that are kept."""
    model = build_llama(tied=True)
    parallel = DataParallel(rank, size, "fsdp")
    shard(model, list(model.model.layers), parallel)
    memory = Noting()
    rollout = HFRollout(build_llama(tied=True), stop_token_ids=STOPS, pad_token_id=PAD, context_length=CONTEXT)
    for version in (1, 2):
        weights = TrainedWeights(model, dtype=torch.float32, parallel=parallel, bucket_bytes=30_000, memory=memory)
        rollout.load_weights(weights, version)
    return memory.places, memory.num_bytes


def test_a_reader_that_copies_needs_one_bucket_at_a_time(tmp_path):
    for places, num_bytes in run_on_ranks(sync_twice, 2, tmp_path):
        second_sync = places[len(places) // 2 :]
        assert len(second_sync) > 3
        assert len(set(second_sync)) == 1
        assert num_bytes <= 30_000


def test_a_layout_that_is_another_models_is_refused_with_names():
    wanted = {f"layer.{number}": (2, 3) for number in range(6)}
    check_layout(dict(wanted), wanted, "vllm")
    with pytest.raises(EngineError, match=r"missing: layer\.0, layer\.1, layer\.2 and 3 more"):
        check_layout({}, wanted, "vllm")
    given = {**wanted, "layer.0": (3, 2), "head": (1,)}
    faults = r"not of the model: head; of another shape: layer\.0: \(3, 2\) for \(2, 3\)"
    with pytest.raises(EngineError, match=faults):
        check_layout(given, wanted, "vllm")
