"""A policy worker with an engine of vLLM: what it samples, learns, and how far its log-probs are from the trained."""

import pytest
import torch
from faulty_weights import NoWeights

from dagrl import LossColumns, ResourcePool, WorkerGroup, adamw, policy, vllm
from dagrl.errors import EngineError
from dagrl.graph.roles import Sampling, TokenBatch, UpdatePlan
from dagrl.nodes import ppo_clip
from dagrl.ops.masks import join_sequences, mask_from_lengths, pad_left
from dagrl.workers.policy import PolicyWorker

PROMPTS = [[{"role": "user", "content": f"{a} {a + 7}"}] for a in range(300, 332)]


def vllm_worker(model: str = "zoo:tiny", precision="bf16") -> PolicyWorker:
    optimizer = adamw(lr=1e-2, max_grad_norm=None)
    spec = policy(model, optimizer=optimizer, precision=precision, rollout=vllm(kv_cache_gib=0.1))
    return PolicyWorker(WorkerGroup("actor", spec, pool=ResourcePool("main", [0])), total_steps=10, rollout=True)


def sample(actor: PolicyWorker, seed: int, num_prompts: int = len(PROMPTS)):
    prompts = actor.apply_chat_template(PROMPTS[:num_prompts])
    samples = actor.generate(prompts, torch.arange(len(prompts)) + 1000 * seed, Sampling(max_new_tokens=6))
    ids, mask, positions = join_sequences(*pad_left(prompts, actor.pad_token_id), samples.responses, samples.lengths)
    response_mask = mask_from_lengths(samples.lengths, samples.responses.shape[1])
    return samples, TokenBatch(ids, mask, positions, response_mask, torch.ones(len(prompts)))


def logprob_gap(actor: PolicyWorker, seed: int) -> float:
    """The mean |engine - trainer| over new samples."""
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


def assert_survives_a_failed_load(actor: PolicyWorker, sampler: PolicyWorker) -> None:
    """What follows the actor draws no more until the next weights, and then what the actor draws."""
    sampler.load_rollout(actor.trained_weights(actor.group.model.precision))
    with pytest.raises(EngineError, match="did not come"):
        sampler.load_rollout(NoWeights(actor.model))
    for _ in range(2):
        with pytest.raises(EngineError, match="is dead: loading weights failed"):
            sample(sampler, 1)
    learn(actor, sample(actor, 1)[1])
    actor.sync_rollout()
    sampler.load_rollout(actor.trained_weights(actor.group.model.precision))
    theirs, mine = sample(actor, 2)[0], sample(sampler, 2)[0]
    assert torch.equal(theirs.responses, mine.responses)
    torch.testing.assert_close(theirs.logprobs, mine.logprobs, atol=1e-5, rtol=0)
