"""The rounds of a loop: how many there have been, which groups have passed, and when it is over."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from dagrl.compiler.plan import LoopOp
from dagrl.data.metrics import Metrics, Sum

_LOG = logging.getLogger(__name__)


@dataclass
class Rounds:
    """A loop while it runs; ``passed`` are the row ids of all its rounds that passed, ``n`` for each whole group."""

    op: LoopOp
    n: int
    number: int = 0
    drawn: int = 0
    passed: Int64[Tensor, " K"] = torch.empty(0, dtype=torch.int64)  # noqa: RUF009 - replaced, never written to

    def begin(self, num_groups: int) -> None:
        """A round with that many prompts."""
        self.number += 1
        self.drawn += num_groups

    @property
    def groups(self) -> Int64[Tensor, " M"]:
        """The groups that have passed, whole or in part, in ascending order."""
        return (self.passed // self.n).unique()

    @property
    def is_over(self) -> bool:
        """Whether there are enough groups, or have been all rounds."""
        return self.number == self.op.max_rounds or len(self.groups) >= self.op.groups

    def kept(self) -> Int64[Tensor, " K"]:
        """The rows of the lowest groups, as many groups as the loop wants."""
        return self.passed[torch.isin(self.passed // self.n, self.groups[: self.op.groups])]

    def metrics(self) -> Metrics:
        """What the rounds have brought."""
        passed, wanted = len(self.groups), self.op.groups
        counts = {
            "rounds": self.number,
            "groups_kept": min(passed, wanted),
            "groups_dropped": self.drawn - passed,
            "groups_left_over": max(0, passed - wanted),
            "short": passed < wanted,
        }
        return Metrics({f"{self.op.id}/{name}": Sum(float(count)) for name, count in counts.items()})

    def warn_if_short(self, step: int) -> None:
        """Say so where there are fewer groups than wanted."""
        found, wanted = len(self.groups), self.op.groups
        if found < wanted:
            what = "trains on these" if found else "trains on nothing"
            _LOG.warning(
                "step %d %s: %d of %d groups passed `%s` (%s) in %d rounds of %d prompts in all",
                step, what, found, wanted, self.op.id, self.op.at, self.number, self.drawn,
            )  # fmt: skip
