"""The worker of a reward model: its own tokenizer and template, and scores of whole conversations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float32
from torch import Tensor

from dagrl.data.columns import Objects
from dagrl.engines.model_tokens import context_length, pad_token_id
from dagrl.engines.parallel import SINGLE, DataParallel
from dagrl.engines.profiler import DistProfiler
from dagrl.engines.residence import MODEL
from dagrl.engines.scalar_head import load_scalar_model
from dagrl.engines.sequence_scoring import SequenceScorer
from dagrl.errors import ConfigError, Problem
from dagrl.graph.roles import Message
from dagrl.graph.specs import WorkerGroup
from dagrl.workers.base import RoleWorker
from dagrl.workers.distinct import each_once
from dagrl.workers.overrides import Conversation, render_conversations

_ROWS_SHOWN = 5


class RewardModelWorker(RoleWorker):
    """Fulfils ``RewardModel`` in this process, as one rank of ``parallel``. It is frozen.

    Where ranks share the weights out, every rank must call ``score``; a rank without rows passes none.

    Raises:
        ConfigError: when there is no model, it has no head that gives one score, its tokenizer has no chat template,
            or no token can fill padding.
    """

    def __init__(self, group: WorkerGroup, *, parallel: DataParallel = SINGLE) -> None:
        spec = group.model
        load = partial(
            load_scalar_model,
            dtype=torch.float32,
            new_head=False,
            trust_remote_code=spec.trust_remote_code,
            allow_pickle=spec.allow_pickle,
        )
        super().__init__(group, load, parallel=parallel)
        self.model.requires_grad_(False)
        if self.tokenizer.chat_template is None:
            what = f"the tokenizer of reward model `{spec.model}` has no chat template."
            fix = "give one: `reward_model(..., chat_template=)`, the one that the model was trained with"
            raise ConfigError([Problem(what, spec.at, fix=fix)])
        self._scorer = SequenceScorer(
            self.model,
            pad_token_id=pad_token_id(self.model, self.tokenizer),
            precision=spec.precision,
            micro_batch_tokens=spec.micro_batch_tokens,
            parallel=parallel,
        )
        self._start_offloaded()

    @DistProfiler.annotate()
    def score(
        self, messages: Objects[Sequence[Message]], responses: Sequence[str], *, micro_batch_size: int = 0
    ) -> Float32[Tensor, " B"]:
        """The score at the last token of each conversation, by the model's own template and tokenizer.

        Raises:
            ConfigError: for conversations longer than the model's context: none is cut.
        """
        self.residence.require(MODEL)
        conversations = [
            [*(dict(message) for message in prompt), {"role": "assistant", "content": response}]
            for prompt, response in zip(messages, responses, strict=True)
        ]
        score = partial(self._score, micro_batch_size=micro_batch_size)
        return torch.tensor(each_once(conversations, score), dtype=torch.float32)

    def _score(self, conversations: Sequence[Conversation], *, micro_batch_size: int) -> list[float]:
        tokens = render_conversations(self.group.model, self.tokenizer, conversations)
        self._require_room(tokens, conversations)
        return self._scorer.score(tokens, micro_batch_size=micro_batch_size).tolist()

    def _require_room(self, tokens: Sequence[Sequence[int]], conversations: Sequence[Sequence[Message]]) -> None:
        empty = next((row for row, ids in enumerate(tokens) if not ids), None)
        if empty is not None:
            what = f"the chat template of reward model `{self.group.model.model}` makes nothing of a conversation."
            facts = (("row", f"{str(conversations[empty])[:60]!r}"),)
            raise ConfigError([Problem(what, self.group.model.at, facts, "give another `chat_template`")])
        limit = context_length(self.model)
        overlong = [row for row, ids in enumerate(tokens) if limit is not None and len(ids) > limit]
        if not overlong:
            return
        facts = [("row", f"{len(tokens[row])} tokens: {str(conversations[row])[:60]!r}") for row in overlong]
        what = (
            f"{len(overlong)} conversations have more tokens than the {limit} that reward model "
            f"`{self.group.model.model}` has positions for."
        )
        fix = "lower `max_new_tokens` or `max_prompt_tokens`, or take a reward model with a longer context"
        raise ConfigError([Problem(what, self.group.model.at, tuple(facts[:_ROWS_SHOWN]), fix)])
