"""The policy worker with an engine of vLLM: its weights follow the trained ones, and a dead engine is built anew."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

pytest.importorskip("vllm")

from dagrl import LossColumns, ResourcePool, WorkerGroup, adamw, policy, vllm
from dagrl.errors import EngineError
from dagrl.graph.roles import Sampling, TokenBatch, UpdatePlan
from dagrl.nodes import ppo_clip
from dagrl.ops.masks import join_sequences, mask_from_lengths, pad_left
from dagrl.workers.policy import PolicyWorker
from dagrl.zoo import model_folder

PROMPTS = [[{"role": "user", "content": f"{a} {a + 7}"}] for a in range(300, 332)]


def worker(model: str = "zoo:tiny", precision="bf16") -> PolicyWorker:
    spec = policy(
        model,
        optimizer=adamw(lr=1e-2, max_grad_norm=None),
        precision=precision,
        rollout=vllm(kv_cache_gib=0.1),
    )
    return PolicyWorker(WorkerGroup("actor", spec, pool=ResourcePool("main", [0])), total_steps=10, rollout=True)


def untied(folder: Path) -> str:
    model = AutoModelForCausalLM.from_pretrained(model_folder("tiny"))
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone() * 1.01)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder("tiny")).save_pretrained(folder)
    return str(folder)


def sample(actor: PolicyWorker, seed: int):
    prompts = actor.apply_chat_template(PROMPTS)
    samples = actor.generate(prompts, torch.arange(len(prompts)) + 1000 * seed, Sampling(max_new_tokens=6))
    ids, mask, positions = join_sequences(*pad_left(prompts, actor.pad_token_id), samples.responses, samples.lengths)
    response_mask = mask_from_lengths(samples.lengths, samples.responses.shape[1])
    return samples, TokenBatch(ids, mask, positions, response_mask, torch.ones(len(prompts)))


def gap(actor: PolicyWorker, seed: int) -> float:
    samples, tokens = sample(actor, seed)
    trained = actor.compute_logprobs(tokens).logprobs
    return float((samples.logprobs - trained).abs()[tokens.response_mask].mean())


def learn(actor: PolicyWorker, tokens: TokenBatch) -> None:
    generator = torch.Generator().manual_seed(0)
    advantages = torch.randn(tokens.response_mask.shape, generator=generator)
    columns = LossColumns({"advantages": advantages, "response_mask": tokens.response_mask})
    plan = UpdatePlan(
        loss=ppo_clip(), loss_agg_mode="token-mean", norm_length=None, mini_batch_size=0, micro_batch_size=0, epochs=1,
        aliases={"old_logprobs": "new_logprobs"}, step=1,
    )  # fmt: skip
    actor.update(tokens, columns, torch.arange(len(advantages)), plan)


@pytest.mark.parametrize(("tied", "precision"), [(True, "bf16"), (False, "fp32")])
def test_after_a_sync_the_engine_has_the_new_weights_twice_in_a_row(tmp_path: Path, tied: bool, precision) -> None:
    actor = worker("zoo:tiny" if tied else untied(tmp_path / "model"), precision)
    bound = 1e-3 if precision == "fp32" else 0.05
    assert gap(actor, 0) < bound
    for round_number in (1, 2):
        learn(actor, sample(actor, round_number)[1])
        assert gap(actor, 10 + round_number) > 0.05
        actor.sync_rollout()
        assert gap(actor, 20 + round_number) < bound
    kill(actor)
    assert gap(actor, 30) < bound, "the engine was not built anew from the trained weights"
    kill(actor)
    actor.sync_rollout()
    assert gap(actor, 31) < bound
    actor._rollout.close()


def kill(actor: PolicyWorker) -> None:
    engine = actor._rollout

    class Cut:
        layout = engine._layout

        def __iter__(self):
            return iter(())

    with pytest.raises(EngineError, match="did not come"):
        engine.load_weights(Cut(), 99)
    assert engine.is_dead
