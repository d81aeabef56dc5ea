"""The legend of columns: what each name means, its dtype and dims, and how it is padded.

This is the one place that says it. The module imports neither torch nor tensordict, so a
graph can be checked and planned without them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Objects(Protocol[T_co]):
    """An object column: one Python value for each row, e.g. ``Objects[str]``.

    Any sequence of the right length serves; the executor passes a numpy object array of shape (B,).
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> T_co: ...
    def __iter__(self) -> Iterator[T_co]: ...


#: Dim letters and what they count.
DIMS: Mapping[str, str] = MappingProxyType(
    {
        "B": "rows: prompts x n",
        "P": "prompt width, padded on the left",
        "T": "response width, padded on the right",
        "S": "sequence width, S = P + T",
        "N": "tokens",
        "V": "vocabulary",
        "K": "top-k entries",
    }
)

#: Which end of a width grows when a join pads to the widest. S grows at both: P's growth left, T's right.
PadSide = Literal["left", "right", "both"]
PAD_SIDES: Mapping[str, PadSide] = MappingProxyType({"P": "left", "T": "right", "S": "both"})

#: Short dtype names, as plans and messages print them, and the torch names they stand for.
DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "f16": "float16",
        "bf16": "bfloat16",
        "f32": "float32",
        "f64": "float64",
        "i8": "int8",
        "i16": "int16",
        "i32": "int32",
        "i64": "int64",
        "u8": "uint8",
        "bool": "bool",
    }
)


@dataclass(frozen=True)
class ColumnType:
    """The dtype and dims of a column, printed as ``f32[B T]``; an object column is ``object[B]``."""

    dtype: str
    dims: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{' '.join(self.dims)}]"

    @property
    def is_object(self) -> bool:
        """True for a column of Python values."""
        return self.dtype == "object"


@dataclass(frozen=True)
class Column:
    """One entry of the legend.

    ``pad`` fills the places that padding adds. ``metric`` names the per-step statistics that the
    executor keeps of a row column (dims B) wherever it is written, e.g. ``reward/mean``.
    """

    name: str
    type: ColumnType
    meaning: str
    pad: float | int | bool = 0
    metric: str | None = None


def _column(name: str, dtype: str, dims: str, meaning: str, metric: str | None = None) -> Column:
    pad: float | int | bool = False if dtype == "bool" else 0.0 if dtype.startswith("f") else 0
    return Column(name, ColumnType(dtype, tuple(dims.split())), meaning, pad, metric)


_ENTRIES = (
    _column("messages", "object", "B", "the prompt as chat messages: a list of {role, content, ...}"),
    _column("answers", "object", "B", "the reference answer as text"),
    _column("data_source", "object", "B", "which kind of prompt this is; reports split by it"),
    _column("row_fields", "object", "B", "all fields of the data row, as they are in the file"),
    _column("response_text", "object", "B", "what the model wrote, decoded without special tokens"),
    _column("prompt_ids", "i64", "B P", "prompt tokens"),
    _column("prompt_mask", "bool", "B P", "True at prompt tokens"),
    _column("input_ids", "i64", "B S", "prompt and response tokens"),
    _column("attention_mask", "bool", "B S", "True at tokens of input_ids"),
    _column("position_ids", "i64", "B S", "positions that ignore padding"),
    _column("responses", "i64", "B T", "response tokens, end-of-sequence token included"),
    _column("response_mask", "bool", "B T", "True at tokens that are trained; may have holes (tool output)"),
    _column("response_lengths", "i64", "B", "tokens of the response", metric="response_length"),
    _column("truncated", "bool", "B", "True where the response was cut by a length limit", metric="response_truncated"),
    _column("temperatures", "f32", "B", "sampling temperature; log-probs are taken at it"),
    _column("rollout_logprobs", "f32", "B T", "log-probs of the responses, by the rollout engine"),
    _column("old_logprobs", "f32", "B T", "log-probs by the trainer before the update"),
    _column("rollout_weights", "f32", "B T", "weight of each trained token's policy loss; 0: rejected"),
    _column("ref_logprobs", "f32", "B T", "log-probs by the frozen reference"),
    _column("teacher_logprobs", "f32", "B T", "log-probs by the frozen teacher"),
    _column("teacher_topk_ids", "i64", "B T K", "the teacher's likeliest tokens at each place, likeliest first"),
    _column("teacher_topk_logprobs", "f32", "B T K", "the teacher's log-probs of these tokens"),
    _column("entropy", "f32", "B T", "entropy of the policy's next-token distribution, nats"),
    _column("sum_pi_squared", "f32", "B T", "sum of squared next-token probabilities over the vocabulary"),
    _column("values", "f32", "B T", "critic values"),
    _column("rewards", "f32", "B", "one reward for each row; NaN: unscorable", metric="reward"),
    _column("reward_details", "object", "B", "what a reward function said of the row beside its score, or None"),
    _column("token_rewards", "f32", "B T", "rewards placed on tokens: the whole reward, outcome included"),
    _column("reward_components", "f32", "B K", "several rewards for each row, side by side"),
    _column("penalized_rewards", "f32", "B", "one reward for each row, less the KL penalty of its tokens"),
    _column("advantages", "f32", "B T", "advantage of each trained token"),
    _column("returns", "f32", "B T", "value targets"),
    _column("policy_version", "i64", "B", "version of the weights that generated the row"),
)

#: Every column the built-in nodes exchange, by name.
LEGEND: Mapping[str, Column] = MappingProxyType({column.name: column for column in _ENTRIES})

#: Carried with every edge; a node may read ``group_ids`` and ``seeds`` without an edge passing them.
#: A row's seed is one for run seed, pipeline, step, call, prompt and sample: a hash of the first four and of the row
#: id, which is the prompt's number in the data stream times n plus the sample's. So no number depends on the batch,
#: on other rows, or on which process draws it.
ROW_IDS = "row_ids"
GROUP_IDS = "group_ids"
SEEDS = "seeds"
CARRIED = frozenset({ROW_IDS, GROUP_IDS, SEEDS})

#: The engine's own outputs, with gradient: names a loss may use, never a column.
ENGINE_OUTPUTS = frozenset({"new_logprobs", "new_entropy", "new_values"})


def pad_value(name: str, dtype: str) -> float | int | bool:
    """The fill of a column's padding: the legend's, else 0 or False by dtype."""
    if name in LEGEND:
        return LEGEND[name].pad
    return False if dtype == "bool" else 0


def refusal(name: str) -> str | None:
    """Why ``name`` may not name a written column, or None."""
    if not name.isidentifier():
        return "it is not a Python identifier"
    if name in CARRIED:
        return "every edge carries it already"
    if name.startswith("new_"):
        return "names that begin with `new_` are the engine's own outputs"
    if name in {"count", "index"}:
        return "the name clashes with a sequence method of the result tuple"
    return None
