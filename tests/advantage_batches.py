"""Random rows for advantages: scattered groups, one of a single row, holes, an empty row, padding, unscorable rows."""

from dataclasses import dataclass
from math import inf, nan

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

POISONS = (nan, inf, -inf, 1e30)


@dataclass(frozen=True)
class Rows:
    """A batch; floats are float64 and lists of Python numbers hold exactly the same."""

    rewards: Float64[Tensor, " B"]
    group_ids: Int64[Tensor, " B"]
    mask: Bool[Tensor, "B T"]
    token_rewards: Float64[Tensor, "B T"]
    values: Float64[Tensor, "B T"]

    @property
    def lists(self) -> tuple[list[float], list[int], list[list[bool]]]:
        return self.rewards.tolist(), self.group_ids.tolist(), self.mask.tolist()


def random_rows(seed: int, *, size: int = 18, width: int = 9, binary: bool = False) -> Rows:
    draw = torch.Generator().manual_seed(seed)
    rewards = torch.randn(size, generator=draw, dtype=torch.float64)
    if binary:
        rewards = (rewards > 0).double()
    rewards[torch.rand(size, generator=draw) < 0.15] = nan
    ids = torch.randint(-3, 2, (size,), generator=draw) * 10**10 + 17
    ids[int(torch.randint(size, (1,), generator=draw))] = 5  # a group of one
    lengths = torch.randint(1, width, (size,), generator=draw)
    mask = (torch.arange(width) < lengths.unsqueeze(1)) & (torch.rand(size, width, generator=draw) < 0.7)
    mask[int(torch.randint(size, (1,), generator=draw))] = False  # an empty row
    both = torch.randn(2, size, width, generator=draw, dtype=torch.float64)
    return Rows(rewards, ids, mask, both[0], both[1])


def poisoned(values: Tensor, mask: Bool[Tensor, "B T"], poison: float) -> Tensor:
    """The values with ``poison`` wherever nothing is trained."""
    return values.masked_fill(~mask, poison)
