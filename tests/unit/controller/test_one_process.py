"""What a group in this process does as one on Ray would: nothing is shared, a failed call fails where it is needed."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dagrl.controller import (
    ClassWithInitArgs,
    Dispatch,
    NaiveWorkerGroup,
    ResourcePool,
    Worker,
    register,
    token_work,
)
from dagrl.data import DataProto
from dagrl.errors import WorkerError

ROOT = Path(__file__).resolve().parents[3]
PROTO = Dispatch.DP_COMPUTE_PROTO


class Keeper(Worker):
    """It keeps what it is given and gives what it keeps."""

    def __init__(self) -> None:
        self.weight = torch.zeros(2, requires_grad=True)
        self.noted: list[int] = []
        self.kept: Any = None

    @register(Dispatch.ONE_TO_ALL)
    def take(self, values: dict[str, Any]) -> None:
        values["x"] += 1
        values["list"].append(self.rank)
        self.kept = values

    @register(Dispatch.ONE_TO_ALL)
    def give(self) -> Any:
        return self.kept

    @register(Dispatch.ONE_TO_ALL)
    def step(self) -> dict[str, Any]:
        with torch.no_grad():
            self.weight += 1
        return {
            "weight": self.weight,
            "made": self.weight * 2,
            "parameter": torch.nn.Parameter(self.weight.detach()),
            "more": (self.weight.detach(), [self.weight.numpy(force=True)]),
        }

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    def note(self, number: int) -> list[int]:
        self.noted.append(number)
        return self.noted

    @register(PROTO, balance=token_work)
    def keep(self, data: DataProto) -> DataProto:
        self.kept = data
        return data

    @register(PROTO, blocking=False)
    def make(self, data: DataProto) -> DataProto:
        if self.rank:
            raise LookupError("nothing here")
        return data

    @register(PROTO)
    def use(self, data: DataProto) -> DataProto:
        return data

    @register(PROTO)
    async def use_async(self, data: DataProto) -> DataProto:
        await asyncio.sleep(0)
        return data

    @register(Dispatch.ONE_TO_ALL)
    def hear(self, error: WorkerError) -> str:
        return error.method


def group(ranks: int = 2, name: str = "keeper") -> Any:
    return NaiveWorkerGroup(ResourcePool([ranks]), ClassWithInitArgs(Keeper), name_prefix=name)


def rows(count: int) -> DataProto:
    mask = torch.ones(count, 2, dtype=torch.bool)
    return DataProto.from_dict({"x": torch.arange(count), "attention_mask": mask}, {"info": [{} for _ in range(count)]})


def test_arguments_of_one_rank_are_not_those_of_another() -> None:
    keepers, values = group(), {"x": torch.zeros(2), "list": [7], "data": rows(2)}
    keepers.take(values)
    assert (values["x"].tolist(), values["list"]) == ([0, 0], [7])
    assert [(kept["x"].tolist(), kept["list"]) for kept in keepers.give()] == [([1, 1], [7, 0]), ([1, 1], [7, 1])]
    assert keepers.workers[0].kept["data"].batch["x"].data_ptr() != values["data"].batch["x"].data_ptr()


def test_results_stay_as_they_were_when_the_worker_goes_on() -> None:
    keepers = group(1)
    (before,), (after,) = keepers.step(), keepers.step()
    assert before["weight"].tolist() == before["more"][0].tolist() == before["more"][1][0].tolist() == [1, 1]
    assert (after["weight"].tolist(), after["weight"].requires_grad, after["made"].is_leaf) == ([2, 2], True, True)
    assert type(before["parameter"]) is torch.nn.Parameter
    before["weight"].detach().zero_()
    assert keepers.workers[0].weight.tolist() == [2, 2]
    futures = [keepers.note(number) for number in range(2)]
    assert [future.get() for future in futures] == [[[0]], [[0, 1]]]


def test_the_callers_result_is_not_what_the_worker_kept() -> None:
    for count in (3, 4):
        keepers = group()
        result = keepers.keep(rows(count))
        result.batch["x"] += 100
        for info in result.non_tensor_batch["info"]:
            info["seen"] = True
        for worker in keepers.workers:
            assert int(worker.kept.batch["x"].max()) < 100
            assert not any(worker.kept.non_tensor_batch["info"])


def test_a_failed_call_fails_where_its_future_is_used() -> None:
    makers, users = group(name="makers"), group(name="users")
    for data in (rows(4), rows(3)):
        future = makers.make(data)
        for each in (future, *future.chunk(2)):
            with pytest.raises(WorkerError, match=r"`make` failed on rank 1 of worker group `makers`.*LookupError"):
                each.get()
            with pytest.raises(WorkerError, match="makers"):
                each.poll()
        with pytest.raises(WorkerError, match=r"`make` failed on rank 1 of worker group `makers`") as caught:
            users.use(future)
        assert caught.value is users.failure is makers.failure
        makers.rebuild()
        users.rebuild()


def test_an_error_may_be_an_argument() -> None:
    error = WorkerError(group="a", method="b", rank=0, node_ip="c")
    assert group().hear(error) == ["b", "b"]


def test_async_methods_run_beside_the_callers_event_loop() -> None:
    async def step() -> DataProto:
        return group().use_async(rows(3))

    assert asyncio.run(step()) == rows(3)


def test_a_debugger_stops_in_a_workers_method(tmp_path: Path) -> None:
    (tmp_path / "debugged.py").write_text("""
from dagrl.controller import ClassWithInitArgs, Dispatch, NaiveWorkerGroup, ResourcePool, Worker, register
class Actor(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def add(self, x):
        breakpoint()
        return x + self.rank
print("sum", NaiveWorkerGroup(ResourcePool([2]), ClassWithInitArgs(Actor)).add(5))
""")
    done = subprocess.run(
        [sys.executable, "debugged.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONBREAKPOINT": ""},  # Ray sets its own here
        input="p ('stopped', self.rank, x)\nx = x * 2\nc\np ('stopped', self.rank, x)\nc\n",
        capture_output=True,
        text=True,
        check=True,
    )
    for said in ("('stopped', 0, 5)", "('stopped', 1, 5)", "sum [10, 6]"):
        assert said in done.stdout
