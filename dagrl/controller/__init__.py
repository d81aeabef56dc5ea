"""The runtime: one controlling process, worker groups whose registered methods dispatch, execute and collect.

It knows nothing of nodes or plans. Ray is loaded when a class that needs it is first used; `NaiveWorkerGroup` runs
the same workers in this process without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagrl.controller.colocated import FusedWorker, create_colocated_worker_raw_cls
    from dagrl.controller.decorator import (
        Dispatch,
        Execute,
        get_predefined_dispatch_fn,
        get_predefined_execute_fn,
        register,
        register_dispatch_mode,
        update_dispatch_mode,
    )
    from dagrl.controller.future import CallFuture, DataProtoFuture
    from dagrl.controller.naive_group import NaiveWorkerGroup
    from dagrl.controller.pool_parts import (
        ResourcePoolManager,
        SubRayResourcePool,
        merge_resource_pool,
        split_resource_pool,
    )
    from dagrl.controller.ray_crew import RayClassWithInitArgs
    from dagrl.controller.ray_group import RayWorkerGroup, create_colocated_worker_cls, create_colocated_worker_cls_fused
    from dagrl.controller.ray_pool import RayResourcePool, sort_placement_group_by_node_ip
    from dagrl.controller.resource_pool import ResourcePool
    from dagrl.controller.session import RaySession, start_ray
    from dagrl.controller.shards import real_rows
    from dagrl.controller.shares import token_work
    from dagrl.controller.shipping import ship_by_value
    from dagrl.controller.split_dispatch import make_nd_compute_dataproto_dispatch_fn
    from dagrl.controller.worker import Worker
    from dagrl.controller.worker_group import ClassWithInitArgs, WorkerGroup

_HOMES = {
    "CallFuture": "future",
    "ClassWithInitArgs": "worker_group",
    "DataProtoFuture": "future",
    "Dispatch": "decorator",
    "Execute": "decorator",
    "FusedWorker": "colocated",
    "NaiveWorkerGroup": "naive_group",
    "RayClassWithInitArgs": "ray_crew",
    "RayResourcePool": "ray_pool",
    "RaySession": "session",
    "RayWorkerGroup": "ray_group",
    "ResourcePool": "resource_pool",
    "ResourcePoolManager": "pool_parts",
    "SubRayResourcePool": "pool_parts",
    "Worker": "worker",
    "WorkerGroup": "worker_group",
    "create_colocated_worker_cls": "ray_group",
    "create_colocated_worker_cls_fused": "ray_group",
    "create_colocated_worker_raw_cls": "colocated",
    "get_predefined_dispatch_fn": "decorator",
    "get_predefined_execute_fn": "decorator",
    "make_nd_compute_dataproto_dispatch_fn": "split_dispatch",
    "merge_resource_pool": "pool_parts",
    "real_rows": "shards",
    "register": "decorator",
    "register_dispatch_mode": "decorator",
    "ship_by_value": "shipping",
    "sort_placement_group_by_node_ip": "ray_pool",
    "split_resource_pool": "pool_parts",
    "start_ray": "session",
    "token_work": "shares",
    "update_dispatch_mode": "decorator",
}

__all__ = [
    "CallFuture",
    "ClassWithInitArgs",
    "DataProtoFuture",
    "Dispatch",
    "Execute",
    "FusedWorker",
    "NaiveWorkerGroup",
    "RayClassWithInitArgs",
    "RayResourcePool",
    "RaySession",
    "RayWorkerGroup",
    "ResourcePool",
    "ResourcePoolManager",
    "SubRayResourcePool",
    "Worker",
    "WorkerGroup",
    "create_colocated_worker_cls",
    "create_colocated_worker_cls_fused",
    "create_colocated_worker_raw_cls",
    "get_predefined_dispatch_fn",
    "get_predefined_execute_fn",
    "make_nd_compute_dataproto_dispatch_fn",
    "merge_resource_pool",
    "real_rows",
    "register",
    "register_dispatch_mode",
    "ship_by_value",
    "sort_placement_group_by_node_ip",
    "split_resource_pool",
    "start_ray",
    "token_work",
    "update_dispatch_mode",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return vars(import_module(f"{__name__}.{_HOMES[name]}"))[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
