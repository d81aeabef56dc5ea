"""The families of models, each with a real engine of vLLM: it generates from what the trainer has learnt."""

import pytest
import torch

pytest.importorskip("vllm")

from families import FAMILIES, write_family
from policy_cases import PROMPTS, learn, logprob_gap, sample, vllm_worker
from rollout_engines import gap

from dagrl.engines.rollout.hf import HFRollout
from dagrl.graph.roles import Sampling

FAST = ("gemma2",)
NAMES = [name if name in FAST else pytest.param(name, marks=pytest.mark.long) for name in FAMILIES]


@pytest.fixture(params=NAMES)
def actor(request, tmp_path):
    actor = vllm_worker(write_family(request.param, tmp_path / "model"), "fp32")
    yield actor
    actor._rollout.close()


def test_the_engine_has_the_trained_weights_before_and_after_an_update(actor) -> None:
    assert logprob_gap(actor, seed=0) < 1e-3
    learn(actor, sample(actor, seed=1)[1])
    assert logprob_gap(actor, seed=2) > 0.05
    actor.sync_rollout()
    assert logprob_gap(actor, seed=3) < 1e-3
    prompts = actor.apply_chat_template(PROMPTS)
    drawn = hf(actor).generate(prompts, torch.arange(len(prompts)), Sampling(max_new_tokens=12))
    assert gap(actor.model, prompts, drawn) < 1e-3


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_in_bf16_the_gap_is_that_of_rounding(tmp_path, name: str) -> None:
    actor = vllm_worker(write_family(name, tmp_path / "model"), "bf16")
    assert logprob_gap(actor, seed=0) < 0.05
    learn(actor, sample(actor, seed=1)[1])
    actor.sync_rollout()
    assert logprob_gap(actor, seed=2) < 0.05
    actor._rollout.close()


def hf(actor) -> HFRollout:
    return HFRollout(actor.model, stop_token_ids=frozenset({2}), pad_token_id=actor.pad_token_id, context_length=512)
