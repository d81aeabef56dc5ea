"""The runtime: one controlling process, worker groups whose registered methods dispatch, execute and collect.

It knows nothing of nodes or plans. Ray is loaded when a class that needs it is first used; `NaiveWorkerGroup` runs
the same workers in this process without it.

Names and arguments are verl's. What differs, and why:

| name | verl | here |
|---|---|---|
| `ALL_TO_ALL`, `DP_COMPUTE` | anything but a list is silently sent to all | an error that names the argument |
| `execute_all_async`, `execute_rank_zero_async` | Ray's references | a future: `get()` names failures, `refs` |
| `register(blocking=False)` | references, or a `DataProtoFuture` | a future with `get()` and `poll()` in every mode |
| `DIRECT_ROLLOUT_METHOD` | only on the actor handles | also on the group, one rank at a time in turns |
| `DP_COMPUTE_METRIC` | padding is counted | nothing is padded: a rank may get no rows |
| padding | repeated rows look like others | `real_rows` tells; they have no trained token and no group |
| `register` | `dispatch_mode` alone | also `group_by` and `balance`: whole groups, equal work, results in order |
| modes of `make_nd_compute_dataproto_dispatch_fn` | rows must divide | padded; one rank collects a shard |
| `set_dispatch_collect` | two dicts | dicts or the two values; said again, the last holds |
| `Worker` | the environment says who it is | the group does; the environment without one |
| `create_colocated_worker_cls` | the first role's base class | always on `Worker`: roles keep their own bases |
| `spawn` | any prefix | an unknown role is an error |
| `WorkerGroup(resource_pool)` | may be constructed | a base: `NaiveWorkerGroup` and `RayWorkerGroup` are |
| `start_worker_aliveness_check` | ends this process by a signal | ends the group; the next call raises |
| a worker fails | Ray's error, peers stay blocked | `WorkerError`; all ranks end at once; `rebuild()` |
| `worker_env` | may hide RANK and others | an error that names the key |
| `detached` | names may clash | unique names, in the namespace `dagrl`; the pool must be detached too |
| `RayClassWithInitArgs` | called, it starts an actor | called, it constructs the worker here |
| `get_placement_groups` | by address as text | by address as a number |
| `RayResourcePool` | `max_colocate_count` CPUs for a process | one, which its worker groups share |
| `RayWorkerGroup(**kwargs)` | any, most without effect | `worker_env`, `deadline`, `device_name` |
| `RayWorkerGroup.kill` | the workers are killed by hand | the next call says so; `rebuild()` |
| `DataProtoFuture.chunk` | rows must divide | the first parts are a row longer |
| `DataProtoFuture.get` | where the workers are known | in any process; a worker that failed is named |
| `ResourcePoolManager` | GPUs | also CPUs, with `use_gpu=False` |
| `NaiveWorkerGroup` | one worker | a worker for each rank, and the same dispatch and collect |
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
    from dagrl.controller.padding import real_rows
    from dagrl.controller.pool_parts import (
        ResourcePoolManager,
        SubRayResourcePool,
        merge_resource_pool,
        split_resource_pool,
    )
    from dagrl.controller.ray_crew import RayClassWithInitArgs
    from dagrl.controller.ray_group import (
        RayWorkerGroup,
        create_colocated_worker_cls,
        create_colocated_worker_cls_fused,
    )
    from dagrl.controller.ray_pool import RayResourcePool, sort_placement_group_by_node_ip
    from dagrl.controller.resource_pool import ResourcePool
    from dagrl.controller.session import RaySession, start_ray
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
    "real_rows": "padding",
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
