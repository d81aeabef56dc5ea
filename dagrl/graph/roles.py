"""What a node may ask of the model it is bound to.

A node names a role as its first parameter (``actor: Policy``) and sees only this protocol; the
executor hands it a worker that fulfils it. Dims are those of ``dagrl/data/columns.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from jaxtyping import Bool, Float32, Int64

if TYPE_CHECKING:
    from torch import Tensor

    from dagrl.data.columns import Objects
    from dagrl.data.metrics import Metrics
    from dagrl.graph.losses import LossTerms
    from dagrl.ops.aggregate import AggMode

#: One turn of a chat: `role` and `content` as text, and whatever else the chat template reads.
Message = Mapping[str, Any]


class LossColumns(Mapping[str, "Tensor"]):
    """The columns that the terms of a loss read, by name: a node's parameter of this type receives them."""

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        self._columns = dict(columns)

    def __getitem__(self, name: str) -> Tensor:
        return self._columns[name]

    def __iter__(self):
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a rollout engine draws responses.

    ``temperature`` 0 is greedy; the log-probs of a greedy response are those at temperature 1. ``top_k`` above 0 and
    ``top_p`` below 1 leave only the likeliest tokens; log-probs are those of what is left, scaled to 1.

    ``stop`` are texts that end a response, as tokens of an end of sequence do: with the token after which its text,
    special tokens left out, holds one of them. That token and all before it stay as they were drawn.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()


class Samples(NamedTuple):
    """Responses of a rollout engine, one row for each prompt, in the order of the prompts.

    ``lengths`` counts tokens, the end-of-sequence token included; places past it hold the pad token and
    log-prob 0. ``truncated`` marks rows that a limit cut before an end-of-sequence token or a text of ``stop``.
    """

    responses: Int64[Tensor, "B T"]
    lengths: Int64[Tensor, " B"]
    logprobs: Float32[Tensor, "B T"]
    truncated: Bool[Tensor, " B"]


class TokenBatch(NamedTuple):
    """What a forward pass over whole sequences needs; ``response_mask`` covers the last T of the S places."""

    input_ids: Int64[Tensor, "B S"]
    attention_mask: Bool[Tensor, "B S"]
    position_ids: Int64[Tensor, "B S"]
    response_mask: Bool[Tensor, "B T"]
    temperatures: Float32[Tensor, " B"]


class LogProbs(NamedTuple):
    """Log-probs and entropy of the response tokens at the rows' temperatures; 0 where response_mask is False."""

    logprobs: Float32[Tensor, "B T"]
    entropy: Float32[Tensor, "B T"]


class TopLogProbs(NamedTuple):
    """Log-probs of the response tokens, and the k likeliest tokens at each of their places, likeliest first.

    All at the rows' temperatures, over the whole vocabulary; 0 where response_mask is False.
    """

    logprobs: Float32[Tensor, "B T"]
    topk_ids: Int64[Tensor, "B T K"]
    topk_logprobs: Float32[Tensor, "B T K"]


class SquaredProbs(NamedTuple):
    """Log-probs of the response tokens, and how concentrated the distribution is that each was drawn from.

    ``sum_pi_squared`` is the sum of squared probabilities over the vocabulary: 1 where one token is certain. Both are
    at the rows' temperatures, 0 where response_mask is False.
    """

    logprobs: Float32[Tensor, "B T"]
    sum_pi_squared: Float32[Tensor, "B T"]


@dataclass(frozen=True, kw_only=True)
class Canary:
    """What tells that rollout weights are not the trained ones: the first rows after each sync.

    ``tolerance`` bounds the mean, over the tokens that ``rollout`` has drawn, of how far its log-probs are from those
    of ``group``, in nats.
    """

    group: str
    rollout: str
    tolerance: float


