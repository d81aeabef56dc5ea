"""What only processes have: futures that the driver never sees, detached workers, parts of pools, lost workers."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest
import ray
import torch

from dagrl.controller import (
    DataProtoFuture,
    Dispatch,
    Execute,
    NaiveWorkerGroup,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    ResourcePool,
    ResourcePoolManager,
    SubRayResourcePool,
    Worker,
    WorkerGroup,
    make_nd_compute_dataproto_dispatch_fn,
    merge_resource_pool,
    register,
    ship_by_value,
    sort_placement_group_by_node_ip,
    split_resource_pool,
)
from dagrl.controller.aliveness import _Asked, _looked
from dagrl.data import DataProto
from dagrl.errors import ClusterError, DispatchError, WorkerError, WorkerLostError

ship_by_value(sys.modules[__name__])
PROTO = Dispatch.DP_COMPUTE_PROTO
ROOT = Path(__file__).resolve().parents[3]


class Here:
    """It says in which processes it was unpickled."""

    seen: ClassVar[list[int]] = []

    def __init__(self, pids: tuple[int, ...] = ()) -> None:
        self.pids = pids

    def __reduce__(self) -> Any:
        return arrived, (self.pids,)


class Counted:
    """It counts how often it is sent."""

    times = 0

    def __len__(self) -> int:
        return 5

    def __reduce__(self) -> Any:
        Counted.times += 1
        return list, (range(5),)


def arrived(pids: tuple[int, ...]) -> Here:
    Here.seen.append(os.getpid())
    return Here((*pids, os.getpid()))


class Maker(Worker):
    @register(PROTO, blocking=False)
    def make(self, data: DataProto) -> DataProto:
        return DataProto.from_dict({"x": data.batch["x"] + 100 * self.rank}, {"here": [Here()] * len(data)})

    @register(PROTO, blocking=False)
    def slow(self, data: DataProto) -> DataProto:
        time.sleep(1.5)
        return data

    @register(PROTO, blocking=False)
    def explode(self, data: DataProto) -> DataProto:
        raise KeyError("nothing to make")

    @register(Dispatch.ONE_TO_ALL)
    def pid(self) -> int:
        return os.getpid()

    @register(Dispatch.ONE_TO_ALL)
    def same(self, value: Any) -> tuple[int, bool]:
        return len(value), bool(np.asarray(value).flags.writeable)

    @register(PROTO)
    def take(self, data: DataProto, more: DataProto | None = None, *, times: int = 1) -> DataProto:
        pids = [len(value.pids) for value in data.non_tensor_batch["here"]]
        x = data.batch["x"] * times + (0 if more is None else more.batch["x"])
        return DataProto.from_dict({"x": x, "rank": torch.full((len(data),), self.rank)}, {"moves": pids})

    @register(PROTO, materialize_futures=False)
    def later(self, data: Any) -> DataProto:
        assert isinstance(data, DataProtoFuture)
        return DataProto.from_dict({"x": data.get().batch["x"]})

    @register(Dispatch.ONE_TO_ALL)
    def whole(self, data: DataProto) -> list[int]:
        return data.batch["x"].tolist()


def gone(pids: list[int]) -> bool:
    """Whether the processes end within seconds."""
    end = time.monotonic() + 5
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(psutil.pid_exists, pids))


def rows(count: int) -> DataProto:
    return DataProto.from_dict({"x": torch.arange(count)})


@pytest.fixture(scope="module")
def makers(make_ray_group: Callable[..., WorkerGroup]) -> Any:
    return make_ray_group(Maker)


@pytest.fixture(scope="module")
def takers(make_ray_group: Callable[..., WorkerGroup]) -> Any:
    return make_ray_group(Maker, ranks=3)


@pytest.mark.parametrize("count", [4, 3, 1])
def test_shards_go_from_worker_to_worker(makers: Any, takers: Any, count: int) -> None:
    Here.seen.clear()
    future = makers.make(rows(count))
    made = [row + 100 * (row >= (count + 1) // 2) for row in range(count)]
    for group in (makers, takers):
        result = group.take(future, times=2)
        assert result.batch["x"].tolist() == [2 * x for x in made]
        assert set(result.non_tensor_batch["moves"]) == {1}, "every row has moved once"
    assert not Here.seen, "nothing came to this process"
    assert takers.take(future, rows(count)).batch["x"].tolist() == [x + row for row, x in enumerate(made)]
    assert takers.whole(future) == [made] * 3
    assert takers.later(future).batch["x"].tolist() == made
    assert not Here.seen
    assert future.get().batch["x"].tolist() == made
    assert Here.seen


def test_a_future_says_when_it_is_there_and_can_be_sent(makers: Any) -> None:
    future = makers.slow(rows(4))
    assert not future.poll()
    assert future.get() == rows(4)
    assert future.poll()
    there = ray.remote(num_cpus=0)(lambda sent: sent.get().batch["x"].tolist())
    assert ray.get(there.remote(future)) == [0, 1, 2, 3]
    assert pickle.loads(pickle.dumps([part.get() for part in future.chunk(3)]))[0] == rows(2)
    joined = DataProtoFuture.concat([ray.put(rows(2)), ray.put(rows(1))])
    assert joined.get().batch["x"].tolist() == [0, 1, 0]
    assert joined.poll()
    late = makers.slow(rows(2))
    with pytest.raises(TimeoutError):
        late.chunk(1)[0].get(timeout=0.1)
    assert late.get() == rows(2)


def test_asking_whether_a_future_is_there_fetches_nothing(makers: Any) -> None:
    future = makers.make(rows(40_000))
    Here.seen.clear()
    end = time.monotonic() + 20
    while not future.poll() and time.monotonic() < end:
        time.sleep(0.02)
    assert future.poll()
    assert not Here.seen
    assert len(future.get()) == 40_000
    assert Here.seen


@pytest.mark.long
def test_batches_that_differ_in_length_are_named_where_they_meet(
    make_ray_group: Callable[..., WorkerGroup], makers: Any
) -> None:
    group: Any = make_ray_group(Maker)
    with pytest.raises(WorkerError, match="has 3 rows, but the first batch of the call has 2") as caught:
        group.take(makers.make(rows(4)), makers.make(rows(6)))
    assert isinstance(caught.value.original, DispatchError)


def test_what_all_ranks_get_is_stored_once(makers: Any) -> None:
    value = np.zeros(1 << 20)
    assert makers.same(value) == [(1 << 20, False)] * 2, "mapped, not copied"
    assert [length for length, _ in makers.same(Counted())] == [5, 5]
    assert Counted.times == 1
    with pytest.raises(DispatchError, match="`same` cannot be called on rank 0"):
        makers.same(threading.Lock())


@pytest.mark.long
def test_a_killed_worker_is_noticed_without_a_call_and_replaced(make_ray_group: Callable[..., WorkerGroup]) -> None:
    group: Any = make_ray_group(Maker)
    pids = group.pid()
    group.start_worker_aliveness_check(0.1)
    group.start_worker_aliveness_check(every_n_seconds=0.1)
    time.sleep(0.5)
    assert group.failure is None
    os.kill(pids[1], signal.SIGKILL)
    end = time.monotonic() + 10
    while group.failure is None and time.monotonic() < end:
        time.sleep(0.05)
    assert isinstance(group.failure, WorkerLostError)
    assert "rank 1 of worker group `Maker`" in str(group.failure)
    assert "killed by signal 9" in str(group.failure)
    assert gone(pids)
    group.rebuild()
    assert group.failure is None
    assert not set(group.pid()) & set(pids)
    future = group.explode(rows(4))
    alone = DataProtoFuture(future.collect_fn, future.futures)
    assert pickle.loads(pickle.dumps(DataProtoFuture(future.collect_fn, [], pending=future.pending))).pending is None
    for each in (alone, future):
        with pytest.raises(WorkerError, match=r"`explode` failed on rank . of worker group `Maker` .*KeyError"):
            each.get()


@pytest.mark.long
def test_calls_of_workers_that_were_replaced_end_no_others(make_ray_group: Callable[..., WorkerGroup]) -> None:
    group: Any = make_ray_group(Maker)
    done, failed, under_way = group.make(rows(4)), group.explode(rows(4)), group.slow(rows(4))
    assert done.get().batch["x"].tolist() == [0, 1, 102, 103]
    assert not ray.wait(failed.futures, num_returns=2, timeout=10)[1]
    asked = _looked(group, _Asked())
    group.rebuild()
    pids = group.pid()
    for future in (under_way, *under_way.chunk(2)):
        for wait in (future.get, future.poll):
            with pytest.raises(WorkerLostError, match=r"`Maker` .* was lost during `slow`: the group has been rebuilt"):
                wait()
    with pytest.raises(WorkerError, match=r"`explode` failed on rank . of worker group `Maker` .*KeyError"):
        failed.get()
    assert done.get().batch["x"].tolist() == [0, 1, 102, 103]
    for _ in range(2):
        asked = _looked(group, asked)
        time.sleep(0.3)
    assert group.failure is None
    assert group.pid() == pids
    group.kill()
    assert _looked(group, asked) == _Asked()
    with pytest.raises(
        WorkerLostError, match=r"rank 0 of .* was lost during `pid`: it was ended; `rebuild\(\)` starts"
    ):
        group.pid()
    group.rebuild()
    assert len(group.pid()) == 2


WAITERS: dict[str, Callable[[Any, DataProtoFuture], Any]] = {
    "its shards": lambda others, future: others.take(future),
    "all of it": lambda others, future: others.take(future),
    "a method": lambda others, future: others.later(future),
}


@pytest.mark.parametrize(
    "way", ["its shards", *(pytest.param(way, marks=pytest.mark.long) for way in ("all of it", "a method"))]
)
def test_who_waits_for_a_lost_worker_is_told_which(make_ray_group: Callable[..., WorkerGroup], way: str) -> None:
    group: Any = make_ray_group(Maker, name_prefix="makers")
    others: Any = make_ray_group(Maker, ranks=3 if way == "all of it" else 2, name_prefix="takers")
    future = group.slow(rows(4))
    os.kill(group.seats[1].pid, signal.SIGKILL)
    with pytest.raises(WorkerError) as caught:
        WAITERS[way](others, future)
    assert "the process of rank 1 of worker group `makers` (node 127.0.0.1) was lost during" in str(caught.value)
    assert str(caught.value).partition("killed by signal 9 (SIGKILL)")[2] in ("", ", or for memory")
    with pytest.raises(WorkerLostError, match=r"rank 1 of worker group `makers` .* was lost during `slow`: killed by"):
        future.get()
    with pytest.raises(WorkerLostError) as ended:
        DataProtoFuture(future.collect_fn, future.futures).get()
    assert ended.value is group.failure
    assert "rank 1 of worker group `makers`" in str(ended.value)
    assert others.failure is caught.value


def test_living_workers_are_found_by_name_and_by_handle(makers: Any) -> None:
    found: Any = RayWorkerGroup.from_detached(worker_names=makers.worker_names)
    assert found.pid() == makers.pid()
    assert (found.name, found.master_port, found.seats) == ("Maker", makers.master_port, makers.seats)
    again: Any = RayWorkerGroup.from_detached(
        name_prefix="again", worker_handles=makers.workers, ray_cls_with_init=RayClassWithInitArgs(Maker)
    )
    assert (again.name, again.world_size) == ("again", 2)
    assert again.make(rows(2)).get().batch["x"].tolist() == [0, 101]
    with pytest.raises(DispatchError, match="give all ranks of one group in their order"):
        RayWorkerGroup.from_detached(worker_names=makers.worker_names[::-1])
    with pytest.raises(ClusterError, match="there is no worker `nobody`"):
        RayWorkerGroup.from_detached(worker_names=["nobody"])
    with pytest.raises(DispatchError, match="made of workers that others started"):
        found.rebuild()
    with pytest.raises(DispatchError, match="needs `resource_pool` and `ray_cls_with_init`"):
        RayWorkerGroup()


def test_detached_workers_need_a_detached_pool(ray_session: object) -> None:
    pool = RayResourcePool([1], use_gpu=False, name_prefix="brief")
    with pytest.raises(ClusterError, match="pool `brief`, which ends with this program, is not"):
        RayWorkerGroup(pool, RayClassWithInitArgs(Maker), detached=True)


@pytest.mark.long
def test_detached_workers_outlive_their_program(ray_session: Any) -> None:
    code = f"""
