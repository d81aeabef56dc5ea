"""Processes that share one engine, each with rows of its own: all of them draw the rows of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
from jaxtyping import Int64
from torch import Tensor

from dagrl.engines.rollout.base import PARTS, Response, RolloutEngine, samples_of
from dagrl.engines.weights import Weights
from dagrl.graph.roles import Samples, Sampling


class Joined(NamedTuple):
    """The prompts and seeds of all processes of an engine, by rank, and which of them are this process's."""

    prompts: list[list[int]]
    seeds: Int64[Tensor, " N"]
    own: range


class TensorParallelRollout:
    """An engine over ``size`` consecutive processes of the default group, as each of these sees it.

    The parts of the engine in these processes must be asked for the same: prompts and seeds are gathered on the way
    in, and each process keeps its own rows on the way out. All processes must make every call, in one order, a
    process without rows too; making this needs all processes of the default group.
    """

    def __init__(self, engine: RolloutEngine, *, size: int, pad_token_id: int) -> None:
        self._engine = engine
        self._size = size
        self._pad = pad_token_id
        group, _ = dist.new_subgroups(size, backend="gloo")
        self._group = cast("dist.ProcessGroup", group)

    @property
    def version(self) -> int | None:
        """That of the weights it generates from."""
        return self._engine.version

    @property
    def is_dead(self) -> bool:
        """Whether the engine is, in this process."""
        return self._engine.is_dead

    @property
    def weight_bytes(self) -> int:
        """Of this process's share."""
        return self._engine.weight_bytes

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Int64[Tensor, " B"], sampling: Sampling) -> Samples:
        """One response for each prompt of this process; it raises in all processes for a prompt of any."""
        return samples_of(self.stream(prompts, seeds, sampling), len(prompts), self._pad, seeds.device)

    def stream(
        self, prompts: Sequence[Sequence[int]], seeds: Int64[Tensor, " B"], sampling: Sampling
    ) -> Iterator[tuple[int, Response]]:
        """This process's rows as they finish; it must be read to its end, or the other processes wait."""
        joined = self.preprocess(prompts, seeds)
        return self.postprocess(self._engine.stream(joined.prompts, joined.seeds, sampling), joined.own)

    def preprocess(self, prompts: Sequence[Sequence[int]], seeds: Int64[Tensor, " B"]) -> Joined:
        """The rows of all processes of the engine, which are the same everywhere."""
        mine = ([list(prompt) for prompt in prompts], seeds.tolist())
        found: list[tuple[list[list[int]], list[int]]] = [mine] * self._size
        dist.all_gather_object(found, mine, group=self._group)
        start = sum(len(of_one) for of_one, _ in found[: dist.get_rank(self._group)])
        return Joined(
            [prompt for of_one, _ in found for prompt in of_one],
            torch.tensor([seed for _, of_one in found for seed in of_one], dtype=torch.int64),
            range(start, start + len(prompts)),
        )

    def postprocess(self, rows: Iterator[tuple[int, Response]], own: range) -> Iterator[tuple[int, Response]]:
        """Those of the rows that are this process's, by its own count."""
        return ((row - own.start, response) for row, response in rows if row in own)

    def load_weights(self, weights: Weights, version: int) -> None:
        """Take these weights in: whole ones, of which the engine in each process keeps its share."""
        self._engine.load_weights(weights, version)

    def sleep(self, level: int = 1) -> None:
        """Give memory back, in this process."""
        self._engine.sleep(level)

    def wake(self, tags: Sequence[str] = PARTS) -> None:
        """Have parts in memory again, in this process."""
        self._engine.wake(tags)

    def close(self) -> None:
        """Let go of everything, in this process."""
        self._engine.close()
