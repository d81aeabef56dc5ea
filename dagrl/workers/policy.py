"""The worker of a policy: tokenizer, log-probs, training and rollout of one causal language model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float32, Int64
from torch import Tensor, nn

from dagrl.data.columns import Objects
from dagrl.data.metrics import Metrics
from dagrl.engines.models import (
    context_length,
    fresh_model,
    load_model,
    load_tokenizer,
    pad_token_id,
    save_model,
    stop_token_ids,
)
from dagrl.engines.packaged import ready_model
from dagrl.engines.parallel import SINGLE, DataParallel
from dagrl.engines.rollout import HFRollout
from dagrl.engines.scoring import Scorer
from dagrl.engines.sharding import whole
from dagrl.engines.state import StatePart, WorkerState
from dagrl.engines.training import Trainer
from dagrl.errors import ConfigError, DagrlError, Problem
from dagrl.graph.roles import LogProbs, LossColumns, Message, Samples, Sampling, TokenBatch, TopLogProbs, UpdatePlan
from dagrl.graph.specs import WorkerGroup
from dagrl.workers.memory import tensor_bytes
from dagrl.workers.overrides import apply_overrides, render_prompts

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class PolicyWorker:
    """Fulfils ``Policy`` in this process, as one rank of ``parallel``.

    The weights are fp32. With ``rollout`` it generates: from a copy that ``sync_rollout`` brings up to date, or in
    fp32 from the trained weights themselves where this rank has them whole.

    Every rank must call ``update``, and where ranks share the weights out also ``compute_logprobs``, ``compute_topk``,
    ``sync_rollout`` and ``save``, in one order; a rank without rows passes none.
    """

    def __init__(
        self,
        group: WorkerGroup,
        *,
        total_steps: int,
        rollout: bool,
        parallel: DataParallel = SINGLE,
        seed: int = 0,
    ) -> None:
        spec = group.model
        self.group = group
        self.parallel = parallel
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        reference = ready_model(spec.model)
        attention = "sdpa" if self.device.type == "cuda" else "eager"
        if spec.from_scratch:
            self.model = fresh_model(
                reference, seed=seed, attn_implementation=attention, trust_remote_code=spec.trust_remote_code
            )
        else:
            self.model = load_model(
                reference,
                dtype=torch.float32,
                attn_implementation=attention,
                trust_remote_code=spec.trust_remote_code,
                allow_pickle=spec.allow_pickle,
            )
        if not parallel.sharded:  # a model that may not fit moves layer by layer, as it is shared out
            _module(self.model).to(device=self.device)
        self.tokenizer = load_tokenizer(reference, trust_remote_code=spec.trust_remote_code)
        apply_overrides(spec, self.model, self.tokenizer)
        self._pad = pad_token_id(self.model, self.tokenizer)
        self._rollout_model = self._make_rollout_model() if rollout else None
        self._scorer = Scorer(
            self.model, precision=spec.precision, micro_batch_tokens=spec.micro_batch_tokens, parallel=parallel
        )
        self._trainer: Trainer | None = None
        self._optimizer_bytes = 0
        if spec.optimizer is not None:
            self._trainer = Trainer(self._scorer, spec.optimizer, total_steps=total_steps, dropout=spec.dropout)
        else:
            self.model.requires_grad_(False)
        self._rollout = self._make_rollout(self._rollout_model) if self._rollout_model is not None else None

    @property
    def pad_token_id(self) -> int:
        """The token that fills padded places."""
        return self._pad

    def apply_chat_template(self, messages: Objects[Sequence[Message]]) -> list[list[int]]:
        """Token ids of each prompt, generation prompt included; equal prompts are tokenised once."""
        conversations = [[dict(message) for message in prompt] for prompt in messages]
        keys = [repr(conversation) for conversation in conversations]
        distinct = dict(zip(keys, conversations, strict=True))
        if not distinct:
            return []
        tokenised = render_prompts(self.group.model, self.tokenizer, list(distinct.values()))
        ids = dict(zip(distinct, tokenised, strict=True))
        return [ids[key] for key in keys]

    def decode(self, responses: Sequence[Sequence[int]]) -> list[str]:
        """The text of each response, special tokens left out."""
        keys = [tuple(response) for response in responses]
        distinct = list(dict.fromkeys(keys))
        if not distinct:
            return []
        texts = self.tokenizer.batch_decode([list(key) for key in distinct], skip_special_tokens=True)
        text_of = dict(zip(distinct, texts, strict=True))
        return [text_of[key] for key in keys]

    def tokenize_responses(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, a token that ends a response last."""
        stops = stop_token_ids(self.model, self.tokenizer)
        own = self.tokenizer.eos_token_id
        end = own if isinstance(own, int) and own in stops else min(stops)
        if not texts:
            return []
        return [[*ids, end] for ids in self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]]

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Int64[Tensor, " B"], sampling: Sampling) -> Samples:
        """One response for each prompt, by the rollout weights."""
        if self._rollout is None:
            raise DagrlError(f"worker group `{self.group.name}` was started without a rollout engine")
        return self._rollout.generate(prompts, seeds, sampling)

    def compute_logprobs(self, tokens: TokenBatch, *, micro_batch_size: int = 0) -> LogProbs:
        """Log-probs and entropy under the current weights, without gradient."""
        return self._scorer.compute(tokens, micro_batch_size=micro_batch_size)

    def compute_topk(self, tokens: TokenBatch, k: int, *, micro_batch_size: int = 0) -> TopLogProbs:
        """Log-probs and the k likeliest tokens under the current weights, without gradient."""
        return self._scorer.compute_topk(tokens, k, micro_batch_size=micro_batch_size)

    def update(
        self,
        tokens: TokenBatch,
        columns: LossColumns,
        seeds: Int64[Tensor, " B"],
        plan: UpdatePlan,
        rollout_logprobs: Float32[Tensor, "B T"] | None = None,
    ) -> Metrics:
        """Run the plan's optimizer steps."""
        if self._trainer is None:
            raise DagrlError(f"worker group `{self.group.name}` has no optimizer")
        return self._trainer.update(tokens, columns, seeds, plan, rollout_logprobs)

    @torch.no_grad()
    def sync_rollout(self) -> None:
        """Bring the rollout weights to the trained ones; shares are put together one tensor at a time."""
        if self._rollout_model is None or self._rollout_model is self.model:
            return
        for rollout, trained in zip(self._rollout_model.parameters(), self.model.parameters(), strict=True):
            rollout.copy_(whole(trained))

    def save(self, folder: Path) -> None:
        """Have rank 0 write the model in Hugging Face format, in bf16 unless the policy is fp32."""
        dtype = torch.float32 if self.group.model.precision == "fp32" else torch.bfloat16
        if self.parallel.rank == 0 or self.parallel.sharded:
            save_model(self.model, self.tokenizer, folder, dtype=dtype, writes=self.parallel.rank == 0)

    @cached_property
    def weight_bytes(self) -> int:
        """Of the weights on this rank, a copy for rollout included."""
        models = [self.model, *([] if self._rollout_model is None else [self._rollout_model])]
        return tensor_bytes(parameter for model in models for parameter in model.parameters())

    @property
    def optimizer_bytes(self) -> int:
        """Of the optimizer's state on this rank: none before the first update."""
        if self._optimizer_bytes == 0 and self._trainer is not None:
            self._optimizer_bytes = tensor_bytes(self._trainer.optimizer_tensors())
        return self._optimizer_bytes

    def state(self) -> WorkerState | None:
        """This rank's part of what a resumed run needs; None for a frozen model."""
        return None if self._trainer is None else self._trainer.state()

    def load_state(self, parts: Sequence[StatePart]) -> None:
        """Go on from the parts of all ranks that saved, however many there were; the rollout weights follow.

        Raises:
            CheckpointError: when the parts do not hold this model.
        """
        if self._trainer is not None:
            self._trainer.load_state(parts)
            self.sync_rollout()

    def _make_rollout_model(self) -> PreTrainedModel:
        fp32 = self.group.model.precision == "fp32"
        if fp32 and not self.parallel.sharded:
            return self.model
        twin = copy.deepcopy(self.model).requires_grad_(False).eval()
        for parameter in twin.parameters():  # buffers stay: rotary frequencies lose long positions in bf16
            parameter.data = parameter.data.to(torch.float32 if fp32 else torch.bfloat16)
        _module(twin).to(device=self.device)
        return twin

    def _make_rollout(self, model: PreTrainedModel) -> HFRollout:
        if self.tokenizer.chat_template is None:
            what = f"the tokenizer of `{self.group.model.model}` has no chat template."
            fix = "add `chat_template` to its tokenizer_config.json"
            raise ConfigError([Problem(what, self.group.model.at, fix=fix)])
        return HFRollout(
            model,
            stop_token_ids=stop_token_ids(self.model, self.tokenizer),
            pad_token_id=self._pad,
            context_length=context_length(self.model),
        )


def _module(model: PreTrainedModel) -> nn.Module:
    """The model as torch types it: transformers' own ``to`` hides its arguments."""
    return model
