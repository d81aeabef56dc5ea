"""Workers of several roles in one process, in this process and on Ray."""

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dagrl.controller import (
    ClassWithInitArgs,
    Dispatch,
    FusedWorker,
    NaiveWorkerGroup,
    RayClassWithInitArgs,
    ResourcePool,
    Worker,
    WorkerGroup,
    create_colocated_worker_cls_fused,
    create_colocated_worker_raw_cls,
    make_nd_compute_dataproto_dispatch_fn,
    register,
    ship_by_value,
)
from dagrl.data import DataProto
from dagrl.errors import DispatchError, WorkerError

ship_by_value(sys.modules[__name__])


class Base(Worker):
    """A base with a constructor of its own, as one engine has it."""

    def __init__(self, scale: int) -> None:
        super().__init__()
        self.scale = scale


class Mixin:
    def note(self) -> str:
        return "mixed"


class Actor(Base):
    def __init__(self, scale: int, *, mesh: str = "actor") -> None:
        super().__init__(scale)
        self.set_dispatch_collect(mesh, self.world_size - 1 - self.rank, True)
        self.saw_critic = "critic" in self.fused

    @register(Dispatch.DP_COMPUTE_PROTO)
    def add(self, data: DataProto) -> DataProto:
        data.batch["x"] += self.scale + self.rank
        return data

    @register(make_nd_compute_dataproto_dispatch_fn("actor"), blocking=False)
    def reversed(self, data: DataProto) -> DataProto:
        return data.union(DataProto.from_dict({"rank": torch.full((len(data),), self.rank)}))

    @register(Dispatch.ONE_TO_ALL)
    def value(self) -> int:
        return self.scale

    @register(Dispatch.DIRECT_ROLLOUT_METHOD)
    def ask(self, question: str) -> tuple[int, str]:
        return self.rank, question

    @register(Dispatch.ONE_TO_ALL)
    def explode(self, rank: int) -> None:
        if self.rank == rank:
            raise ValueError("boom")


class Critic(Mixin, Worker):
    @register(Dispatch.ONE_TO_ALL)
    def ask_actor(self, member: str) -> tuple[int, bool, int]:
        named = self.get_fused_worker_by_name("actor")
        return self.fused[member].value(), named is self.fused["actor"], os.getpid()

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    async def later(self, x: int) -> int:
        return x + self.rank

    def plain(self) -> str:
        return self.note()


def roles() -> dict[str, RayClassWithInitArgs]:
    return {"actor": RayClassWithInitArgs(Actor, 10), "critic": RayClassWithInitArgs(Critic)}


def rows(count: int) -> DataProto:
    return DataProto.from_dict({"x": torch.arange(count)})


@pytest.fixture(scope="module")
def group(make_group: Callable[..., WorkerGroup]) -> Any:
    cls = create_colocated_worker_cls_fused(roles())
    assert cls.fused_worker_used
    return make_group(cls.cls, ranks=2, name_prefix="both")


def test_each_role_has_a_group_with_its_own_methods(group: Any) -> None:
    spawned = group.spawn({"actor", "critic"})
    assert spawned["actor"].add(rows(3)).batch["x"].tolist() == [10, 11, 13]
    assert spawned["critic"].later(5).get() == [5, 6]
    assert spawned["critic"].execute_all_sync("plain") == ["mixed", "mixed"]
    with pytest.raises(AttributeError, match="worker group `critic` has no method `add`"):
        spawned["critic"].add(rows(2))
    with pytest.raises(DispatchError, match="have no role `ref`; they have `actor`, `critic`"):
        group.spawn(["ref"])
    assert spawned["actor"].world_size == 2


def test_methods_are_there_under_their_roles_too(group: Any) -> None:
    assert group.actor_value() == [10, 10]
    assert group.execute_all_sync("critic_plain") == ["mixed", "mixed"]


def test_fused_groups_are_attributes(group: Any) -> None:
    group.fuse(["actor"])
    assert group.actor.add(rows(2)).batch["x"].tolist() == [10, 12]


def test_roles_reach_each_other_in_their_process(group: Any) -> None:
    answers = group.critic_ask_actor("actor")
    assert [answer[:2] for answer in answers] == [(10, True)] * 2
    assert group.execute_rank_zero_sync("critic_ask_actor", "actor")[0] == 10


def test_a_role_has_meshes_of_its_own(group: Any) -> None:
    actor = group.spawn(["actor"])["actor"]
    result = actor.reversed(rows(4)).get()
    assert result.batch["x"].tolist() == [0, 1, 2, 3]
    assert result.batch["rank"].tolist() == [1, 1, 0, 0]
    assert actor.query_collect_info("actor") == [True, True]


def test_direct_rollout_methods_take_turns_and_have_no_prefix(group: Any) -> None:
    assert [group.ask("q") for _ in range(3)] == [(0, "q"), (1, "q"), (0, "q")]
    assert group.spawn(["actor"])["actor"].ask(question="r") == (0, "r")


def test_a_failure_names_the_role_and_ends_all(group: Any) -> None:
    spawned = group.spawn(["actor", "critic"])
    with pytest.raises(WorkerError) as caught:
        spawned["actor"].explode(1)
    error = caught.value
    assert str(error) == "`explode` failed on rank 1 of worker group `actor` (node 127.0.0.1): ValueError: boom"
    assert "dagrl/controller" not in error.worker_traceback
    for other in (group, spawned["critic"]):
        assert other.failure is error
    with pytest.raises(WorkerError) as again:
        spawned["critic"].later(1).get()
    assert again.value is error


def test_a_raw_class_needs_no_ray() -> None:
    makers = {"actor": ClassWithInitArgs(Actor, 1), "critic": ClassWithInitArgs(Critic)}
    cls = create_colocated_worker_raw_cls(makers)
    assert (cls.__name__, cls.__base__) == ("FusedWorker_actor_critic", FusedWorker)
    group: Any = NaiveWorkerGroup(ResourcePool([2]), ClassWithInitArgs(cls))
    assert group.spawn(["actor"])["actor"].value() == [1, 1]
    assert not group.workers[0].fused["actor"].saw_critic
    assert group.workers[0].fused_worker_dict["critic"].get_fused_worker_by_name("nobody") is None
    reordered = create_colocated_worker_raw_cls(dict(reversed(makers.items())))
    assert reordered().fused["actor"].saw_critic


def test_a_failure_of_the_whole_groups_method_names_the_role() -> None:
    group: Any = NaiveWorkerGroup(ResourcePool([2]), ClassWithInitArgs(create_colocated_worker_raw_cls(roles())))
    with pytest.raises(WorkerError, match=r"`explode` failed on rank 0 of worker group `actor`"):
        group.actor_explode(0)


def test_names_that_clash_are_refused() -> None:
    class Add(Worker):
        @register(Dispatch.ONE_TO_ALL)
        def b_c(self) -> None: ...

    class More(Worker):
        @register(Dispatch.ONE_TO_ALL)
        def c(self) -> None: ...

    with pytest.raises(DispatchError, match="role `a_b` has a method `c`, and `a_b_c` there is already"):
        create_colocated_worker_raw_cls({"a": ClassWithInitArgs(Add), "a_b": ClassWithInitArgs(More)})
    with pytest.raises(DispatchError, match="there is no role"):
        create_colocated_worker_raw_cls({})