@dataclass(frozen=True, kw_only=True)
class UpdatePlan:
    """How one update walks its rows.

    ``aliases`` maps a column that a loss reads to the engine output whose detached value serves as it
    (``old_logprobs`` -> ``new_logprobs``), as the compiler decided. Sizes count rows; 0 is "all at once"
    for ``mini_batch_size`` and "by the policy's token budget" for ``micro_batch_size``. ``step`` counts the
    run's steps from 1; the schedule of the learning rate runs from ``first_step``, the run's first with such an
    update, to its last. With a ``canary`` the rollout's log-probs are held against the trainer's own before the first
    optimizer step.
    """

    loss: LossTerms
    loss_agg_mode: AggMode
    norm_length: int | None
    mini_batch_size: int
    micro_batch_size: int
    epochs: int
    aliases: Mapping[str, str]
    step: int
    first_step: int = 1
    canary: Canary | None = None


class Policy(Protocol):
    """A causal language model: it generates, scores tokens and, with an optimizer, learns."""

    @property
    def pad_token_id(self) -> int:
        """The token that fills padded places."""
        ...

    def apply_chat_template(self, messages: Objects[Sequence[Message]]) -> list[list[int]]:
        """Token ids of each prompt, generation prompt included."""
        ...

    def decode(self, responses: Sequence[Sequence[int]]) -> list[str]:
        """The text of each response, special tokens left out."""
        ...

    def tokenize_responses(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text as a response, an end-of-sequence token last."""
        ...

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Int64[Tensor, " B"], sampling: Sampling) -> Samples:
        """One response for each prompt; a row depends on its prompt and seed alone."""
        ...

    def compute_logprobs(self, tokens: TokenBatch, *, micro_batch_size: int = 0) -> LogProbs:
        """Log-probs of the response tokens under the current weights, without gradient."""
        ...

    def compute_topk(self, tokens: TokenBatch, k: int, *, micro_batch_size: int = 0) -> TopLogProbs:
        """``compute_logprobs``, and the k likeliest tokens at each place of the response."""
        ...

    def compute_sum_pi_squared(self, tokens: TokenBatch, *, micro_batch_size: int = 0) -> SquaredProbs:
        """``compute_logprobs``, and the sum of squared probabilities at each place of the response."""
        ...

    def update(
        self,
        tokens: TokenBatch,
        columns: LossColumns,
        seeds: Int64[Tensor, " B"],
        plan: UpdatePlan,
        rollout_logprobs: Float32[Tensor, "B T"] | None = None,
    ) -> Metrics:
        """Minimise the plan's loss on the rows; the weights change.

        A row without a trained token changes nothing if its seed is another row's, as that of padding is.
        """
        ...


class Critic(Protocol):
    """A model that foretells the return: a value before each token of a response; with an optimizer it learns."""

    def compute_values(self, tokens: TokenBatch, *, micro_batch_size: int = 0) -> Float32[Tensor, "B T"]:
        """Values under the current weights, without gradient, 0 where response_mask is False.

        The value at place t is that of the state before token t: it depends on no token from t on, nor on the
        temperatures.
        """
        ...

    def update(self, tokens: TokenBatch, columns: LossColumns, seeds: Int64[Tensor, " B"], plan: UpdatePlan) -> Metrics:
        """Minimise the plan's loss on the rows, as ``Policy.update`` does; its engine output is ``new_values``."""
        ...


class RewardModel(Protocol):
    """A frozen model that scores conversations."""

    def score(
        self, messages: Objects[Sequence[Message]], responses: Sequence[str], *, micro_batch_size: int = 0
    ) -> Float32[Tensor, " B"]:
        """The score of each conversation with its response as the last turn; a row depends on no other."""
        ...


#: The protocols a node may name as its first parameter, and the engine outputs that their losses may read.
ENGINE_OUTPUTS_OF: Mapping[type, frozenset[str]] = MappingProxyType(
    {
        Policy: frozenset({"new_logprobs", "new_entropy", "new_logits"}),
        Critic: frozenset({"new_values"}),
        RewardModel: frozenset(),
    }
)
ROLES: frozenset[type] = frozenset(ENGINE_OUTPUTS_OF)
