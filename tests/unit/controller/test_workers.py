"""Who a worker is, what its process is given, and where it runs."""

import os
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray.util.placement_group import placement_group_table

from dagrl.controller import (
    ClassWithInitArgs,
    Dispatch,
    NaiveWorkerGroup,
    RayResourcePool,
    ResourcePool,
    Worker,
    WorkerGroup,
    register,
    ship_by_value,
)
from dagrl.controller.ray_crew import CrewStart
from dagrl.controller.ray_pool import address_key
from dagrl.controller.worker import Identity
from dagrl.errors import ClusterError, WorkerEnvironmentError

ship_by_value(sys.modules[__name__])
ROOT = Path(__file__).resolve().parents[3]


class Who(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def identity(self) -> dict[str, Any]:
        return {
            "ranks": (self.rank, self.world_size, self.local_rank, self.local_world_size),
            "node": self.node_ip,
            "master": self.get_master_addr_port(),
        }

    @register(Dispatch.ONE_TO_ALL)
    def process(self, *names: str) -> tuple[list[str | None], list[str], bool]:
        return [os.environ.get(name) for name in names], sys.path, "torch" in sys.modules

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    def note(self, number: int, seconds: float) -> list[int]:
        time.sleep(seconds)
        self.__dict__.setdefault("noted", []).append(number)
        return self.__dict__["noted"]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_rank_knows_who_it_is(make_group: Callable[..., WorkerGroup], ranks: int) -> None:
    answers = make_group(Who, ranks=ranks).execute_all_sync("identity")
    assert [answer["ranks"] for answer in answers] == [(rank, ranks, rank, ranks) for rank in range(ranks)]
    assert {answer["node"] for answer in answers} == {"127.0.0.1"}
    ((address, port),) = {answer["master"] for answer in answers}
    assert address == "127.0.0.1"
    assert 0 < int(port) < 65536


def test_a_process_is_set_up_before_anything_is_loaded(
    make_ray_group: Callable[..., WorkerGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    share = str(max(1, len(os.sched_getaffinity(0)) // 2))
    group: Any = make_ray_group(Who)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
    for rank, (values, path, torch) in enumerate(group.process(*names)):
        assert values == [str(rank), "2", str(rank), group.master_address, group.master_port, share]
        assert str(ROOT) in path
        assert not torch
    assert len(set(group.worker_names)) == 2


def test_threads_and_variables_that_the_user_chose(
    make_ray_group: Callable[..., WorkerGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    group: Any = make_ray_group(Who)
    assert [values for values, _, _ in group.process("OMP_NUM_THREADS")] == [["3"], ["3"]]
    group = make_ray_group(Who, worker_env={"OMP_NUM_THREADS": "5", "MINE": "x"})
    assert [values for values, _, _ in group.process("OMP_NUM_THREADS", "MINE")] == [["5", "x"], ["5", "x"]]


def test_calls_of_one_worker_run_one_after_the_other(make_group: Callable[..., WorkerGroup]) -> None:
    group: Any = make_group(Who)
    futures = [group.note(number, 0.2 / (number + 1)) for number in range(4)]
    assert futures[-1].get() == [[0, 1, 2, 3]] * 2


def test_a_call_that_waits_for_another_group_is_not_overtaken(make_group: Callable[..., WorkerGroup]) -> None:
    slow: Any = make_group(Who)
    group: Any = make_group(Who)
    group.execute_all_async("note", slow.note(7, 1.0).refs, [0, 0])
    assert group.note(1, 0.0).get() == [[[7], 1]] * 2


def test_a_users_file_does_not_take_the_place_of_a_library(tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "mine.py").write_text("VALUE = 7\n")
    module = types.ModuleType("user_workers")
    code = f"""
import sys, types
sys.path[:] = [entry for entry in sys.path if entry not in ("", {str(tmp_path)!r})] + [{str(tmp_path)!r}]
from dagrl.controller import *
module = sys.modules["user_workers"] = types.ModuleType("user_workers")
exec('''
from dagrl.controller import Dispatch, Worker, register
class User(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def look(self):
        import mine, colorsys
        return mine.VALUE, colorsys.rgb_to_hls(1, 1, 1)[1]
''', module.__dict__)
ship_by_value(module)
with start_ray(num_cpus=2):
    group = RayWorkerGroup(RayResourcePool([1], use_gpu=False), RayClassWithInitArgs(module.User))
    print(group.look())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[(7, 1.0)]\n", "")
    with pytest.raises(WorkerEnvironmentError, match=r"put it into sys\.modules"):
        ship_by_value(module)


def test_a_worker_without_a_group_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (Who().rank, Who().world_size) == (0, 1)
    for name, value in Identity(3, 8, 1, 2, "10.0.0.7", "10.0.0.1", 4000).env().items():
        monkeypatch.setenv(name, value)
    worker = Who()
    assert (worker.rank, worker.world_size, worker.local_rank, worker.local_world_size) == (3, 8, 1, 2)
    assert (worker.node_ip, worker.get_master_addr_port()) == ("10.0.0.7", ("10.0.0.1", "4000"))
    monkeypatch.setenv("RANK", "x")
    with pytest.raises(WorkerEnvironmentError, match="RANK is 'x'"):
        Who()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(WorkerEnvironmentError, match="RANK but no WORLD_SIZE"):
        Who()


def test_workers_in_this_process_need_no_ray() -> None:
    code = """
import sys
sys.modules["ray"] = None
from dagrl.controller import ClassWithInitArgs, Dispatch, NaiveWorkerGroup, ResourcePool, Worker, register
class Actor(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def add(self, x):
        return x + self.rank
print(NaiveWorkerGroup(ResourcePool([3]), ClassWithInitArgs(Actor)).add(1), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[1, 2, 3] False\n"


def test_pools_count_their_processes() -> None:
    pool = ResourcePool([2, 1])
    pool.add_node(3)
    assert (pool.world_size, pool.store) == (6, [2, 1, 3])
    assert pool.local_world_size_list() == [2, 2, 1, 3, 3, 3]
    assert pool.local_rank_list() == [0, 1, 0, 0, 1, 2]
    with pytest.raises(ClusterError, match=r"process_on_nodes=\[0\]"):
        ResourcePool([0])


def test_nodes_of_different_sizes(ray_session: object) -> None:
    pool = RayResourcePool([2, 1], use_gpu=False, name_prefix="uneven")
    groups = pool.get_placement_groups()
    assert sorted(group.bundle_count for group in groups) == [1, 2]
    assert pool.get_placement_groups() == groups
    assert len(pool.local_rank_list()) == 3
    tables = [placement_group_table(group) for group in groups]
    assert [table["strategy"] for table in tables] == ["STRICT_PACK"] * 2
    assert [bundle for table in tables for bundle in table["bundles"].values()] == [{"CPU": 1.0}] * 3
    pool.release()


@pytest.mark.parametrize(("bin_pack", "strategy"), [(True, "STRICT_PACK"), (False, "PACK")])
def test_processes_of_a_node_may_be_packed_loosely(bin_pack: bool, strategy: str) -> None:
    maker = ClassWithInitArgs(Who)
    start = CrewStart(maker, bin_pack=bin_pack, detached=False, timeout=1, worker_env={}, device_name="cuda")
    assert start.strategy == strategy


def test_groups_share_the_processes_of_a_pool(ray_session: object) -> None:
    from dagrl.controller import RayClassWithInitArgs, RayWorkerGroup

    groups: list[Any]
    pool = RayResourcePool([2], use_gpu=False, name_prefix="shared", max_colocate_count=3)
    groups = [RayWorkerGroup(pool, RayClassWithInitArgs(Who), name_prefix="same") for _ in range(3)]
    assert len({seat.pid for group in groups for seat in group.seats}) == 6
    with pytest.raises(ClusterError, match="pool `shared` has 3 worker groups, and `max_colocate_count` is as many"):
        RayWorkerGroup(pool, RayClassWithInitArgs(Who))
    groups.pop().kill()
    groups.append(RayWorkerGroup(pool, RayClassWithInitArgs(Who)))
    assert all(len(group.identity()) == 2 for group in groups)
    for group in groups:
        group.kill()
    pool.release()


def test_addresses_sort_as_numbers() -> None:
    names = ["node-b", "fe80::10", "10.0.0.10", "fe80::9%eth0", "10.0.0.9", "9.255.0.1", "node-a"]
    expected = ["9.255.0.1", "10.0.0.9", "10.0.0.10", "fe80::9%eth0", "fe80::10", "node-a", "node-b"]
    assert sorted(names, key=address_key) == expected


def test_the_variables_of_a_group_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "before")
    NaiveWorkerGroup(ResourcePool([1]), ClassWithInitArgs(Who), worker_env={"MINE": "after"})
    assert os.environ["MINE"] == "after"
