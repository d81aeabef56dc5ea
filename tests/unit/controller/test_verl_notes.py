"""The examples of public notes on verl's runtime, as they stand there but for the imports and `use_gpu=False`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
import torch.nn as nn
import torch.nn.functional as F
from ray.util.placement_group import get_placement_group, placement_group, remove_placement_group

from dagrl.controller import (
    Dispatch,
    NaiveWorkerGroup,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    Worker,
    create_colocated_worker_cls,
    register,
    ship_by_value,
)
from dagrl.data import DataProto

ship_by_value(sys.modules[__name__])
ROOT = Path(__file__).resolve().parents[3]

EXAMPLE = """
import ray
import torch
from dagrl.controller import (
    Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, create_colocated_worker_cls, register,
)
from dagrl.data import DataProto

@ray.remote
class Actor(Worker):
    def __init__(self):
        super().__init__()

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def add(self, data: DataProto):
        data.batch['a'] = data.batch['a'].to("cpu")
        data.batch['a'] += self.rank
        return data

@ray.remote
class Critic(Worker):
    def __init__(self, config):
        super().__init__()
        self.config = config

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def sub(self, data: DataProto):
        data.batch['a'] -= self.config['b']
        return data

def test_colocated_workers():
    ray.init()
    data = DataProto.from_dict({'a': torch.zeros(10)})
    print("Input:", data.batch["a"])
    actor_cls = RayClassWithInitArgs(cls=Actor)
    critic_cls = RayClassWithInitArgs(cls=Critic, config={'b': 10})
    resource_pool = RayResourcePool(process_on_nodes=[2], use_gpu=False)
    cls_dict = {'actor': actor_cls, 'critic': critic_cls}
    ray_cls_with_init = create_colocated_worker_cls(cls_dict)
    print(type(ray_cls_with_init))
    print(ray_cls_with_init.cls.__ray_actor_class__)
    print(ray_cls_with_init.cls.__ray_actor_class__.__base__)
    print(ray_cls_with_init.cls.actor_add)
    print(ray_cls_with_init.cls.critic_sub)
    wg_dict = RayWorkerGroup(resource_pool=resource_pool, ray_cls_with_init=ray_cls_with_init)
    spawn_wg = wg_dict.spawn(prefix_set=cls_dict.keys())
    actor_wg, critic_wg = spawn_wg['actor'], spawn_wg['critic']
    actor_output = actor_wg.add(data)
    critic_output = critic_wg.sub(data)
    print("Actor output:", actor_output.batch["a"])
    print("Critic output:", critic_output.batch["a"])
    ray.shutdown()

if __name__ == '__main__':
    test_colocated_workers()
"""


class MyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(100, 1)

    def compute_loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.linear(x), y)


@ray.remote
class MyNetWorker(Worker):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = MyNet()

    def compute_network_loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        return self.network.compute_loss(inputs, targets).item()


@ray.remote
class Actor(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def add(self, data: DataProto) -> DataProto:
        data.batch["a"] += self.rank
        return data


@ray.remote
class Critic(Worker):
    def __init__(self, config: dict[str, int]) -> None:
        super().__init__()
        self.config = config

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def sub(self, data: DataProto) -> DataProto:
        data.batch["a"] -= self.config["b"]
        return data


class Adder(Worker):
    def add(self, x: int) -> int:
        return x + self.rank


def roles() -> dict[str, RayClassWithInitArgs]:
    return {"actor": RayClassWithInitArgs(cls=Actor), "critic": RayClassWithInitArgs(cls=Critic, config={"b": 10})}


@pytest.fixture(scope="module")
def pool(ray_session: object) -> Iterator[RayResourcePool]:
    made = RayResourcePool(process_on_nodes=[2], use_gpu=False)
    yield made
    made.release()


@pytest.mark.parametrize("kind", [NaiveWorkerGroup, RayWorkerGroup])
def test_two_roles_in_one_process(pool: RayResourcePool, kind: Any) -> None:
    cls = create_colocated_worker_cls(roles())
    assert type(cls) is RayClassWithInitArgs
    assert cls.cls.__ray_actor_class__.__name__ == "WorkerDict"
    assert cls.cls.__ray_actor_class__.__base__ is Worker
    assert callable(cls.cls.actor_add)
    assert callable(cls.cls.critic_sub)
    data = DataProto.from_dict({"a": torch.zeros(10)})
    group = kind(resource_pool=pool, ray_cls_with_init=cls)
    spawned = group.spawn(prefix_set=roles().keys())
    assert spawned["actor"].add(data).batch["a"].tolist() == [0] * 5 + [1] * 5
    assert spawned["critic"].sub(data).batch["a"].tolist() == [-10] * 10
    assert data.batch["a"].tolist() == [0] * 10
    assert group.actor_add(data).batch["a"].tolist() == [0] * 5 + [1] * 5
    assert spawned["actor"].workers == group.workers
    group.kill()


@pytest.mark.long
def test_the_example_as_a_program(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(EXAMPLE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for line in (
        "<class 'dagrl_workers.WorkerDict'>",
        "<class 'dagrl.controller.worker.Worker'>",
        "Actor output: tensor([0., 0., 0., 0., 0., 1., 1., 1., 1., 1.])",
        "Critic output: tensor([-10., -10., -10., -10., -10., -10., -10., -10., -10., -10.])",
    ):
        assert line in done.stdout


@pytest.mark.long
def test_two_workers_without_a_group(ray_session: object) -> None:
    worker0, worker1 = MyNetWorker.remote(), MyNetWorker.remote()
    inputs, targets = torch.randn(16, 100), torch.randn(16, 1)
    inputs_split, targets_split = torch.chunk(inputs, 2), torch.chunk(targets, 2)
    future0 = worker0.compute_network_loss.remote(inputs_split[0], targets_split[0])
    future1 = worker1.compute_network_loss.remote(inputs_split[1], targets_split[1])
    loss0, loss1 = ray.get([future0, future1])
    torch.manual_seed(0)
    assert (loss0 + loss1) / 2 == pytest.approx(MyNet().compute_loss(inputs, targets).item(), rel=1e-5)


def test_a_placement_group_by_its_name(ray_session: object) -> None:
    pg = placement_group(bundles=[{"CPU": 4}], strategy="STRICT_SPREAD", name="my_placement_group_name")
    assert pg.wait(timeout_seconds=10)
    assert get_placement_group("my_placement_group_name").id == pg.id
    remove_placement_group(pg)


def test_a_pool_of_two_nodes_and_all_workers_at_once(ray_session: object) -> None:
    resource_pool = RayResourcePool(process_on_nodes=[2, 2], max_colocate_count=2, use_gpu=False)
    pgs = resource_pool.get_placement_groups()
    assert [pg.bundle_count for pg in pgs] == [2, 2]
    workergroup = RayWorkerGroup(resource_pool, RayClassWithInitArgs(cls=Adder))
    assert workergroup.execute_all_async("add", x=10).get() == [10, 11, 12, 13]
    assert ray.get(workergroup.execute_all_async("add", x=10).refs) == [10, 11, 12, 13]
    workergroup.kill()
    resource_pool.release()


def test_a_group_in_this_process_without_a_pool() -> None:
    group: Any = NaiveWorkerGroup(resource_pool=None, ray_cls_with_init=RayClassWithInitArgs(cls=Adder))
    assert group.execute_all_sync("add", x=10) == [10]
