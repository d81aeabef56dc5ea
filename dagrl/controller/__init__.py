"""The runtime: one controlling process, worker groups whose registered methods dispatch, execute and collect.

It knows nothing of nodes or plans. Ray is loaded when a class that needs it is first used; `NaiveWorkerGroup` runs
the same workers in this process without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagrl.controller.decorator import (
        Dispatch,
        Execute,
        get_predefined_dispatch_fn,
        get_predefined_execute_fn,
        register,
        register_dispatch_mode,
        update_dispatch_mode,
    )
    from dagrl.controller.future import CallFuture
    from dagrl.controller.naive_group import NaiveWorkerGroup
    from dagrl.controller.ray_group import RayClassWithInitArgs, RayWorkerGroup
    from dagrl.controller.ray_pool import RayResourcePool, sort_placement_group_by_node_ip
    from dagrl.controller.resource_pool import ResourcePool
    from dagrl.controller.session import RaySession, start_ray
    from dagrl.controller.shipping import ship_by_value
    from dagrl.controller.worker import Worker
    from dagrl.controller.worker_group import ClassWithInitArgs, WorkerGroup

_HOMES = {
    "CallFuture": "future",
    "ClassWithInitArgs": "worker_group",
    "Dispatch": "decorator",
    "Execute": "decorator",
    "NaiveWorkerGroup": "naive_group",
    "RayClassWithInitArgs": "ray_group",
    "RayResourcePool": "ray_pool",
    "RaySession": "session",
    "RayWorkerGroup": "ray_group",
    "ResourcePool": "resource_pool",
    "Worker": "worker",
    "WorkerGroup": "worker_group",
    "get_predefined_dispatch_fn": "decorator",
    "get_predefined_execute_fn": "decorator",
    "register": "decorator",
    "register_dispatch_mode": "decorator",
    "ship_by_value": "shipping",
    "sort_placement_group_by_node_ip": "ray_pool",
    "start_ray": "session",
    "update_dispatch_mode": "decorator",
}

__all__ = [
    "CallFuture",
    "ClassWithInitArgs",
    "Dispatch",
    "Execute",
    "NaiveWorkerGroup",
    "RayClassWithInitArgs",
    "RayResourcePool",
    "RaySession",
    "RayWorkerGroup",
    "ResourcePool",
    "Worker",
    "WorkerGroup",
    "get_predefined_dispatch_fn",
    "get_predefined_execute_fn",
    "register",
    "register_dispatch_mode",
    "ship_by_value",
    "sort_placement_group_by_node_ip",
    "start_ray",
    "update_dispatch_mode",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return vars(import_module(f"{__name__}.{_HOMES[name]}"))[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
