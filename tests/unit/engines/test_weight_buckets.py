"""Weights packed into buckets and unpacked again: the same tensors, under all their names, whatever their dtypes."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from dagrl.engines.weight_buckets import ArrivedWeights, Bucket, packed
from dagrl.engines.weights import TrainedWeights, layout_of


class Given:
    """Some tensors, as weights."""

    def __init__(self, tensors: list[tuple[str, Tensor]]) -> None:
        self._tensors = tensors
        self.layout = {name: tuple(tensor.shape) for name, tensor in tensors}

    def __iter__(self):
        return iter(self._tensors)


def travelled(weights, bucket_bytes: int, *, readonly: bool = False) -> dict[str, Tensor]:
    buckets = list(packed(weights, bucket_bytes))
    for bucket in buckets if readonly else ():
        bucket.data.flags.writeable = False
    return dict(ArrivedWeights(weights.layout, buckets))


MIXED = [
    ("byte", torch.arange(3, dtype=torch.uint8)),
    ("half", torch.randn(5, 2).to(torch.bfloat16)),
    ("flag", torch.tensor([True])),
    ("whole", torch.randn(3, 4)),
    ("none", torch.empty(0, 4)),
    ("scalar", torch.tensor(7, dtype=torch.int64)),
    ("strided", torch.randn(4, 6).T),
]


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("bucket_bytes", [1, 40, 10_000])
def test_tensors_arrive_as_they_were(bucket_bytes: int, readonly: bool) -> None:
    arrived = travelled(Given(MIXED), bucket_bytes, readonly=readonly)
    assert list(arrived) == [name for name, _ in MIXED]
    for name, tensor in MIXED:
        assert arrived[name].dtype == tensor.dtype
        assert torch.equal(arrived[name], tensor), name


def test_a_bucket_holds_at_most_its_bytes_or_one_tensor() -> None:
    sizes = [len(bucket.data) for bucket in packed(Given([(str(n), torch.zeros(n)) for n in (1, 2, 3, 50, 1)]), 24)]
    assert sizes == [24, 200, 4]


def test_a_bucket_is_packed_only_when_it_is_asked_for() -> None:
    asked: list[str] = []

    class Watched(Given):
        def __iter__(self):
            for name, tensor in self._tensors:
                asked.append(name)
                yield name, tensor

    buckets = packed(Watched([(str(n), torch.zeros(4)) for n in range(6)]), 32)
    assert isinstance(next(buckets), Bucket)
    assert asked == ["0", "1", "2"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tied_head_travels_once_and_arrives_twice(dtype: torch.dtype) -> None:
    config = LlamaConfig(
        vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    weights = TrainedWeights(model, dtype=dtype)
    names = [piece.names for bucket in packed(weights) for piece in bucket.pieces]
    assert any({"lm_head.weight", "model.embed_tokens.weight"} == set(each) for each in names)
    arrived = travelled(weights, 300)
    assert arrived.keys() == layout_of(model).keys()
    assert torch.equal(arrived["lm_head.weight"], model.lm_head.weight.to(dtype))