from dagrl.controller import *
class Kept(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def count(self):
        self.__dict__["n"] = self.__dict__.get("n", 0) + 1
        return self.n
with start_ray({ray_session.address!r}):
    pool = RayResourcePool([2], use_gpu=False, detached=True)
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Kept), detached=True, name_prefix="kept")
    print(group.count(), *group.worker_names)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[1, 1] kept_")
    group: Any = RayWorkerGroup.from_detached(worker_names=done.stdout.split()[2:])
    assert group.count() == [2, 2]
    group.kill()


@pytest.fixture
def pool(ray_session: object) -> Iterator[RayResourcePool]:
    made = RayResourcePool([2, 1], use_gpu=False, name_prefix="whole", max_colocate_count=2)
    yield made
    made.release()


def test_parts_of_a_pool(pool: RayResourcePool) -> None:
    one, two = split_resource_pool(pool, [2, 1])
    assert (one.world_size, two.world_size) == (2, 1)
    assert one.bundles() + two.bundles() == pool.bundles()
    assert [part.world_size for part in split_resource_pool(pool, 1)] == [1, 1, 1]
    (inner,) = split_resource_pool(split_resource_pool(pool, [1, 2])[1], 2)
    assert inner.bundles() == pool.bundles()[1:]
    sizes = [group.bundle_count for group in pool.get_placement_groups()]
    assert inner.local_world_size_list() == [1, 1] if sizes == [2, 1] else [2, 2]
    for size in (2, [1, 1], [3, 0], 0):
        with pytest.raises(ClusterError, match="pool `whole` of 3 processes does not split into parts of"):
            split_resource_pool(pool, size)
    with pytest.raises(ClusterError, match="bundles 2 to 3 are no part of the 3 there are"):
        SubRayResourcePool(pool.get_placement_groups(), 2, 2)
    groups = pool.get_placement_groups()
    assert sort_placement_group_by_node_ip(groups) == groups


