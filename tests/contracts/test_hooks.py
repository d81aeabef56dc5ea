"""The contract suite runs the functions beside a loss: sound ones pass, each fault of one is named."""

from typing import NamedTuple

import pytest
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import Metrics, loss
from dagrl.contracts import check_loss
from dagrl.nodes import clip_cov, kl_cov, topk_distill
from dagrl.ops.masks import masked_mean, where_masked

BT = Float32[Tensor, "B T"]
Mask = Bool[Tensor, "B T"]
Logits = Float32[Tensor, "N V"]
N = Float32[Tensor, " N"]
Result = tuple[BT, Metrics]


class Scaled(NamedTuple):
    scaled: BT


def whiten(advantages: BT, response_mask: Mask, old_logprobs: BT | None = None) -> Scaled:
    """A statistic over all rows; reads an optional column."""
    mean = masked_mean(advantages, response_mask)
    return Scaled(where_masked(advantages - mean, response_mask))


@loss(prepare=whiten)
def sound(new_logprobs: BT, scaled: BT, response_mask: Mask) -> Result:
    return -where_masked(new_logprobs, response_mask) * scaled, Metrics()


def margin(new_logits: Logits, responses: Int64[Tensor, " N"], temperatures: N) -> N:
    return new_logits.gather(1, responses[:, None])[:, 0] * temperatures - new_logits.amax(1)


@loss(project=margin)
def sound_margin(margin: BT, new_logprobs: BT, response_mask: Mask) -> Result:
    return where_masked(margin + new_logprobs, response_mask), Metrics()


@pytest.mark.parametrize(
    ("declared", "options"),
    [
        (sound, {}),
        (sound_margin, {}),
        (clip_cov, {"cov_low": -1.0, "clip_ratio": 0.3, "eps_high": 0.3}),
        (kl_cov, {"k_percent": 0.4}),
        (topk_distill, {"kind": "reverse"}),
        (topk_distill, {"kind": "reverse", "tail": "renormalize"}),
        (topk_distill, {"tail": "drop"}),
    ],
)
def test_sound(declared, options: dict) -> None:
    assert [str(one) for one in check_loss(declared, options)] == []


def reads_all_places(advantages: BT) -> Scaled:
    return Scaled(advantages - advantages.mean())


def draws(advantages: BT) -> Scaled:
    return Scaled(advantages * torch.rand(advantages.shape))


def returns_a_list(advantages: BT) -> Scaled:
    return [advantages]


def fails(advantages: BT) -> Scaled:
    raise RuntimeError("out of luck")


def needs_the_optional(advantages: BT, ref_logprobs: BT | None = None) -> Scaled:
    return Scaled(advantages + ref_logprobs)


def with_prepare(function):
    @loss(prepare=function)
    def prepared(new_logprobs: BT, scaled: BT, response_mask: Mask) -> Result:
        return -where_masked(new_logprobs, response_mask) * where_masked(scaled, response_mask), Metrics()

    return prepared


@pytest.mark.parametrize(
    ("function", "rule", "text"),
    [
        (reads_all_places, "masked places", "reads masked places, where nan stood"),
        (draws, "same call, same result", "gives another result when called again"),
        (returns_a_list, "runs", "prepare `returns_a_list` of loss `prepared` returned a list"),
        (fails, "runs", "out of luck"),
        (needs_the_optional, "optional reads", "(without the optional `ref_logprobs`)"),
    ],
)
def test_a_faulty_prepare_function(function, rule: str, text: str) -> None:
    found = {one.rule: one.what for one in check_loss(with_prepare(function))}
    assert rule in found
    assert text in found[rule]


def centres(new_logits: Logits) -> N:
    highest = new_logits.amax(1)
    return highest - highest.mean()


def detaches(new_logits: Logits) -> N:
    return new_logits.amax(1).detach()


def averages(new_logits: Logits) -> N:
    return new_logits.mean()


def breaks(new_logits: Logits, responses: Int64[Tensor, " N"]) -> N:
    return new_logits[:, int(responses.max()) + 1000]


def with_project(function):
    def value(new_logits: Logits, responses: Int64[Tensor, " N"]) -> N:
        return function(new_logits, responses) if function is breaks else function(new_logits)

    @loss(project=value)
    def projected(value: BT, response_mask: Mask) -> Result:
        return where_masked(value, response_mask), Metrics()

    return projected


@pytest.mark.parametrize(
    ("function", "rule", "text"),
    [
        (centres, "chunk", "its `project=` depends on which tokens share a chunk"),
        (centres, "micro-batch", "depends on which rows share its micro-batch"),
        (detaches, "gradient", "no gradient reaches `new_logits`"),
        (averages, "runs", "project `value` of loss `projected` returned float32[]"),
        (breaks, "runs", "raised IndexError"),
    ],
)
def test_a_faulty_project_function(function, rule: str, text: str) -> None:
    found = {one.rule: one.what for one in check_loss(with_project(function))}
    assert rule in found
    assert text in found[rule]
