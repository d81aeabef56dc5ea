"""A resource pool on Ray: a placement group for each node, and in it a bundle for each process."""

import ipaddress
import math
import time
from collections.abc import Sequence
from typing import Any, Protocol
from weakref import WeakSet

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from dagrl.controller.connection import connection
from dagrl.controller.resource_pool import ResourcePool
from dagrl.errors import ClusterError, Problem

#: How long resources that the cluster has may stay in use by others.
_PATIENCE_SECONDS = 20.0


#: A placement group and the place of a bundle in it.
Bundle = tuple[PlacementGroup, int]
#: What Ray calls the devices of a kind.
_DEVICES = {"cuda": "GPU", "npu": "NPU"}


class Tenant(Protocol):
    """Workers that take a share of some bundles."""

    @property
    def ended(self) -> bool:
        """Whether the workers have been ended."""
        ...

    @property
    def bundles(self) -> frozenset[Bundle]:
        """The bundles."""
        ...


#: The workers of all pools of this program, for pools may be parts of each other.
_TENANTS: WeakSet[Tenant] = WeakSet()


class RayResourcePool(ResourcePool):
    """Processes by node on a Ray cluster, each with one CPU and, with ``use_gpu``, one GPU.

    Up to ``max_colocate_count`` worker groups share a process's CPU and GPU. The CPUs are those that Ray was told of,
    which on one machine may be more than there are. A pool that is ``detached`` outlives this program.
    """

    def __init__(
        self,
        process_on_nodes: Sequence[int] | None = None,
        use_gpu: bool = True,
        name_prefix: str | None = None,
        max_colocate_count: int = 10,
        detached: bool = False,
        accelerator_type: str | None = None,
    ) -> None:
        super().__init__(process_on_nodes, max_colocate_count)
        self.use_gpu = use_gpu
        self.name_prefix = name_prefix or "pool"
        self.detached = detached
        self.accelerator_type = accelerator_type
        self._device = _DEVICES["cuda"]
        self._groups: list[PlacementGroup] | None = None
        self._ray = ""

    def get_placement_groups(
        self, strategy: str = "STRICT_PACK", name: str | None = None, device_name: str = "cuda"
    ) -> list[PlacementGroup]:
        """The placement groups, sorted by the addresses of their nodes as numbers; made on the first call.

        ``name`` is what Ray calls them, with a number for each; ``device_name`` is `cuda` or `npu`.

        Raises:
            ClusterError: when the cluster has not what the pool needs, or others keep it in use.
        """
        if self._groups is None or self._ray != connection():
            self._device = _device(device_name)
            check_fits(self.name_prefix, self._store, self._bundle())
            self._groups, self._ray = self._make(strategy, name), connection()
        return self._groups

    def bundles(self) -> list[Bundle]:
        """The bundle of each rank."""
        return [(group, index) for group in self.get_placement_groups() for index in range(group.bundle_count)]

    def admit(self, tenant: Tenant) -> None:
        """Let workers onto their bundles.

        Raises:
            ClusterError: when as many as may share one are there already; Ray would let them wait for ever.
        """
        others = [other for other in _TENANTS if not other.ended and other is not tenant]
        living = max((sum(bundle in other.bundles for other in others) for bundle in tenant.bundles), default=0)
        if living >= self.max_colocate_count:
            what = f"pool `{self.name_prefix}` has {living} worker groups, and `max_colocate_count` is as many."
            raise ClusterError([Problem(what, fix="raise `max_colocate_count`, or `kill()` a group first")])
        _TENANTS.add(tenant)

    def share(self) -> dict[str, Any]:
        """What a worker of one of the pool's groups asks Ray for."""
        part = math.floor(10_000 / self.max_colocate_count) / 10_000
        device = part if self.use_gpu else 0
        if self._device == _DEVICES["cuda"]:
            return {"num_cpus": part, "num_gpus": device}
        return {"num_cpus": part, "resources": {self._device: device} if device else {}}

    def local_world_size_list(self) -> list[int]:
        """For each rank, how many processes its node has, in the order of the placement groups."""
        return [size for size in self._sizes() for _ in range(size)]

    def local_rank_list(self) -> list[int]:
        """For each rank, its place on its node, in the order of the placement groups."""
        return [place for size in self._sizes() for place in range(size)]

    def release(self) -> None:
        """Give the resources back; workers that still use them are ended by Ray."""
        if self._ray == connection():
            for group in self._groups or []:
                remove_placement_group(group)
        self._groups = None

    def _sizes(self) -> list[int]:
        return self._store if self._groups is None else [group.bundle_count for group in self._groups]

    def _bundle(self) -> dict[str, float]:
        bundle: dict[str, float] = {"CPU": 1}
        if self.use_gpu:
            bundle[self._device] = 1
        if self.accelerator_type is not None:
            bundle[self.accelerator_type] = 1e-4
        return bundle

    def _make(self, strategy: str, name: str | None) -> list[PlacementGroup]:
        lifetime = "detached" if self.detached else None
        groups = [
            placement_group([self._bundle()] * size, strategy, f"{name}_{node}" if name else "", lifetime)
            for node, size in enumerate(self._store)
        ]
        end = time.monotonic() + _PATIENCE_SECONDS
        if not all(group.wait(max(end - time.monotonic(), 0.1)) for group in groups):
            for group in groups:
                remove_placement_group(group)
            raise ClusterError([_in_use(self.name_prefix, self._bundle(), self.world_size)])
        return sort_placement_group_by_node_ip(groups)


