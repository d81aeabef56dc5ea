"""Random inputs for declared columns: those of the legend mean what it says, others are drawn by dtype and dims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args, get_origin

import torch
from jaxtyping import Int64
from torch import Tensor

from dagrl.contracts.batch import Batch, Column
from dagrl.data.columns import DTYPES, LEGEND, ColumnType
from dagrl.data.join import Widths
from dagrl.data.objects import object_array
from dagrl.graph.annotations import resolve_hints, split_optional
from dagrl.graph.contract import Examples, Read
from dagrl.ops.masks import mask_from_lengths, position_ids
from dagrl.zoo import open_task

NUM_GROUPS = 4
ROWS_OF_GROUP = 3
_ROWS = NUM_GROUPS * ROWS_OF_GROUP
_P, _T, _OTHER = 5, 6, 3
_PROMPT_LENGTHS = (3, 5, 4, 2)
_RESPONSE_LENGTHS = (6, 3, 5, 1, 4, 2, 6, 5, 3, 2, 4, 6)
_TOKEN = ColumnType("f32", ("B", "T"))
#: Token ids that any vocabulary has.
_LOW, _HIGH = 5, 25
#: Drawn for engine outputs and to weigh the places of a loss; no node reads them.
WEIGHTS = "loss_weights"
LOGITS = "new_logits"


def make_batch(reads: Sequence[Read], function: Callable[..., Any], examples: Examples) -> Batch:
    """Twelve rows: four groups of three, scattered; responses of 1 to 6 tokens, some with a masked hole."""
    draw = torch.Generator().manual_seed(0)
    group = torch.arange(_ROWS) % NUM_GROUPS
    columns: dict[str, Column] = {**_tokens(group, draw), **_texts(group), **_numbers(draw), **_distributions(draw)}
    types = {name: LEGEND[name].type for name in columns if name in LEGEND}
    types |= dict.fromkeys(("new_logprobs", "new_entropy", "new_values", WEIGHTS), _TOKEN)
    types[LOGITS] = ColumnType("f32", ("B", "T", "V"))
    hints = resolve_hints(function)
    for read in reads:
        if read.name in examples:
            columns[read.name] = _from_examples(examples[read.name], read.type)
        elif read.name not in columns or types[read.name] != read.type:
            columns[read.name] = _unknown(read, hints.get(read.name, Any), draw)
        types[read.name] = read.type
    return Batch(
        columns=columns,
        types=types,
        widths=Widths(_P, _T),
        group_ids=group * 10_000_000_019 + 7,
        seeds=torch.randint(-(2**62), 2**62, (_ROWS,), generator=draw),
        positions=group + 1,
    )


def _tokens(group: Int64[Tensor, " B"], draw: torch.Generator) -> dict[str, Column]:
    lengths = torch.tensor(_RESPONSE_LENGTHS)
    prompt_mask = mask_from_lengths(torch.tensor(_PROMPT_LENGTHS)[group], _P).flip(-1)
    real = mask_from_lengths(lengths, _T)
    attention_mask = torch.cat([prompt_mask, real], dim=1)
    ids = torch.randint(_LOW, _HIGH, attention_mask.shape, generator=draw) * attention_mask
    hole = (torch.arange(_T) == 1) & (lengths >= 4).unsqueeze(-1) & (torch.arange(_ROWS) % 2 == 0).unsqueeze(-1)
    return {
        "prompt_ids": ids[:, :_P],
        "prompt_mask": prompt_mask,
        "input_ids": ids,
        "attention_mask": attention_mask,
        "position_ids": position_ids(attention_mask),
        "responses": ids[:, _P:],
        "response_mask": real & ~hole,
        "response_lengths": lengths,
        "truncated": lengths == _T,
    }


def _texts(group: Int64[Tensor, " B"]) -> dict[str, Column]:
    task = open_task("larger", "train")
    rows = [task[place] for place in range(NUM_GROUPS)]
    numbers = group.tolist()
    texts = [(rows[g].answer, f" {rows[g].answer}\n", "no", "")[place % 4] for place, g in enumerate(numbers)]
    return {
        "messages": object_array([[{"role": "user", "content": rows[g].prompt}] for g in numbers]),
        "answers": object_array([rows[g].answer for g in numbers]),
        "data_source": object_array([rows[g].data_source for g in numbers]),
        "row_fields": object_array([rows[g]._asdict() for g in numbers]),
        "response_text": object_array(texts),
    }


def _numbers(draw: torch.Generator) -> dict[str, Column]:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    logprobs = -2 * normal(_ROWS, _T).abs() - 0.1
    near = {name: logprobs + 0.3 * normal(_ROWS, _T) for name in ("rollout_logprobs", "ref_logprobs", "new_logprobs")}
    numbers = {name: normal(_ROWS, _T) for name in ("values", "token_rewards", "advantages", "returns", "new_values")}
    return {
        **near,
        **numbers,
        "old_logprobs": logprobs,
        "entropy": normal(_ROWS, _T).abs(),
        "new_entropy": normal(_ROWS, _T).abs(),
        "temperatures": torch.where(torch.arange(_ROWS) % 2 == 0, 1.0, 0.7),
        "rewards": normal(_ROWS),
        "policy_version": torch.zeros(_ROWS, dtype=torch.int64),
        WEIGHTS: normal(_ROWS, _T),
        "sum_pi_squared": logprobs.exp().square()
        + (1 - logprobs.exp()).square() * torch.rand(_ROWS, _T, generator=draw),
        "reward_components": normal(_ROWS, _OTHER),
        "rollout_weights": (0.3 * normal(_ROWS, _T)).exp(),
        "penalized_rewards": normal(_ROWS),
    }


def _distributions(draw: torch.Generator) -> dict[str, Column]:
    """Logits, and a teacher as it is known by its likeliest tokens."""
    logits = 2 * torch.randn(_ROWS, _T, _HIGH, generator=draw)
    teacher = (logits + torch.randn(logits.shape, generator=draw)).log_softmax(-1)
    highest, ids = teacher.topk(_OTHER)
    return {
        LOGITS: logits,
        "teacher_logprobs": highest[..., 0],
        "teacher_topk_ids": ids,
        "teacher_topk_logprobs": highest,
    }


def _from_examples(values: Sequence[Any], kind: ColumnType) -> Column:
    rows = [values[place % len(values)] for place in range(_ROWS)]
    return object_array(rows) if kind.is_object else torch.tensor(rows, dtype=getattr(torch, DTYPES[kind.dtype]))


def _unknown(read: Read, hint: Any, draw: torch.Generator) -> Column:
    if read.type.is_object:
        inner = (*get_args(split_optional(hint)[0]), Any)[0]
        value = _OBJECTS.get(get_origin(inner) or inner, str)
        return object_array([value(place) for place in range(_ROWS)])
    sizes = {"B": _ROWS, "P": _P, "T": _T, "S": _P + _T}
    shape = [sizes.get(dim, _OTHER) for dim in read.type.dims]
    dtype: torch.dtype = getattr(torch, DTYPES[read.type.dtype])
    if dtype == torch.bool:
        return _coins(shape, draw)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=draw).to(dtype)
    return torch.randint(0, 9, shape, generator=draw).to(dtype)


def _coins(shape: Sequence[int], draw: torch.Generator) -> Tensor:
    return torch.rand(*shape, generator=draw) < 0.5


_OBJECTS: Mapping[Any, Callable[[int], Any]] = {
    int: int,
    float: lambda place: place / 2,
    bool: lambda place: place % 2 == 0,
    **dict.fromkeys((dict, Mapping), lambda place: {"number": place}),
    **dict.fromkeys((list, Sequence), lambda place: [str(place)]),
}