@pytest.mark.long
def test_groups_on_parts_share_processes_with_the_whole(pool: RayResourcePool) -> None:
    one, two = split_resource_pool(pool, [1, 2])
    first: Any = RayWorkerGroup(one, RayClassWithInitArgs(Maker), name_prefix="first")
    second: Any = RayWorkerGroup(two, RayClassWithInitArgs(Maker), name_prefix="second")
    merged: Any = RayWorkerGroup(merge_resource_pool(one, two), RayClassWithInitArgs(Maker), name_prefix="merged")
    assert (first.world_size, second.world_size, merged.world_size) == (1, 2, 3)
    assert len(set(first.pid() + second.pid() + merged.pid())) == 6
    with pytest.raises(ClusterError, match="has 2 worker groups, and `max_colocate_count` is as many"):
        RayWorkerGroup(two, RayClassWithInitArgs(Maker))
    for group in (first, second, merged):
        group.kill()


def test_pools_merge_if_they_are_alike(pool: RayResourcePool) -> None:
    other = RayResourcePool([1], use_gpu=False, name_prefix="other", max_colocate_count=2)
    merged = merge_resource_pool(pool, other)
    assert (merged.world_size, merged.name_prefix) == (4, "whole_other")
    assert set(merged.bundles()) == {*pool.bundles(), *other.bundles()}
    with pytest.raises(ClusterError, match="`whole` and `whole` have processes in common"):
        merge_resource_pool(pool, pool)
    with pytest.raises(ClusterError, match="differ in `max_colocate_count`: 2 and 10"):
        merge_resource_pool(pool, RayResourcePool([1], use_gpu=False))
    other.release()


