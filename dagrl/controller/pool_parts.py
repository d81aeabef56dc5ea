"""Pools made of others: parts of one, two as one, and the pools of a whole program by role."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any

from ray.util.placement_group import PlacementGroup

from dagrl.controller.connection import connection
from dagrl.controller.ray_pool import Bundle, RayResourcePool, check_fits, sort_placement_group_by_node_ip
from dagrl.errors import ClusterError, Problem


class _BorrowedPool(RayResourcePool):
    """Processes on placement groups that other pools have made, and give back."""

    def __init__(self, groups: Sequence[PlacementGroup], bundles: Sequence[Bundle], **kwargs: Any) -> None:
        sizes = [len(list(same)) for _, same in groupby(bundles, key=lambda bundle: bundle[0])]
        super().__init__(sizes, **kwargs)
        self._bundles = list(bundles)
        self._groups = list(groups)
        self._ray = connection()

    def get_placement_groups(
        self, strategy: str = "STRICT_PACK", name: str | None = None, device_name: str = "cuda"
    ) -> list[PlacementGroup]:
        """The placement groups of the pools that it is made of.

        Raises:
            ClusterError: when they have ended with their Ray.
        """
        if self._groups is None or self._ray != connection():
            what = f"pool `{self.name_prefix}` is made of the processes of others, whose Ray has ended."
            raise ClusterError([Problem(what, fix="split or merge these again")])
        return self._groups

    def bundles(self) -> list[Bundle]:
        """The bundle of each rank."""
        self.get_placement_groups()
        return self._bundles

    def release(self) -> None:
        """Nothing: the pools that made the placement groups give them back."""

    def _sizes(self) -> list[int]:
        return self._store


class SubRayResourcePool(_BorrowedPool):
    """Some neighbouring processes of placement groups that exist: ``subgroup_world_size`` from a bundle on.

    Bundles count through all placement groups. The resources are those of the pool that made these.

    Raises:
        ClusterError: when there are not so many bundles.
    """

    def __init__(
        self,
        placement_groups: Sequence[PlacementGroup],
        start_bundle_index: int,
        subgroup_world_size: int,
        **kwargs: Any,
    ) -> None:
        every = [(group, index) for group in placement_groups for index in range(group.bundle_count)]
        end = start_bundle_index + subgroup_world_size
        if not 0 <= start_bundle_index < end <= len(every):
            what = f"bundles {start_bundle_index} to {end - 1} are no part of the {len(every)} there are."
            raise ClusterError([Problem(what, fix="give `start_bundle_index` and `subgroup_world_size` within them")])
        options = {name: value for name, value in kwargs.items() if name != "process_on_nodes"}
        super().__init__(placement_groups, every[start_bundle_index:end], **options)
        self.start_bundle_index = start_bundle_index
        self.subgroup_world_size = subgroup_world_size

    @property
    def world_size(self) -> int:
        """Its processes."""
        return self.subgroup_world_size


def split_resource_pool(
    resource_pool: RayResourcePool | SubRayResourcePool, split_size: int | list[int]
) -> list[SubRayResourcePool]:
    """Parts of a pool of ``split_size`` processes each, or of the sizes in a list, in rank order.

    Raises:
        ClusterError: when the sizes do not add up to the pool's.
    """
    whole = resource_pool.world_size
    sizes = [split_size] * max(whole // max(split_size, 1), 1) if isinstance(split_size, int) else list(split_size)
    if sum(sizes) != whole or min(sizes, default=0) < 1:
        what = f"pool `{resource_pool.name_prefix}` of {whole} processes does not split into parts of {split_size}."
        raise ClusterError([Problem(what, fix="give sizes of at least 1 that add up to the pool's")])
    first = resource_pool.start_bundle_index if isinstance(resource_pool, SubRayResourcePool) else 0
    groups = resource_pool.get_placement_groups()
    starts = accumulate(sizes[:-1], initial=first)
    return [
        SubRayResourcePool(groups, start, size, **_options(resource_pool))
        for start, size in zip(starts, sizes, strict=True)
    ]


def merge_resource_pool(rp1: RayResourcePool, rp2: RayResourcePool) -> RayResourcePool:
    """Two pools as one, its ranks by the addresses of the nodes; both keep their resources.

    Raises:
        ClusterError: when they differ in more than their processes, or share some.
    """
    for name, one, other in ((name, value, _options(rp2)[name]) for name, value in _options(rp1).items()):
        if one != other and name != "name_prefix":
            what = f"pools `{rp1.name_prefix}` and `{rp2.name_prefix}` differ in `{name}`: {one} and {other}."
            raise ClusterError([Problem(what, fix="merge pools that are alike")])
    bundles = [*rp1.bundles(), *rp2.bundles()]
    if len(set(bundles)) < len(bundles):
        what = f"pools `{rp1.name_prefix}` and `{rp2.name_prefix}` have processes in common."
        raise ClusterError([Problem(what, fix="merge pools that have none")])
    groups = sort_placement_group_by_node_ip(list(dict.fromkeys(group for group, _ in bundles)))
    ordered = sorted(bundles, key=lambda bundle: groups.index(bundle[0]))
    return _BorrowedPool(groups, ordered, **{**_options(rp1), "name_prefix": f"{rp1.name_prefix}_{rp2.name_prefix}"})


@dataclass
class ResourcePoolManager:
    """The pools of a program by name, ``{"main": [8, 8]}``, and which role is on which, ``{"actor": "main"}``."""

    resource_pool_spec: dict[str, list[int]]
    mapping: Mapping[Any, str]
    max_colocate_count: int = 3
    resource_pool_dict: dict[str, RayResourcePool] = field(default_factory=dict[str, RayResourcePool])
    use_gpu: bool = True

    def create_resource_pool(self) -> None:
        """Make the pools.

        Raises:
            ClusterError: when the cluster has not what they need together.
        """
        every = [count for counts in self.resource_pool_spec.values() for count in counts]
        pools = {
            name: RayResourcePool(counts, self.use_gpu, name, self.max_colocate_count)
            for name, counts in self.resource_pool_spec.items()
        }
        check_fits("+".join(pools), every, {"CPU": 1, **({"GPU": 1} if self.use_gpu else {})})
        self.resource_pool_dict.update(pools)

    def get_resource_pool(self, role: Hashable) -> RayResourcePool:
        """The pool that the role is on.

        Raises:
            ClusterError: when the role or its pool is unknown, or the pools are not made yet.
        """
        name = self.mapping.get(role)
        if name is None or name not in self.resource_pool_dict:
            what = f"role `{role}` is on pool `{name}`." if name else f"role `{role}` is on no pool."
            fix = f"name one of {sorted(self.resource_pool_spec)} in `mapping`, and call `create_resource_pool` first"
            raise ClusterError([Problem(what, fix=fix)])
        return self.resource_pool_dict[name]

    def get_n_gpus(self) -> int:
        """The processes of all pools, each of which has a GPU."""
        return sum(count for counts in self.resource_pool_spec.values() for count in counts)


def _options(pool: RayResourcePool) -> dict[str, Any]:
    return {
        "use_gpu": pool.use_gpu,
        "name_prefix": pool.name_prefix,
        "max_colocate_count": pool.max_colocate_count,
        "detached": pool.detached,
        "accelerator_type": pool.accelerator_type,
    }
