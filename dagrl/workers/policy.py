"""The worker of a policy: tokenizer, log-probs, training and rollout of one causal language model."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int64
from torch import Tensor

from dagrl.compiler.plan import Action
from dagrl.data.columns import Objects
from dagrl.engines.bucket_memory import BucketMemory
from dagrl.engines.model_tokens import context_length, pad_token_id, stop_token_ids
from dagrl.engines.models import dtype_of, fresh_model, hollow_model, load_model
from dagrl.engines.modules import as_module
from dagrl.engines.parallel import SINGLE, DataParallel
from dagrl.engines.profiler import DistProfiler
from dagrl.engines.residence import MODEL
from dagrl.engines.rollout.base import KV_CACHE, WEIGHTS, RolloutEngine
from dagrl.engines.rollout.hf import HFRollout
from dagrl.engines.rollout.server import start_server_rollout
from dagrl.engines.rollout.vllm import start_vllm_rollout
from dagrl.engines.scoring import Scorer
from dagrl.engines.state import StatePart
from dagrl.engines.weights import TrainedWeights, Weights, layout_of
from dagrl.errors import ConfigError, DagrlError, Problem
from dagrl.graph.roles import LogProbs, Message, Samples, Sampling, SquaredProbs, TokenBatch, TopLogProbs
from dagrl.graph.specs import Precision, WorkerGroup
from dagrl.workers.base import Loader, RoleWorker
from dagrl.workers.distinct import each_once
from dagrl.workers.overrides import render_prompts

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_ENGINE_ACTIONS = frozenset[Action]({"sleep", "wake_weights", "wake_kv"})


class PolicyWorker(RoleWorker):
    """Fulfils ``Policy`` in this process, as one rank of ``parallel``.

    The weights are fp32. With ``rollout`` it generates, by the engine that the group's spec names: from weights that
    ``sync_rollout`` brings up to date, or with `hf` in fp32 from the trained ones themselves where this rank has them
    whole. An engine that has died is built anew from the trained weights.

    A group that follows another has no weights to train or score with: only those of its engine, in the engine's
    dtype, and until it has been given the other group's it does not generate.

    Every rank must call ``update``, and where ranks share the weights out also ``compute_logprobs``,
    ``compute_sum_pi_squared``, ``compute_topk``, ``sync_rollout`` and ``save``, in one order; a rank without rows
    passes none.
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
        own_loop = rollout and group.model.rollout.engine == "hf"
        super().__init__(group, _loader(group, seed, own_loop=own_loop), parallel=parallel)
        self.pad_token_id = pad_token_id(self.model, self.tokenizer)
        self._rollout_model = self._make_rollout_model() if own_loop else None
        self._own_scorer = None if group.follows is not None else self._make_scorer(total_steps)
        self._syncs = 0
        self._bucket_memory = BucketMemory()
        self._start_offloaded()
        self._rollout = self._make_rollout() if rollout else None
        if self._rollout_model is None and self._own_scorer is not None:
            with self._room_to_sync():
                self.sync_rollout()

    def apply_chat_template(self, messages: Objects[Sequence[Message]]) -> list[list[int]]:
        """Token ids of each prompt, generation prompt included; equal prompts are tokenised once."""
        conversations = [[dict(message) for message in prompt] for prompt in messages]
        return each_once(conversations, partial(render_prompts, self.group.model, self.tokenizer))

    def decode(self, responses: Sequence[Sequence[int]]) -> list[str]:
        """The text of each response, special tokens left out."""
        return each_once(responses, self._decode, key=tuple)

    def tokenize_responses(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, a token that ends a response last."""
        stops = stop_token_ids(self.model, self.tokenizer)
        own = self.tokenizer.eos_token_id
        end = own if isinstance(own, int) and own in stops else min(stops)
        if not texts:
            return []
        return [[*ids, end] for ids in self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]]

    @DistProfiler.annotate()
    def generate(self, prompts: Sequence[Sequence[int]], seeds: Int64[Tensor, " B"], sampling: Sampling) -> Samples:
        """One response for each prompt, by the rollout weights."""
        if self._rollout is None:
            raise DagrlError(f"worker group `{self.group.name}` was started without a rollout engine")
        # Shares come together only where all ranks ask, and a follower has no trained weights: these stay dead.
        if self._rollout.is_dead and not self.parallel.sharded and self.group.follows is None:
            with self.residence.present(MODEL):
                self.sync_rollout()
        if self._rollout_model is self.model:
            self.residence.require(MODEL)
        return self._rollout.generate(prompts, seeds, sampling)

    @DistProfiler.annotate()
    def compute_logprobs(self, tokens: TokenBatch, *, micro_batch_size: int = 0) -> LogProbs:
        """Log-probs and entropy under the current weights, without gradient."""
        self.residence.require(MODEL)
        return self._scorer.compute(tokens, micro_batch_size=micro_batch_size)

    @DistProfiler.annotate()
    def compute_topk(self, tokens: TokenBatch, k: int, *, micro_batch_size: int = 0) -> TopLogProbs:
        """Log-probs and the k likeliest tokens under the current weights, without gradient."""
        self.residence.require(MODEL)
        return self._scorer.compute_topk(tokens, k, micro_batch_size=micro_batch_size)

    @DistProfiler.annotate()
    def compute_sum_pi_squared(self, tokens: TokenBatch, *, micro_batch_size: int = 0) -> SquaredProbs:
        """Log-probs and sums of squared probabilities under the current weights, without gradient."""
        self.residence.require(MODEL)
        return self._scorer.compute_sum_pi_squared(tokens, micro_batch_size=micro_batch_size)

    @DistProfiler.annotate()
    def sync_rollout(self) -> None:
        """Bring the rollout weights to the trained ones; shares are put together a bucket at a time.

        Raises:
            DagrlError: for a group that follows another.
            EngineError: when the engine does not take them; it is then dead, and the next sync begins with a new one.
        """
        if self._own_scorer is None:
            raise self._has_no_weights()
        if self._rollout is not None and self._rollout_model is not self.model:
            # Engines in this process cast as they copy: another copy of the largest weight would be a peak of its own.
            casts = self.group.model.rollout.engine == "server"
            self.load_rollout(self.trained_weights(self.group.model.precision, casts=casts))

    def trained_weights(self, precision: Precision, *, casts: bool = True) -> TrainedWeights:
        """The trained weights, whole, in the dtype of a rollout of that precision.

        ``casts=False`` leaves those of one process as they are. Where ranks share them out all must walk through them.
        """
        self.residence.require(MODEL)
        return TrainedWeights(
            self.model, dtype=dtype_of(precision), parallel=self.parallel, casts=casts, memory=self._bucket_memory
        )

    @DistProfiler.annotate()
    def load_rollout(self, weights: Weights) -> None:
        """Generate from these weights from now on: the trained ones, or those of the group that this one follows.

        Raises:
            EngineError: when the engine does not take them; it is then dead, and the next sync begins with a new one.
        """
        if self._rollout is None:
            raise DagrlError(f"worker group `{self.group.name}` was started without a rollout engine")
        if self._rollout.is_dead:
            self._rollout.close()
            self._rollout = self._make_rollout()
        self._syncs += 1
        self._rollout.load_weights(weights, self._syncs)

    @DistProfiler.annotate()
    def phase(self, action: Action, level: int) -> None:
        """Have the rollout engine sleep at a level, or wake its weights or key-value cache; see also the base."""
        if self._rollout is None or action not in _ENGINE_ACTIONS:
            super().phase(action, level)
        elif action == "sleep":
            self._rollout.sleep(level)
        else:
            self._rollout.wake((WEIGHTS,) if action == "wake_weights" else (KV_CACHE,))

    def load_state(self, parts: Sequence[StatePart]) -> None:
        """Go on from the parts of all ranks that saved, however many there were; the rollout weights follow.

        Raises:
            CheckpointError: when the parts do not hold this model.
        """
        with self._room_to_sync():
            super().load_state(parts)
            self.sync_rollout()

    @contextmanager
    def _room_to_sync(self) -> Generator[None]:
        """Outside the plan's phases: where trained weights are offloaded, have them and the cache there by turns."""
        turns = self._rollout is not None and self.group.model.offload and self.group.follows is None
        if self._rollout is not None and turns:
            self._rollout.sleep()
            self._rollout.wake((WEIGHTS,))
        with self.residence.present(MODEL):
            yield
        if self._rollout is not None and turns:
            self._rollout.wake((KV_CACHE,))

    def save(self, folder: Path) -> None:
        """As for all roles; raises DagrlError for a group that follows another."""
        if self._own_scorer is None:
            raise self._has_no_weights()
        super().save(folder)

    @property
    def _scorer(self) -> Scorer:
        """The passes over the trained weights; raises DagrlError for a group that follows another."""
        if self._own_scorer is None:
            raise self._has_no_weights()
        return self._own_scorer

    def _has_no_weights(self) -> DagrlError:
        name, leader = self.group.name, self.group.leader.name
        return DagrlError(f"worker group `{name}` has no weights of its own: it generates from those of `{leader}`")

    def _make_scorer(self, total_steps: int) -> Scorer:
        spec = self.group.model
        scorer = Scorer(
            self.model, precision=spec.precision, micro_batch_tokens=spec.micro_batch_tokens, parallel=self.parallel
        )
        self._train(scorer, total_steps=total_steps, dropout=spec.dropout, role="actor")
        return scorer

    def _engine_bytes(self) -> int:
        return 0 if self._rollout is None else self._rollout.weight_bytes

    def _models(self) -> Iterator[PreTrainedModel]:
        yield self.model
        if self._rollout_model is not None:
            yield self._rollout_model

    def _decode(self, responses: Sequence[Sequence[int]]) -> list[str]:
        if not responses:
            return []
        return self.tokenizer.batch_decode([list(ids) for ids in responses], skip_special_tokens=True)

    @property
    def _rollout_dtype(self) -> torch.dtype:
        return dtype_of(self.group.model.precision)

    def _make_rollout_model(self) -> PreTrainedModel:
        if self.group.follows is not None:  # it was read for this
            return self.model.requires_grad_(False)
        if self._rollout_dtype == torch.float32 and not self.parallel.sharded:
            return self.model
        twin = copy.deepcopy(self.model).requires_grad_(False).eval()
        for parameter in twin.parameters():  # buffers stay: rotary frequencies lose long positions in bf16
            parameter.data = parameter.data.to(self._rollout_dtype)
        as_module(twin).to(device=self.device)
        return twin

    def _make_rollout(self) -> RolloutEngine:
        spec = self.group.model
        if self.tokenizer.chat_template is None:
            what = f"the tokenizer of `{spec.model}` has no chat template."
            fix = "add `chat_template` to its tokenizer_config.json"
            raise ConfigError([Problem(what, spec.at, fix=fix)])
        stops, limit = stop_token_ids(self.model, self.tokenizer), context_length(self.model)
        if self._rollout_model is not None:
            return HFRollout(
                self._rollout_model,
                stop_token_ids=stops,
                pad_token_id=self.pad_token_id,
                context_length=limit,
                tokenizer=self.tokenizer,
                version=0 if self.group.follows is None else None,
            )
        if spec.rollout.engine == "server":
            return start_server_rollout(
                spec.rollout,
                layout=layout_of(self.model),
                vocab_size=self.model.config.get_text_config(decoder=True).vocab_size,
                stop_token_ids=stops,
                pad_token_id=self.pad_token_id,
                context_length=limit,
                hands_over=self.parallel.rank == 0,
            )
        return start_vllm_rollout(
            spec.rollout,
            self.model,
            self.tokenizer,
            dtype=self._rollout_dtype,
            stop_token_ids=stops,
            pad_token_id=self.pad_token_id,
            context_length=limit,
            trust_remote_code=spec.trust_remote_code,
        )


def _loader(group: WorkerGroup, seed: int, *, own_loop: bool) -> Loader:
    """What reads the group's model: in fp32, or for a follower in the dtype that our ``own_loop`` needs, or hollow."""
    spec, follows = group.model, group.follows is not None
    if follows and not own_loop:
        return partial(hollow_model, trust_remote_code=spec.trust_remote_code)
    dtype = dtype_of(spec.precision) if follows else torch.float32
    if spec.from_scratch:
        return partial(fresh_model, seed=seed, dtype=dtype, trust_remote_code=spec.trust_remote_code)
    return partial(load_model, dtype=dtype, trust_remote_code=spec.trust_remote_code, allow_pickle=spec.allow_pickle)