def check_fits(name: str, process_on_nodes: Sequence[int], bundle: dict[str, float]) -> None:
    """See that the cluster has what a pool needs, used or not.

    Raises:
        ClusterError: saying what it needs and what there is.
    """
    nodes: list[dict[str, float]] = [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]
    for resource, amount in bundle.items():
        needed = amount * sum(process_on_nodes)
        there = sum(node.get(resource, 0) for node in nodes)
        if needed > there:
            what = f"pool `{name}` needs {needed:g} {resource}, cluster has {there:g}."
            raise ClusterError([Problem(what, fix=_fix(resource))])
    left = [min(math.floor(node.get(key, 0) / amount) for key, amount in bundle.items()) for node in nodes]
    for count in sorted(process_on_nodes, reverse=True):
        roomiest = max(range(len(left)), key=lambda place: left[place], default=0)
        if count > left[roomiest]:
            resource = list(bundle)[min(1, len(bundle) - 1)]
            shown = ", ".join(f"{node.get(resource, 0):g}" for node in nodes)
            what = f"pool `{name}` needs {list(process_on_nodes)} processes on its nodes, which do not fit."
            fix = "give `process_on_nodes` for the nodes that there are"
            raise ClusterError([Problem(what, facts=((f"{resource} by node", shown),), fix=fix)])
        left[roomiest] -= count


def sort_placement_group_by_node_ip(pgs: list[PlacementGroup]) -> list[PlacementGroup]:
    """The placement groups by the addresses of their nodes as numbers, so that ranks find their nodes again."""
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}

    def address(group: PlacementGroup) -> tuple[int, int, str]:
        nodes: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
        return min(address_key(addresses[node]) for node in nodes.values())

    return sorted(pgs, key=address)


def address_key(text: str) -> tuple[int, int, str]:
    """A key that sorts addresses as numbers, IPv4 before IPv6 before names."""
    try:
        address = ipaddress.ip_address(text.split("%")[0])
    except ValueError:
        return (9, 0, text)
    return (address.version, int(address), text)


def _device(name: str) -> str:
    if name not in _DEVICES:
        what = f"there are no devices `{name}`."
        raise ClusterError([Problem(what, fix=f"give one of {', '.join(_DEVICES)}; `use_gpu=False` is for CPUs")])
    return _DEVICES[name]


def _fix(resource: str) -> str:
    if resource == "CPU":
        return "ask for fewer processes, or start Ray with more CPUs: on one machine they may exceed the cores"
    if resource == "GPU":
        return "ask for fewer processes, or join a larger cluster"
    return f"ask for another accelerator than `{resource}`, or join a cluster that has it"


def _in_use(name: str, bundle: dict[str, float], count: int) -> Problem:
    free: dict[str, Any] = ray.available_resources()
    need = ", ".join(f"{amount * count:g} {resource}" for resource, amount in bundle.items() if amount >= 1)
    have = ", ".join(f"{free.get(resource, 0):g} {resource}" for resource, amount in bundle.items() if amount >= 1)
    what = f"pool `{name}` needs {need}, which the cluster has, but others use it."
    return Problem(what, facts=(("free", have),), fix="wait for the other run to end, or ask for fewer processes")