def test_the_pools_of_a_program(ray_session: object) -> None:
    manager = ResourcePoolManager({"main": [2], "reward": [1]}, {"actor": "main", 7: "reward"}, use_gpu=False)
    with pytest.raises(ClusterError, match="role `actor` is on pool `main`"):
        manager.get_resource_pool("actor")
    manager.create_resource_pool()
    assert manager.get_n_gpus() == 3
    assert manager.get_resource_pool(7) is manager.resource_pool_dict["reward"]
    with pytest.raises(ClusterError, match="role `ref` is on no pool"):
        manager.get_resource_pool("ref")
    large = ResourcePoolManager({"a": [10], "b": [10]}, {}, use_gpu=False)
    with pytest.raises(ClusterError, match=r"pool `a\+b` needs 20 CPU, cluster has 16"):
        large.create_resource_pool()
    with pytest.raises(ClusterError, match=r"pool `a\+b` needs 3 GPU, cluster has 0"):
        ResourcePoolManager({"a": [1], "b": [2]}, {}).create_resource_pool()


def test_devices_of_other_kinds(ray_session: object) -> None:
    with pytest.raises(ClusterError, match="needs 1 NPU, cluster has 0"):
        RayResourcePool([1]).get_placement_groups(device_name="npu")
    with pytest.raises(ClusterError, match="there are no devices `tpu`"):
        RayResourcePool([1]).get_placement_groups(device_name="tpu")


