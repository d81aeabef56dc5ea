"""Which ranks of a worker group share a shard, and which of them give its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dagrl.errors import DispatchError

#: What a worker says of a mesh: its place along dp, and whether its results are collected.
MeshPlace = tuple[int, bool]


@dataclass(frozen=True)
class Mesh:
    """``dp_ranks`` by rank; ``collecting`` is for each dp rank the one rank whose results count."""

    dp_ranks: tuple[int, ...]
    collecting: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of shards."""
        return len(self.collecting)

    @classmethod
    def flat(cls, world_size: int) -> Mesh:
        """Every rank with a shard of its own."""
        return cls(tuple(range(world_size)), tuple(range(world_size)))

    @classmethod
    def of(cls, name: str, places: Sequence[MeshPlace | None]) -> Mesh:
        """The mesh that the workers describe, in rank order.

        Raises:
            DispatchError: when a rank knows no such mesh, or not exactly one rank collects for each dp rank.
        """
        known = {rank: place for rank, place in enumerate(places) if place is not None}
        missing = sorted(set(range(len(places))) - set(known))
        if missing:
            fix = f"call `set_dispatch_collect({name!r}, ...)` in the worker's constructor or before this call"
            raise DispatchError(f"rank {missing[0]} knows no mesh `{name}`: {fix}")
        size = max(dp_rank for dp_rank, _ in known.values()) + 1
        collecting = [_collecting(name, dp_rank, known) for dp_rank in range(size)]
        return cls(tuple(dp_rank for dp_rank, _ in known.values()), tuple(collecting))


def _collecting(name: str, dp_rank: int, places: Mapping[int, MeshPlace]) -> int:
    ranks = [rank for rank, place in places.items() if place == (dp_rank, True)]
    if len(ranks) != 1:
        holders = [rank for rank, place in places.items() if place[0] == dp_rank]
        what = f"mesh `{name}`: ranks {holders} have dp rank {dp_rank}, and {ranks} of them are marked as collecting"
        raise DispatchError(f"{what}: exactly one must be")
    return ranks[0]
