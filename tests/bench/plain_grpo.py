"""GRPO by hand, in one class without a framework: what dagrl's step is held against.

The same model, prompts, batch, reward, losses and optimizer as pipelines/grpo.py. ``rollout="own"`` samples in the
leanest loop that fits this one task; ``rollout="engine"`` uses dagrl's rollout engine, so that only what is
around it differs. In a process group each process takes its share of the prompts and gradients are averaged.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils import logging

from dagrl.engines.rollout.hf import HFRollout
from dagrl.graph.roles import Sampling
from dagrl.zoo import model_folder, open_task


class PlainGrpo:
    """One policy, its frozen reference, its rollout copy and an optimizer; ``step`` does everything."""

    def __init__(
        self, *, batch_size: int, n: int, lr: float, kl: float, clip: float, rollout: str, seed: int = 0
    ) -> None:
        torch.manual_seed(seed)
        logging.disable_progress_bar()
        folder = str(model_folder("tiny"))
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self.ref = copy.deepcopy(self.policy).requires_grad_(False).eval()
        self.sampler = copy.deepcopy(self.policy).requires_grad_(False).eval().to(torch.bfloat16)
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.0, fused=True
        )
        self.rows = open_task("larger", "train")
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        seed = seed * self.world + (dist.get_rank() if self.world > 1 else 0)
        self.order = random.Random(seed)
        batch_size //= self.world
        self.batch_size, self.n, self.kl, self.clip = batch_size, n, kl, clip
        self.stop, self.pad = self.tokenizer.eos_token_id, self.tokenizer.pad_token_id
        self.engine = None
        if rollout == "engine":
            self.engine = HFRollout(
                self.sampler, stop_token_ids=frozenset({self.stop}), pad_token_id=self.pad, context_length=128
            )
        self.generator = torch.Generator().manual_seed(seed)

    def step(self) -> float:
        """One GRPO step; its mean reward."""
        rows = [self.rows[self.order.randrange(len(self.rows))] for _ in range(self.batch_size)]
        prompts = self.tokenizer.apply_chat_template(
            [[{"role": "user", "content": row.prompt}] for row in rows],
            add_generation_prompt=True, tokenize=True, return_dict=False,
        )  # fmt: skip
        width = max(map(len, prompts))
        ids = torch.tensor([[self.pad] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        responses = self._sample(prompts, ids, mask)
        texts = self.tokenizer.batch_decode(responses, skip_special_tokens=True)
        answers = [row.answer for row in rows for _ in range(self.n)]
        ended = (responses == self.stop).any(1).tolist()
        rewards = torch.tensor([float(e and t == a) for e, t, a in zip(ended, texts, answers, strict=True)])
        self._learn(ids, mask, responses, rewards)
        return float(rewards.mean())

    def _sample(self, prompts: list[list[int]], ids: Tensor, mask: Tensor) -> Tensor:
        if self.engine is None:
            return self._own_loop(ids, mask)
        repeated = [prompt for prompt in prompts for _ in range(self.n)]
        seeds = torch.randint(2**62, (len(repeated),), generator=self.generator)
        return self.engine.generate(repeated, seeds, Sampling(max_new_tokens=8)).responses

    def _own_loop(self, ids: Tensor, mask: Tensor) -> Tensor:
        with torch.inference_mode():
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            cache = DynamicCache(config=self.sampler.config)
            logits = self._forward(ids, mask, positions, cache)
            cache.batch_repeat_interleave(self.n)
            logits, mask, positions = (x.repeat_interleave(self.n, 0) for x in (logits, mask, positions[:, -1:]))
            done = torch.zeros(len(mask), dtype=torch.bool)
            tokens: list[Tensor] = []
            while len(tokens) < 8:
                cdf = logits.float().softmax(-1).cumsum(-1)
                drawn = torch.rand(len(cdf), 1, generator=self.generator) * cdf[:, -1:]
                token = (
                    torch.searchsorted(cdf, drawn).clamp_(max=cdf.shape[1] - 1).masked_fill_(done[:, None], self.pad)
                )
                tokens.append(token)
                done |= token[:, 0] == self.stop
                if bool(done.all()):
                    break
                mask, positions = torch.cat([mask, mask.new_ones(len(mask), 1)], 1), positions + 1
                logits = self._forward(token, mask, positions, cache)
        return torch.cat(tokens, 1).clone()

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
        return self.sampler(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]  # fmt: skip

    def _learn(self, ids: Tensor, mask: Tensor, responses: Tensor, rewards: Tensor) -> None:
        groups = rewards.view(-1, self.n)
        advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)).flatten()[:, None]
        ended = (responses == self.stop).int()
        trained = ended.cumsum(1) - ended == 0
        sequence = torch.cat([ids.repeat_interleave(self.n, 0), responses], 1)
        attention = torch.cat([mask.repeat_interleave(self.n, 0), trained.long()], 1)
        positions = (attention.cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            ref_logprobs = self._logprobs(self.ref, sequence, attention, positions, responses)
        logprobs = self._logprobs(self.policy, sequence, attention, positions, responses)
        ratio = (logprobs - logprobs.detach()).exp()
        surrogate = -torch.min(ratio * advantages, ratio.clamp(1 - self.clip, 1 + self.clip) * advantages)
        delta = ref_logprobs - logprobs
        losses = surrogate + self.kl * (delta.exp() - delta - 1)
        loss = ((losses * trained).sum(1) / trained.sum(1)).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.world > 1:
            self._average_gradients()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(list(self.sampler.parameters()), list(self.policy.parameters()))

    def _average_gradients(self) -> None:
        gradients = [parameter.grad for parameter in self.policy.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.world
        for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def _logprobs(
        self, model: Any, sequence: Tensor, attention: Tensor, positions: Tensor, responses: Tensor
    ) -> Tensor:
        width = responses.shape[1]
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(
                input_ids=sequence, attention_mask=attention, position_ids=positions, use_cache=False,
                logits_to_keep=width + 1,
            ).logits[:, :-1]  # fmt: skip
        return logits.float().log_softmax(-1).gather(2, responses[..., None])[..., 0]