class Failing(Worker):
    def __init__(self, seconds: int) -> None:
        self.set_dispatch_collect("pair", 0, self.rank == 0)
        self.seconds = seconds

    @register(Dispatch.ONE_TO_ALL)
    def pid(self, warm: DataProto) -> int:
        return os.getpid()

    def work(self) -> None:
        """The last rank fails, the others wait as in a collective."""
        if self.rank == self.world_size - 1:
            raise LookupError("no such thing")
        time.sleep(self.seconds)

    one_to_all = register(Dispatch.ONE_TO_ALL)(lambda self, *args: self.work())
    all_to_all = register()(lambda self, *args: self.work())
    dp_compute = register(Dispatch.DP_COMPUTE)(lambda self, *args: self.work())
    proto = register(PROTO)(lambda self, *args: self.work())
    with_func = register(Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)(lambda self, *args: self.work())
    metric = register(Dispatch.DP_COMPUTE_METRIC, blocking=False)(lambda self, *args: self.work())
    nd = register(make_nd_compute_dataproto_dispatch_fn("pair"), blocking=False)(lambda self, *args: self.work())

    @register(Dispatch.RANK_ZERO)
    def rank_zero(self) -> None:
        raise LookupError("no such thing")

    @register(execute_mode=Execute.RANK_ZERO)
    def execute_zero(self) -> None:
        raise LookupError("no such thing")

    @register(Dispatch.DIRECT_ROLLOUT_METHOD)
    def direct(self) -> None:
        raise LookupError("no such thing")


CALLS: dict[str, tuple[Any, ...]] = {
    "proto": (rows(4),), "one_to_all": (1,), "all_to_all": ([1, 2],), "dp_compute": ([1, 2],),
    "with_func": (len, rows(4)), "metric": (rows(4),), "nd": (rows(4),),
    "rank_zero": (), "execute_zero": (), "direct": (),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["naive", pytest.param("ray", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", CALLS)
def test_a_failure_in_any_mode(request: pytest.FixtureRequest, name: str, kind: str) -> None:
    group: Any
    if kind == "ray":
        group = request.getfixturevalue("make_ray_group")(Failing, 600, name_prefix="workers")
    else:
        maker = RayClassWithInitArgs(Failing, 0)
        group = NaiveWorkerGroup(ResourcePool([2]), maker, name_prefix="workers")
    pids = group.pid(rows(1))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGABRT, signal.SIGTERM, signal.SIGINT)}
    hit: list[int] = []
    for number in handlers:
        signal.signal(number, lambda got, _: hit.append(got))
    started = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        getattr(group, name)(*CALLS[name]).get()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    rank = 0 if name in ("rank_zero", "execute_zero", "direct") else 1
    where = f"rank {rank} of worker group `workers` (node 127.0.0.1)"
    assert str(caught.value) == f"`{name}` failed on {where}: LookupError: no such thing"
    assert type(caught.value.original) is LookupError
    assert time.monotonic() - started < 10
    assert group.failure is caught.value
    assert kind == "naive" or gone(pids)
    assert not hit


class Gate(Worker):
    """It has an async method, so that its others run in a thread beside an event loop."""

    @register(Dispatch.ONE_TO_ALL)
    async def here(self) -> None: ...

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def pass_on(self, data: DataProto) -> DataProto:
        return data

    @register(Dispatch.ONE_TO_ALL)
    def touch(self, path: str) -> None:
        Path(path).touch()


class Held(Worker):
    """It makes its batch once a file is there."""

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def when_there(self, data: DataProto) -> DataProto:
        end = time.monotonic() + 20
        while not Path(data.meta_info["path"]).exists():
            if time.monotonic() > end:
                raise TimeoutError("nobody has touched it")
            time.sleep(0.02)
        return data


def test_a_call_that_waits_for_a_batch_holds_up_no_other(
    make_ray_group: Callable[..., WorkerGroup], tmp_path: Path
) -> None:
    gate: Any = make_ray_group(Gate)
    held: Any = make_ray_group(Held, ranks=3)  # other shards than the gate takes: its ranks wait themselves
    path = str(tmp_path / "there")
    given = rows(6)
    given.meta_info["path"] = path
    passed = gate.pass_on(held.when_there(given))
    time.sleep(1.0)
    gate.touch(path)
    assert passed.get(timeout=20).batch["x"].tolist() == [0, 1, 2, 3, 4, 5]
