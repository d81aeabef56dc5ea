"""Dispatch and collect functions of the modes that split batches over the ranks of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dagrl.controller.batches import is_batch
from dagrl.controller.dispatch import Arguments
from dagrl.controller.future import DataProtoFuture, join_shards
from dagrl.controller.mesh import Mesh
from dagrl.controller.received import ORDERS_KEY, Orders, Part
from dagrl.controller.shards import Misfit, Placed, Split
from dagrl.controller.shares import IN_ORDER, Rule
from dagrl.errors import DispatchError

#: The keyword under which a dispatch function says that all ranks got equally many rows, none of them padding.
EVEN_KEY = "_dagrl_even"


class HasMesh(Protocol):
    """What these functions need of a worker group."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        ...

    def mesh(self, name: str | None) -> Mesh:
        """Which ranks share a shard."""
        ...


@dataclass(frozen=True)
class SplitDispatch:
    """Batches, also those that are futures, split over the ranks; anything else once for each rank.

    A batch that this process holds is split here. The shards of a future go from worker to worker: as they are where
    they are as many and as long as the ranks need, or else whole to each rank, which takes its part. ``materialize``
    false leaves futures to the method. ``padded`` makes the ranks' shards equally long. Ranks of mesh ``mesh_name``
    with the same dp rank get the same shard.
    """

    padded: bool = True
    with_func: bool = False
    mesh_name: str | None = None
    rule: Rule = IN_ORDER
    materialize: bool = True

    def __call__(self, group: HasMesh, *args: Any, **kwargs: Any) -> Arguments:
        """The arguments of each rank."""
        if self.with_func and not (args and callable(args[0])):
            raise DispatchError("the first argument must be a function, which every rank gets")
        mesh = group.mesh(self.mesh_name)
        values: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
        by_dp_rank, orders, even = self._split(values, mesh.size)
        by_rank = [by_dp_rank[dp_rank] for dp_rank in mesh.dp_ranks]
        lists = {which: [items[which] for items in by_rank] for which in values}
        named: dict[str, Any] = {which: items for which, items in lists.items() if isinstance(which, str)}
        told = [
            replace(orders[dp_rank], returns=self.mesh_name is None or rank in mesh.collecting)
            for rank, dp_rank in enumerate(mesh.dp_ranks)
        ]
        if any(each != Orders() for each in told):
            named[ORDERS_KEY] = told
        return tuple(items for which, items in lists.items() if isinstance(which, int)), {**named, EVEN_KEY: even}

    def _split(
        self, values: Mapping[int | str, Any], parts: int
    ) -> tuple[list[dict[int | str, Any]], list[Orders], bool]:
        """For each dp rank its arguments and orders, and whether all get equally many rows in order."""
        futures = [value for value in values.values() if isinstance(value, DataProtoFuture)]
        if not futures or not self.materialize:
            split = Split.of(values, parts, self.rule, padded=self.padded)
            return [_items(values, split, part) for part in range(parts)], [Orders()] * parts, split.even
        shards_fit = self.rule.keeps_order and all(future.even and len(future.futures) == parts for future in futures)
        if shards_fit:
            split = Split.of(values, parts, self.rule, padded=self.padded)
            held = any(map(is_batch, values.values()))
            if split.even or not held:
                orders = Orders(aligned=held or len(futures) > 1)
                return [_items(values, split, part, shards=True) for part in range(parts)], [orders] * parts, True
        each = [Orders(Part(part, parts, self.rule, self.padded)) for part in range(parts)]
        return [dict(values)] * parts, each, False


@dataclass(frozen=True)
class CollectBatches:
    """The collecting ranks' batches as one, in the order of the call's; None if all returned None."""

    mesh_name: str | None = None

    def __call__(self, group: HasMesh, outputs: list[Any]) -> Any:
        """The call's result from what every rank returned."""
        return self.joined([outputs[rank] for rank in group.mesh(self.mesh_name).collecting])

    @property
    def joined(self) -> Callable[[list[Any]], Any]:
        """What makes one batch of the collecting ranks'."""
        return join_shards


def collect_each(group: HasMesh, outputs: list[Any]) -> list[Any]:
    """What the ranks returned, in rank order.

    Raises:
        DispatchError: when a rank's batch cannot be told from its padding.
    """
    for rank, output in enumerate(outputs):
        if isinstance(output, Misfit):
            raise DispatchError(f"rank {rank} {output.wrong}")
    return [output.batch if isinstance(output, Placed) else output for output in outputs]


def make_nd_compute_dataproto_dispatch_fn(mesh_name: str) -> dict[str, Callable[..., Any]]:
    """A mode for ranks on a mesh of several dims: batches are split along dp, and the ranks that share a shard get it.

    Every worker says with `set_dispatch_collect` which shard it takes and whether its result is collected. The group
    asks for that on the first call of the mesh, and again when its workers have been rebuilt.
    """
    return {"dispatch_fn": SplitDispatch(mesh_name=mesh_name), "collect_fn": CollectBatches(mesh_name)}


def _items(values: Mapping[int | str, Any], split: Split, part: int, *, shards: bool = False) -> dict[int | str, Any]:
    """The arguments of one dp rank."""

    def item(value: Any) -> Any:
        if isinstance(value, DataProtoFuture):
            return value.futures[part] if shards else value.chunk(len(split.shares))[part]
        return split.shard(value, part) if is_batch(value) else value

    return {which: item(value) for which, value in values.items()}
