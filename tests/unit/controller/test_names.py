"""The names that users of verl know: each is here and takes the same arguments."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from dagrl import controller
from dagrl.controller import Dispatch, Execute

#: Parameters by name: verl's, with its defaults; `...` is none, `*` takes any.
N = None
FUNCTIONS: dict[str, dict[str, Any]] = {
    "register": {
        "dispatch_mode": Dispatch.ALL_TO_ALL, "execute_mode": Execute.ALL, "blocking": True, "materialize_futures": True
    },
    "register_dispatch_mode": {"dispatch_mode_name": ..., "dispatch_fn": ..., "collect_fn": ...},
    "update_dispatch_mode": {"dispatch_mode": ..., "dispatch_fn": ..., "collect_fn": ...},
    "get_predefined_dispatch_fn": {"dispatch_mode": ...},
    "get_predefined_execute_fn": {"execute_mode": ...},
    "make_nd_compute_dataproto_dispatch_fn": {"mesh_name": ...},
    "create_colocated_worker_cls": {"class_dict": ...},
    "create_colocated_worker_raw_cls": {"class_dict": ...},
    "create_colocated_worker_cls_fused": {"class_dict": ...},
    "split_resource_pool": {"resource_pool": ..., "split_size": ...},
    "merge_resource_pool": {"rp1": ..., "rp2": ...},
    "sort_placement_group_by_node_ip": {"pgs": ...},
}  # fmt: skip
CALL = {"method_name": ..., "*args": ..., "**kwargs": ...}
EXECUTES = {f"{name}{how}": CALL for name in ("execute_all", "execute_rank_zero") for how in ("", "_async", "_sync")}
ANY = {"*args": ..., "**kwargs": ...}
CLASSES: dict[str, dict[str, dict[str, Any]]] = {
    "DataProtoFuture": {
        "": {"collect_fn": ..., "futures": ..., "dispatch_fn": N},
        "chunk": {"chunks": ...}, "concat": {"data": ...}, "get": {},
    },
    "Worker": {
        "": {"cuda_visible_devices": N}, "env_keys": {}, "get_cuda_visible_devices": {}, "get_dispatch_collect": {},
        "execute_func_rank_zero": {"func": ..., **ANY}, "execute_with_func_generator": {"func": ..., **ANY},
        "get_fused_worker_by_name": {"worker_name": ...}, "get_master_addr_port": {},
        "query_collect_info": {"mesh_name": ...},
        "set_dispatch_collect": {"mesh_name": ..., "dispatch_dp_rank": ..., "collect_dp_rank": ...},
    },
    "ResourcePool": {
        "": {"process_on_nodes": N, "max_colocate_count": 10, "n_gpus_per_node": 8},
        "add_node": {"process_count": ...}, "local_rank_list": {}, "local_world_size_list": {},
    },
    "ClassWithInitArgs": {"": {"cls": ..., **ANY}},
    "RayClassWithInitArgs": {
        "": {"cls": ..., **ANY},
        "set_additional_resource": {"additional_resource": ...}, "update_options": {"options": ...},
    },
    "WorkerGroup": {"": {"resource_pool": ...}, "start_worker_aliveness_check": {"every_n_seconds": 1}},
    "RayResourcePool": {
        "": {
            "process_on_nodes": N, "use_gpu": True, "name_prefix": N, "max_colocate_count": 10, "detached": False,
            "accelerator_type": N,
        },
        "get_placement_groups": {"strategy": "STRICT_PACK", "name": N, "device_name": "cuda"},
    },
    "SubRayResourcePool": {
        "": {"placement_groups": ..., "start_bundle_index": ..., "subgroup_world_size": ..., "**kwargs": ...}
    },
    "ResourcePoolManager": {
        "": {"resource_pool_spec": ..., "mapping": ..., "max_colocate_count": 3, "resource_pool_dict": dict},
        "create_resource_pool": {}, "get_n_gpus": {}, "get_resource_pool": {"role": ...},
    },
    "RayWorkerGroup": {
        "": {
            "resource_pool": N, "ray_cls_with_init": N, "bin_pack": True, "name_prefix": N, "detached": False,
            "worker_names": N, "worker_handles": N, "ray_wait_register_center_timeout": 300,
        },
        **EXECUTES,
        "from_detached": {
            "name_prefix": N, "worker_names": N, "worker_handles": N, "ray_cls_with_init": N, "**kwargs": ...
        },
        "fuse": {"prefix_set": ...}, "spawn": {"prefix_set": ...}, "spawn_fused": {"prefix_set": ...},
    },
}  # fmt: skip
PROPERTIES = {
    "Worker": ["rank", "world_size"],
    "ResourcePool": ["store", "world_size"],
    "WorkerGroup": ["world_size"],
    "SubRayResourcePool": ["world_size"],
    "RayWorkerGroup": ["master_address", "master_port", "worker_names", "workers", "world_size"],
}
CALLABLES = [
    *((name, "", wanted) for name, wanted in FUNCTIONS.items()),
    *((name, method, wanted) for name, methods in CLASSES.items() for method, wanted in methods.items()),
]


def found(name: str) -> Any:
    return getattr(controller, name)


def described(function: Callable[..., Any]) -> dict[str, Any]:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    every = inspect.signature(function).parameters.values()
    names = {stars.get(one.kind, "") + one.name: one for one in every if one.name != "self"}
    names.pop("_ray_trace_ctx", None)  # what Ray adds to a class that an actor was made of
    return names


@pytest.mark.parametrize(("name", "method", "wanted"), CALLABLES)
def test_arguments_are_those_of_verl(name: str, method: str, wanted: dict[str, Any]) -> None:
    assert name in controller.__all__
    ours = described(getattr(found(name), method or "__init__") if name in CLASSES else found(name))
    assert list(ours)[: len(wanted)] == list(wanted)
    for shown, default in wanted.items():
        own = ours[shown]
        if shown.startswith("*"):
            continue
        assert own.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        if default is ...:
            assert own.default is inspect.Parameter.empty
        elif default is not dict:
            assert own.default == default
    for shown, own in list(ours.items())[len(wanted) :]:
        needed = own.default is inspect.Parameter.empty and not shown.startswith("*")
        assert not needed or name == "WorkerGroup", f"`{shown}` is one more that must be given"


@pytest.mark.parametrize(("name", "property_name"), [(k, each) for k, names in PROPERTIES.items() for each in names])
def test_properties_are_those_of_verl(name: str, property_name: str) -> None:
    assert isinstance(inspect.getattr_static(found(name), property_name), property)


def test_every_mode_of_verl() -> None:
    names = (
        "RANK_ZERO", "ONE_TO_ALL", "ALL_TO_ALL", "DP_COMPUTE", "DP_COMPUTE_PROTO", "DP_COMPUTE_PROTO_WITH_FUNC",
        "DP_COMPUTE_METRIC", "DIRECT_ROLLOUT_METHOD",
    )  # fmt: skip
    assert all(isinstance(getattr(Dispatch, name), Dispatch) for name in names)
    assert set(controller.get_predefined_execute_fn(Execute.ALL)) == {"execute_fn_name"}


def test_the_package_says_what_differs() -> None:
    assert controller.__doc__ is not None
    rows = [line for line in controller.__doc__.splitlines() if line.startswith("|")][2:]
    assert all(row.count("|") == 4 and all(cell.strip() for cell in row.split("|")[1:-1]) for row in rows)
    named = " ".join(row.split("|")[1] for row in rows)
    for name in (
        "ALL_TO_ALL", "DP_COMPUTE", "DP_COMPUTE_METRIC", "DIRECT_ROLLOUT_METHOD", "execute_all_async", "register",
        "Worker", "NaiveWorkerGroup", "RayResourcePool", "RayWorkerGroup", "DataProtoFuture", "get_placement_groups",
        "ResourcePoolManager", "start_worker_aliveness_check", "worker_env", "detached", "spawn",
        "set_dispatch_collect",
    ):  # fmt: skip
        assert name in named
