"""The policy worker: rollout weights follow the trained ones, the reference stays, texts are tokenised once."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dagrl import LossColumns, ResourcePool, WorkerGroup, adamw, policy
from dagrl.errors import ConfigError, DagrlError, EngineError
from dagrl.graph.roles import Sampling, TokenBatch, UpdatePlan
from dagrl.nodes import ppo_clip
from dagrl.ops.masks import join_sequences, mask_from_lengths, pad_left
from dagrl.workers.policy import PolicyWorker
from dagrl.zoo import model_folder

POOL = ResourcePool("main", [0])
PROMPTS = [[{"role": "user", "content": f"{a} {a + 7}"}] for a in range(300, 332)]


def worker(
    model: str = "zoo:tiny", *, trains: bool = True, rollout: bool = True, precision="bf16", offload: bool = False
) -> PolicyWorker:
    optimizer = adamw(lr=1e-2, max_grad_norm=None) if trains else None
    spec = policy(model, optimizer=optimizer, precision=precision, offload=offload)
    return PolicyWorker(WorkerGroup("actor", spec, pool=POOL), total_steps=10, rollout=rollout)


def untied(folder: Path) -> str:
    """A copy of the packaged model whose head is a tensor of its own."""
    model = AutoModelForCausalLM.from_pretrained(model_folder("tiny"))
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone() * 1.01)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder("tiny")).save_pretrained(folder)
    return str(folder)


def sample(actor: PolicyWorker, seed: int = 0):
    prompts = actor.apply_chat_template(PROMPTS)
    seeds = torch.arange(len(prompts)) + 1000 * seed
    samples = actor.generate(prompts, seeds, Sampling(max_new_tokens=6))
    ids, mask, positions = join_sequences(*pad_left(prompts, actor.pad_token_id), samples.responses, samples.lengths)
    response_mask = mask_from_lengths(samples.lengths, samples.responses.shape[1])
    return samples, TokenBatch(ids, mask, positions, response_mask, torch.ones(len(prompts)))


def learn(actor: PolicyWorker, tokens: TokenBatch) -> None:
    generator = torch.Generator().manual_seed(0)
    advantages = torch.randn(tokens.response_mask.shape, generator=generator)
    columns = LossColumns({"advantages": advantages, "response_mask": tokens.response_mask})
    plan = UpdatePlan(
        loss=ppo_clip(), loss_agg_mode="token-mean", norm_length=None, mini_batch_size=0, micro_batch_size=0, epochs=1,
        aliases={"old_logprobs": "new_logprobs"}, step=1,
    )  # fmt: skip
    actor.update(tokens, columns, torch.arange(len(advantages)), plan)


def gap(actor: PolicyWorker, seed: int) -> float:
    samples, tokens = sample(actor, seed)
    trained = actor.compute_logprobs(tokens).logprobs
    return float((samples.logprobs - trained).abs()[tokens.response_mask].mean())


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("tied", [True, False])
def test_after_a_sync_the_rollout_has_the_new_weights_twice_in_a_row(tmp_path: Path, tied: bool, precision) -> None:
    actor = worker("zoo:tiny" if tied else untied(tmp_path / "model"), precision=precision)
    bound = 1e-4 if precision == "fp32" else 0.03
    assert gap(actor, 0) < bound
    for round_number in (1, 2):
        _, tokens = sample(actor, round_number)
        learn(actor, tokens)
        if precision == "bf16":
            assert gap(actor, 10 + round_number) > 0.05
        actor.sync_rollout()
        assert gap(actor, 20 + round_number) < bound


def test_fp32_generates_from_the_trained_weights_without_a_copy() -> None:
    assert worker(precision="fp32")._rollout_model is not None
    actor = worker(precision="fp32")
    assert actor._rollout_model is actor.model


def test_weights_saved_in_bf16_are_trained_in_fp32_and_saved_back() -> None:
    actor = worker()
    assert all(parameter.dtype == torch.float32 for parameter in actor.model.parameters())


def test_a_frozen_policy_neither_learns_nor_generates_unasked() -> None:
    ref = worker(trains=False, rollout=False)
    assert not any(parameter.requires_grad for parameter in ref.model.parameters())
    prompts = ref.apply_chat_template(PROMPTS)
    with pytest.raises(DagrlError, match="`actor` was started without a rollout engine"):
        ref.generate(prompts, torch.arange(len(prompts)), Sampling(max_new_tokens=2))
    with pytest.raises(DagrlError, match="`actor` has no optimizer"):
        learn(ref, sample(worker())[1])


def test_prompts_are_rendered_with_the_chat_template_and_repeats_agree() -> None:
    actor = worker()
    ids = actor.apply_chat_template([PROMPTS[0], PROMPTS[1], PROMPTS[0]])
    assert ids[0] == ids[2] != ids[1]
    assert actor.tokenizer.decode(ids[0]) == "<bos>300 307="
    assert actor.apply_chat_template([]) == []
    assert actor.decode([[], ids[0][1:4], ids[0][1:4]]) == ["", "300", "300"]


def test_a_tokenizer_without_a_chat_template_is_refused_with_the_fix(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(model_folder("tiny")).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(model_folder("tiny"))
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="has no chat template"):
        worker(str(tmp_path))


def test_four_samples_of_one_prompt_are_not_all_equal_and_a_seed_repeats_itself() -> None:
    actor = worker()
    prompts = actor.apply_chat_template([PROMPTS[0]] * 16)
    draw = [
        actor.generate(prompts, torch.arange(16) + s, Sampling(max_new_tokens=6, temperature=2.0)) for s in (0, 0, 99)
    ]
    assert len({tuple(row) for row in draw[0].responses.tolist()}) > 1
    assert draw[0].responses.tolist() == draw[1].responses.tolist() != draw[2].responses.tolist()


def test_the_bf16_rollout_keeps_its_rotary_frequencies_in_fp32() -> None:
    """In bf16 they lose long positions: 0.5623 becomes 0.5625."""
    actor = worker()
    trained = dict(actor.model.named_buffers())
    rollout = dict(actor._rollout_model.named_buffers())
    assert any("inv_freq" in name for name in rollout)
    assert all(torch.equal(rollout[name], buffer) for name, buffer in trained.items())
    assert all(rollout[name].dtype == buffer.dtype for name, buffer in trained.items())
    assert all(parameter.dtype == torch.bfloat16 for parameter in actor._rollout_model.parameters())


def test_a_broken_chat_template_is_a_mistake_with_a_place(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(model_folder("tiny")).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(model_folder("tiny"))
    tokenizer.chat_template = "{{ raise_exception('no system messages') }}"
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"the chat template of .* cannot render the prompts: no system messages"):
        worker(str(tmp_path)).apply_chat_template(PROMPTS)


def offload(actor: PolicyWorker) -> None:
    for action in ("offload_optimizer", "offload_model"):
        actor.phase(action, 1)


def onload(actor: PolicyWorker) -> None:
    for action in ("onload_model", "onload_optimizer"):
        actor.phase(action, 1)


@pytest.mark.parametrize(
    "use", ["update", "compute_logprobs", "compute_topk", "compute_sum_pi_squared", "sync_rollout"]
)
def test_offloaded_weights_are_not_computed_with(use: str) -> None:
    actor = worker()
    _, tokens = sample(actor)
    uses = {
        "update": lambda: learn(actor, tokens),
        "compute_logprobs": lambda: actor.compute_logprobs(tokens),
        "compute_topk": lambda: actor.compute_topk(tokens, 2),
        "compute_sum_pi_squared": lambda: actor.compute_sum_pi_squared(tokens),
        "sync_rollout": actor.sync_rollout,
    }
    uses[use]()
    offload(actor)
    with pytest.raises(EngineError, match="the model of worker group `actor` is offloaded"):
        uses[use]()
    onload(actor)
    uses[use]()


def test_hf_in_fp32_generates_from_the_trained_weights_themselves() -> None:
    shared, apart = worker(precision="fp32"), worker()
    offload(shared)
    offload(apart)
    with pytest.raises(EngineError, match="is offloaded"):
        sample(shared)
    sample(apart)


def test_weights_that_were_away_train_on_as_if_they_had_stayed() -> None:
    moved, stayed = worker(), worker()
    for actor in (moved, stayed):
        learn(actor, sample(actor)[1])
    assert moved.optimizer_bytes == stayed.optimizer_bytes > 0
    offload(moved)
    onload(moved)
    for actor in (moved, stayed):
        learn(actor, sample(actor, 1)[1])
    for mine, other in zip(moved.model.parameters(), stayed.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_offloaded_weights_are_saved_and_stay_away(tmp_path: Path) -> None:
    actor = worker()
    offload(actor)
    actor.save(tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").exists()
    with pytest.raises(EngineError, match="is offloaded"):
        actor.sync_rollout()


@pytest.mark.parametrize("trains", [True, False])
def test_what_is_to_be_offloaded_starts_away_and_generates_at_once(trains: bool) -> None:
    actor, plain = worker(offload=True, trains=trains), worker(trains=trains)
    samples, tokens = sample(actor)
    assert torch.equal(samples.responses, sample(plain)[0].responses)
    with pytest.raises(EngineError, match="is offloaded"):
        actor.compute_logprobs(tokens)
    actor.phase("onload_model", 1)
    assert torch.equal(actor.compute_logprobs(tokens).logprobs, plain.compute_logprobs(tokens).logprobs)
