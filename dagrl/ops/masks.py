"""Padding, masks and positions, and reductions that never read a masked place.

Masks come from lengths, never from token ids, so a pad id equal to the end-of-sequence id is harmless.
A masked place may hold NaN or inf: it changes neither a value nor a gradient. NaN at an unmasked place
is never hidden.
"""

from collections.abc import Sequence
from math import inf

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from dagrl.data.metrics import Max, Mean, Min


def mask_from_lengths(lengths: Int64[Tensor, " B"], width: int) -> Bool[Tensor, "B T"]:
    """True at the first ``lengths[b]`` of ``width`` places; a row of length 0 is all False."""
    return torch.arange(width, device=lengths.device) < lengths.unsqueeze(-1)


def position_ids(attention_mask: Bool[Tensor, "B S"]) -> Int64[Tensor, "B S"]:
    """Positions that ignore padding: cumsum(mask) - 1, at least 0.

    ``[0, 0, 1, 1, 1, 1]`` gives ``[0, 0, 0, 1, 2, 3]``; right padding repeats the last position.
    """
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def pad_left(
    rows: Sequence[Sequence[int]], pad: int, *, width: int | None = None
) -> tuple[Int64[Tensor, "B P"], Bool[Tensor, "B P"]]:
    """Rows of token ids, padded on the left with ``pad``, and the mask of their tokens.

    The width is the longest row's unless given.

    Raises:
        ValueError: if a row is longer than ``width``.
    """
    lengths, width = _measure(rows, width)
    ids = [[pad] * (width - len(row)) + list(row) for row in rows]
    return _ids(ids, width), mask_from_lengths(lengths, width).flip(-1)


def pad_right(
    rows: Sequence[Sequence[int]], pad: int, *, width: int | None = None
) -> tuple[Int64[Tensor, "B T"], Bool[Tensor, "B T"], Int64[Tensor, " B"]]:
    """Rows of token ids, padded on the right with ``pad``, the mask of their tokens, and their lengths.

    The width is the longest row's unless given.

    Raises:
        ValueError: if a row is longer than ``width``.
    """
    lengths, width = _measure(rows, width)
    ids = [list(row) + [pad] * (width - len(row)) for row in rows]
    return _ids(ids, width), mask_from_lengths(lengths, width), lengths


def _measure(rows: Sequence[Sequence[int]], width: int | None) -> tuple[Int64[Tensor, " B"], int]:
    lengths = [len(row) for row in rows]
    longest = max(lengths, default=0)
    if width is not None and longest > width:
        raise ValueError(f"a row has {longest} tokens, more than the width of {width}")
    return torch.tensor(lengths, dtype=torch.int64), longest if width is None else width


def _ids(rows: list[list[int]], width: int) -> Int64[Tensor, "B T"]:
    return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), width)


def join_sequences(
    prompt_ids: Int64[Tensor, "B P"],
    prompt_mask: Bool[Tensor, "B P"],
    responses: Int64[Tensor, "B T"],
    lengths: Int64[Tensor, " B"],
) -> tuple[Int64[Tensor, "B S"], Bool[Tensor, "B S"], Int64[Tensor, "B S"]]:
    """Prompt and response side by side: ``input_ids``, ``attention_mask`` and ``position_ids``, S = P + T.

    ``lengths`` counts the tokens of each response, whether they are trained or not.
    """
    attention_mask = torch.cat([prompt_mask, mask_from_lengths(lengths, responses.shape[1])], dim=1)
    return torch.cat([prompt_ids, responses], dim=1), attention_mask, position_ids(attention_mask)


def where_masked(
    values: Shaped[Tensor, "*dims"], mask: Bool[Tensor, "*dims"], fill: float = 0.0
) -> Shaped[Tensor, "*dims"]:
    """``values`` where the mask is True, ``fill`` elsewhere, with the gradient there exactly 0.

    Apply it before exp, log or a product: a NaN or inf that entered one of those comes back
    in the backward pass as 0 * inf.
    """
    return values.masked_fill(~mask, fill)


def masked_sum(
    values: Float[Tensor, "*dims"], mask: Bool[Tensor, "*dims"], dim: int | None = None
) -> Float[Tensor, "..."]:
    """The sum over unmasked places, of everything or along ``dim``; 0 where there is none."""
    return where_masked(values, mask).sum(dim)


def masked_mean(
    values: Float[Tensor, "*dims"], mask: Bool[Tensor, "*dims"], dim: int | None = None
) -> Float[Tensor, "..."]:
    """The mean over unmasked places, of everything or along ``dim``; 0 where there is none."""
    return masked_sum(values, mask, dim) / mask.sum(dim).clamp(min=1)


def row_mean(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """Each row's mean over its unmasked places; 0 for a row without one."""
    return masked_mean(values, mask, dim=1)


def mean_metric(values: Shaped[Tensor, "*dims"], mask: Bool[Tensor, "*dims"]) -> Mean:
    """The mean over unmasked places as a float64 sum and a count, so that parts merge exactly."""
    return Mean(where_masked(values.detach().double(), mask).sum().item(), mask.sum().item())


def max_metric(values: Shaped[Tensor, "*dims"], mask: Bool[Tensor, "*dims"]) -> Max:
    """The largest unmasked value; of none it is -inf, which any other part replaces."""
    return Max(where_masked(values.detach().double(), mask, -inf).amax().item() if mask.any() else -inf)


def min_metric(values: Shaped[Tensor, "*dims"], mask: Bool[Tensor, "*dims"]) -> Min:
    """The smallest unmasked value; of none it is inf, which any other part replaces."""
    return Min(where_masked(values.detach().double(), mask, inf).amin().item() if mask.any() else inf)
