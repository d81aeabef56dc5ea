"""The worker of a reward model: its own tokenizer and template, and scores of whole conversations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Float32
from torch import Tensor

from dagrl.data.columns import Objects
from dagrl.engines.models import context_length, load_tokenizer, pad_token_id, save_model
from dagrl.engines.packaged import ready_model
from dagrl.engines.parallel import SINGLE, DataParallel
from dagrl.engines.passes import as_module
from dagrl.engines.scalar_head import load_scalar_model
from dagrl.engines.sequence_scoring import SequenceScorer
from dagrl.engines.state import StatePart, WorkerState
from dagrl.errors import ConfigError, Problem
from dagrl.graph.roles import Message
from dagrl.graph.specs import WorkerGroup
from dagrl.workers.memory import tensor_bytes
from dagrl.workers.overrides import apply_overrides, render_conversations

_ROWS_SHOWN = 5


class RewardModelWorker:
    """Fulfils ``RewardModel`` in this process, as one rank of ``parallel``. It is frozen.

    Where ranks share the weights out, every rank must call ``score``; a rank without rows passes none.

    Raises:
        ConfigError: when there is no model, it has no head that gives one score, its tokenizer has no chat template,
            or no token can fill padding.
    """

    def __init__(self, group: WorkerGroup, *, parallel: DataParallel = SINGLE) -> None:
        spec = group.model
        self.group = group
        self.parallel = parallel
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        reference = ready_model(spec.model)
        attention = "sdpa" if device.type == "cuda" else "eager"
        self.model = load_scalar_model(
            reference,
            dtype=torch.float32,
            attn_implementation=attention,
            new_head=False,
            trust_remote_code=spec.trust_remote_code,
            allow_pickle=spec.allow_pickle,
        ).requires_grad_(False)
        if not parallel.sharded:  # a model that may not fit moves layer by layer, as it is shared out
            as_module(self.model).to(device=device)
        self.tokenizer = load_tokenizer(reference, trust_remote_code=spec.trust_remote_code)
        apply_overrides(spec, self.model, self.tokenizer)
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

    def score(
        self, messages: Objects[Sequence[Message]], responses: Sequence[str], *, micro_batch_size: int = 0
    ) -> Float32[Tensor, " B"]:
        """The score at the last token of each conversation, by the model's own template and tokenizer.

        Raises:
            ConfigError: for conversations longer than the model's context: none is cut.
        """
        conversations = [
            [*(dict(message) for message in prompt), {"role": "assistant", "content": response}]
            for prompt, response in zip(messages, responses, strict=True)
        ]
        keys = [repr(conversation) for conversation in conversations]
        distinct = dict(zip(keys, conversations, strict=True))
        tokens = render_conversations(self.group.model, self.tokenizer, list(distinct.values())) if distinct else []
        self._require_room(tokens, list(distinct.values()))
        scores = self._scorer.score(tokens, micro_batch_size=micro_batch_size)
        score_of = dict(zip(distinct, scores.tolist(), strict=True))
        return torch.tensor([score_of[key] for key in keys], dtype=torch.float32)

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

    def save(self, folder: Path) -> None:
        """Have rank 0 write the model in Hugging Face format, in bf16 unless it is fp32."""
        dtype = torch.float32 if self.group.model.precision == "fp32" else torch.bfloat16
        if self.parallel.rank == 0 or self.parallel.sharded:
            save_model(self.model, self.tokenizer, folder, dtype=dtype, writes=self.parallel.rank == 0)

    @cached_property
    def weight_bytes(self) -> int:
        """Of the weights on this rank."""
        return tensor_bytes(self.model.parameters())

    @property
    def optimizer_bytes(self) -> int:
        """None: it is frozen."""
        return 0

    def state(self) -> WorkerState | None:
        """Nothing: it does not change."""
        return None

    def load_state(self, parts: Sequence[StatePart]) -> None:
        """Nothing to take up."""
