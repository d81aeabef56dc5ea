"""The worker of a group that follows another: one copy of the weights at most, and none until the first sync."""

import shutil
from pathlib import Path

import pytest
import torch
from families import write_family
from policy_cases import PROMPTS, assert_survives_a_failed_load, learn, sample

from dagrl import ResourcePool, WorkerGroup, adamw, policy
from dagrl.engines.model_tokens import stop_token_ids
from dagrl.engines.models import hollow_model, load_model
from dagrl.engines.weights import layout_of, tied_names
from dagrl.errors import DagrlError, EngineError
from dagrl.graph.roles import Sampling
from dagrl.workers.policy import PolicyWorker
from dagrl.zoo import model_folder

POOL = ResourcePool("main", [0])


def leader(precision="bf16", model: str = "zoo:tiny", **options) -> PolicyWorker:
    spec = policy(model, optimizer=adamw(lr=1e-2, max_grad_norm=None), precision=precision, **options)
    return PolicyWorker(WorkerGroup("actor", spec, pool=POOL), total_steps=10, rollout=True)


def follower_of(actor: PolicyWorker, *, rollout: bool = True, **options) -> PolicyWorker:
    spec = actor.group.model
    own = policy(spec.model, precision=spec.precision, from_scratch=spec.from_scratch, rollout=spec.rollout, **options)
    group = WorkerGroup("sampler", own, pool=POOL, follows=actor.group)
    return PolicyWorker(group, total_steps=10, rollout=rollout)


def num_weights() -> int:
    model = load_model(model_folder("tiny"), dtype=torch.float32, attn_implementation="eager")
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("precision", "size"), [("fp32", 4), ("bf16", 2)])
def test_it_holds_one_copy_in_the_dtype_it_generates_in(precision, size: int) -> None:
    actor = leader(precision)
    sampler = follower_of(actor)
    assert sampler.weight_bytes == size * num_weights()
    assert actor.weight_bytes == (4 if precision == "fp32" else 6) * num_weights()
    assert not any(parameter.requires_grad for parameter in sampler.model.parameters())
    frequencies = [value for name, value in sampler.model.named_buffers() if "inv_freq" in name]
    assert frequencies
    assert all(value.dtype == torch.float32 for value in frequencies), "rotary frequencies lose long positions in bf16"


@pytest.mark.parametrize(("family", "on_cuda"), [("llama", "sdpa"), ("gemma2", "eager")])
def test_attention_is_fused_on_an_accelerator_where_it_is_exact(tmp_path: Path, family, on_cuda, monkeypatch) -> None:
    """torch's fused attention, flash where it fits, leaves out Gemma 2's cap on scores."""
    model = str(model_folder("tiny")) if family == "llama" else write_family(family, tmp_path / "model")
    trained = WorkerGroup("actor", policy(model, optimizer=adamw(lr=1e-2)), pool=POOL)
    group = WorkerGroup("sampler", policy(model, rollout="vllm"), pool=POOL, follows=trained)

    def attention() -> str:
        return PolicyWorker(group, total_steps=1, rollout=False).model.config._attn_implementation

    assert attention() == "eager"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert attention() == on_cuda


@pytest.mark.parametrize("from_scratch", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_draws_what_its_leader_draws_after_each_sync_and_nothing_before(precision, *, from_scratch: bool) -> None:
    actor = leader(precision, from_scratch=from_scratch)
    sampler = follower_of(actor)
    prompts = sampler.apply_chat_template(PROMPTS)
    assert prompts == actor.apply_chat_template(PROMPTS)
    with pytest.raises(EngineError, match="asked to generate before it was given weights"):
        sampler.generate(prompts, torch.arange(len(prompts)), Sampling(max_new_tokens=2))
    for round_number in (1, 2):
        learn(actor, sample(actor, round_number)[1])
        actor.sync_rollout()
        sampler.load_rollout(actor.trained_weights(precision))
        theirs, mine = sample(actor, 10 + round_number)[0], sample(sampler, 10 + round_number)[0]
        assert torch.equal(theirs.responses, mine.responses)
        torch.testing.assert_close(theirs.logprobs, mine.logprobs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_after_a_failed_load_it_is_dead_until_the_next(precision) -> None:
    actor = leader(precision)
    assert_survives_a_failed_load(actor, follower_of(actor))


def test_what_takes_trained_weights_is_refused(tmp_path: Path) -> None:
    actor = leader("fp32")
    sampler = follower_of(actor)
    _, tokens = sample(actor, 1)
    said = "`sampler` has no weights of its own: it generates from those of `actor`"
    for use in (
        lambda: sampler.compute_logprobs(tokens),
        lambda: sampler.compute_topk(tokens, 2),
        lambda: sampler.compute_sum_pi_squared(tokens),
        lambda: sampler.sync_rollout(),
        lambda: sampler.save(tmp_path / "model"),
    ):
        with pytest.raises(DagrlError, match=said):
            use()
    assert not (tmp_path / "model").exists()
    assert sampler.state() is None
    with pytest.raises(DagrlError, match="`sampler` has no optimizer"):
        learn(sampler, tokens)


def test_without_an_engine_of_our_own_no_weights_are_read() -> None:
    """What an engine needs of the model is there all the same, and what the spec says in place of its files."""
    actor = leader("fp32")
    sampler = follower_of(actor, rollout=False, stop_tokens=["7"], chat_template="{{ messages[0]['content'] }}")
    assert sampler.weight_bytes == 0
    assert layout_of(sampler.model) == layout_of(actor.model)
    assert tied_names(sampler.model) == tied_names(actor.model) == {"lm_head.weight"}
    assert sampler.pad_token_id == actor.pad_token_id
    assert stop_token_ids(sampler.model, sampler.tokenizer) == set(sampler.tokenizer.convert_tokens_to_ids(["7"]))
    (ids,) = sampler.apply_chat_template([[{"role": "user", "content": "12"}]])
    assert sampler.decode([ids]) == ["12"]


def test_a_hollow_model_says_what_the_whole_one_says(tmp_path: Path) -> None:
    folder = shutil.copytree(model_folder("tiny"), tmp_path / "model")
    whole = load_model(str(folder), dtype=torch.float32, attn_implementation="eager")
    for file in folder.glob("*.safetensors"):
        file.unlink()
    hollow = hollow_model(str(folder), attn_implementation="eager")
    assert all(tensor.is_meta for tensor in hollow.state_dict().values())
    assert not hollow.training
    assert layout_of(hollow) == layout_of(whole)
    assert hollow.generation_config.to_dict() == whole.generation_config.to_dict()
    assert hollow.config.to_dict() == whole.config.to_dict()
    assert hollow.config.name_or_path == whole.config.name_or_path
