"""Splitting a batch over ranks and collecting it again: nothing is lost, doubled, reordered or shared."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from dagrl.controller import (
    ClassWithInitArgs,
    Dispatch,
    NaiveWorkerGroup,
    ResourcePool,
    Worker,
    WorkerGroup,
    make_nd_compute_dataproto_dispatch_fn,
    real_rows,
    register,
    ship_by_value,
    token_work,
)
from dagrl.controller.shards import Shard
from dagrl.controller.shares import Rule, shares_of
from dagrl.data import DataProto
from dagrl.errors import DispatchError
from dagrl.ops.aggregate import AGG_MODES, Denominators, aggregate

ship_by_value(sys.modules[__name__])
PROTO = Dispatch.DP_COMPUTE_PROTO
MESH = make_nd_compute_dataproto_dispatch_fn(mesh_name="rollout")
#: A method of `Echo` for every way to split.
WAYS = ("plain", "func", "grouped", "balanced", "both", "nd", "nd_both", "later", "later_both", "nd_later")


def changed(data: DataProto) -> DataProto:
    """Every row by itself; what comes back has other columns, and the padding's mark where there is one."""
    x = data.batch["x"]
    x *= 2
    return data


def as_worker(worker: Worker, data: DataProto) -> DataProto:
    return changed(data)


class Echo(Worker):
    """Two ranks of each shard where the ranks divide by two, the second of which is collected."""

    def __init__(self) -> None:
        self.asked = 0
        self.seen: list[tuple[int, int, list[int]]] = []
        shared = 2 if self.world_size % 2 == 0 else 1
        self.set_dispatch_collect("rollout", self.rank // shared, self.rank % shared == shared - 1)
        self.shared = shared

    def query_mesh(self, mesh_name: str) -> Any:
        self.asked += 1
        return super().query_mesh(mesh_name)

    def echo(self, data: DataProto) -> DataProto:
        real = real_rows(data)
        self.seen.append((len(data), int((~real).sum()), data.batch["group_ids"][real].tolist()))
        return changed(data)

    def what_was_seen(self) -> tuple[list[tuple[int, int, list[int]]], int]:
        seen, self.seen = self.seen, []
        return seen, self.asked

    @register(PROTO)
    def plain(self, data: DataProto) -> DataProto:
        return self.echo(data)

    @register(Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def func(self, function: Callable[..., DataProto], data: DataProto) -> DataProto:
        self.echo(data.select(deepcopy=True))
        return function(self, data)

    @register(PROTO, group_by="group_ids")
    def grouped(self, data: DataProto) -> DataProto:
        return self.echo(data)

    @register(PROTO, balance=token_work)
    def balanced(self, data: DataProto) -> DataProto:
        return self.echo(data)

    @register(PROTO, group_by="name", balance=token_work)
    def both(self, data: DataProto) -> DataProto:
        return self.echo(data)

    @register(MESH)
    def nd(self, data: DataProto) -> DataProto:
        return self.echo(data)

    @register(MESH, group_by="group_ids", balance=token_work)
    def nd_both(self, data: DataProto) -> DataProto:
        return self.echo(data)

    @register(MESH, blocking=False)
    async def nd_later(self, data: DataProto) -> DataProto:
        return self.echo(data)

    @register(PROTO, blocking=False)
    def later(self, data: DataProto) -> DataProto:
        return self.echo(data)

    @register(PROTO, blocking=False, group_by="group_ids", balance=token_work)
    def later_both(self, data: DataProto) -> DataProto:
        return self.echo(data)

    @register(PROTO, balance=token_work)
    def twice_each(self, data: DataProto) -> DataProto:
        return data.repeat(2)

    @register(Dispatch.DP_COMPUTE_METRIC, group_by="group_ids")
    def count(self, data: DataProto) -> dict[str, int]:
        return {"rows": len(data), "groups": len(data.batch["group_ids"].unique())}

    @register(PROTO, group_by="group")
    def objects(self, data: DataProto) -> DataProto:
        for value in data.non_tensor_batch["info"]:
            value["seen"] = value.get("seen", 0) + 1
        return data

    @register(PROTO)
    def tensors(self, data: TensorDict) -> TensorDict:
        return TensorDict({"y": data["x"] + 1}, batch_size=data.batch_size)

    @register(PROTO, blocking=False)
    def lopsided(self, data: DataProto) -> DataProto:
        return data if self.rank == 0 else data.slice(0, 1)

    @register(make_nd_compute_dataproto_dispatch_fn("unknown"))
    def lost(self, data: DataProto) -> DataProto:
        return data


def rows(count: int, seed: int = 0) -> DataProto:
    draw = torch.Generator().manual_seed(seed)
    groups = torch.randint(0, max(count // 2, 1), (count,), generator=draw)
    lengths = torch.randint(1, 9, (count,), generator=draw)
    tensors = {
        "x": torch.arange(count), "group_ids": groups, "attention_mask": torch.arange(8)[None] < lengths[:, None],
        "response_mask": torch.ones(count, 3, dtype=torch.bool),
    }  # fmt: skip
    names = [f"g{group}" for group in groups.tolist()]
    return DataProto.from_dict(tensors, {"name": names, "info": [{"row": row} for row in range(count)]}, {"step": 3})


def call(group: Any, way: str, data: DataProto) -> DataProto:
    result = group.func(as_worker, data) if way == "func" else getattr(group, way)(data)
    return result.get() if "later" in way else result


def expected(data: DataProto) -> DataProto:
    return changed(data.select(deepcopy=True))


def as_bytes(data: DataProto) -> bytes:
    assert data.batch is not None
    tensors = {name: data.batch[name].numpy().tobytes() for name in sorted(data.batch.keys())}
    objects = [[*values] for _, values in sorted(data.non_tensor_batch.items())]
    return repr((tensors, objects, data.meta_info)).encode()


GROUPS: dict[int, Any] = {}


def in_process(ranks: int) -> Any:
    if ranks not in GROUPS:
        GROUPS[ranks] = NaiveWorkerGroup(ResourcePool([ranks]), ClassWithInitArgs(Echo))
    return GROUPS[ranks]


@settings(max_examples=150, deadline=None)
@given(count=st.integers(0, 17), ranks=st.integers(1, 4), way=st.sampled_from(WAYS), seed=st.integers(0, 99))
def test_what_is_split_comes_back_the_same(count: int, ranks: int, way: str, seed: int) -> None:
    group, data = in_process(ranks), rows(count, seed)
    before = as_bytes(data)
    assert call(group, way, data) == expected(data)
    assert as_bytes(data) == before
    seen = [of_rank[0][-1] for of_rank in group.execute_all_sync("what_was_seen")]
    assert len({length for length, _, _ in seen}) == 1, "shards are equally long"
    shared = group.workers[0].shared if "nd" in way else 1
    assert sum(length - padding for length, padding, _ in seen) == count * shared
    if way in ("grouped", "both", "later_both", "nd_both"):
        for group_id in data.batch["group_ids"].unique().tolist():
            assert sum(group_id in groups for _, _, groups in seen) == shared, "a group is on one rank"


@pytest.fixture(scope="module")
def ray_group(make_ray_group: Callable[..., WorkerGroup]) -> WorkerGroup:
    return make_ray_group(Echo, ranks=4)


@pytest.mark.parametrize("way", WAYS)
def test_ray_gives_the_same_bytes(ray_group: Any, way: str) -> None:
    for count in (0, 1, 6, 17) if way in ("nd_both", "both") else (3,):
        data = rows(count)
        assert as_bytes(call(ray_group, way, data)) == as_bytes(call(in_process(4), way, data))
    assert {asked for _, asked in ray_group.execute_all_sync("what_was_seen")} <= {0, 1}


@pytest.mark.parametrize("kind", ["naive", "ray"])
def test_futures_move_between_calls_of_any_split(request: pytest.FixtureRequest, kind: str) -> None:
    group = request.getfixturevalue("ray_group") if kind == "ray" else in_process(4)
    for first in ("later", "later_both", "nd_later"):
        for count in (3, 8):
            future = getattr(group, first)(rows(count))
            for way in ("plain", "both", "nd"):
                assert call(group, way, future) == expected(expected(rows(count)))
            assert future.get() == expected(rows(count))
            assert [len(part.get()) for part in future.chunk(2)] == [(count + 1) // 2, count // 2]


def test_shards_of_different_lengths_are_joined_where_padding_can_be_told() -> None:
    group = in_process(2)
    assert group.lopsided(rows(8)).get().batch["x"].tolist() == [0, 1, 2, 3, 4]
    for way in WAYS:
        assert call(group, way, group.lopsided(rows(8))).batch["x"].tolist() == [0, 2, 4, 6, 8]
    group.execute_all_sync("what_was_seen")
    future = group.lopsided(rows(7))
    with pytest.raises(DispatchError, match="rank 1 was given 4 rows, 1 of them padding, and 1 came back"):
        future.get()


def test_results_of_several_rows_for_each_come_back_in_order() -> None:
    assert in_process(3).twice_each(rows(7)).batch["x"].tolist() == [row for row in range(7) for _ in range(2)]


def test_metrics_of_whole_groups_count_no_padding() -> None:
    data = rows(9)
    counts = in_process(3).count(data)
    assert sum(each["rows"] for each in counts) == 9
    assert sum(each["groups"] for each in counts) == len(data.batch["group_ids"].unique())


def test_work_is_spread_evenly() -> None:
    lengths = torch.tensor([8, 1, 1, 1, 1, 1, 1, 2])
    mask = torch.arange(8)[None] < lengths[:, None]
    data = DataProto.from_dict({"attention_mask": mask})
    shares = shares_of(data, 2, Rule(balance=token_work), padded=True)
    assert sorted(int(lengths[list(share.rows)].sum()) for share in shares) == [5, 11]
    grouped = DataProto.from_dict({"attention_mask": mask, "group_ids": torch.tensor([0, 1, 1, 1, 1, 1, 1, 1])})
    shares = shares_of(grouped, 2, Rule("group_ids", token_work), padded=False)
    assert [int(lengths[list(share.rows)].sum()) for share in shares] == [8, 8]


def test_repeated_rows_share_nothing_and_stay_here() -> None:
    data = DataProto.from_dict(None, {"info": [{}, {}, {}], "group": ["a", "a", "b"]})
    result = in_process(2).objects(data)
    assert list(result.non_tensor_batch["info"]) == [{"seen": 1}] * 3
    assert list(data.non_tensor_batch["info"]) == [{}] * 3


@pytest.mark.parametrize("mode", AGG_MODES)
def test_padding_changes_no_loss_and_no_group(mode: Any) -> None:
    data = rows(3)
    losses = torch.rand(8, 3)
    opened = Shard(data.select_idxs([0, 1, 2, 0, 1, 2, 0, 1]), 5).opened()
    assert real_rows(opened).tolist() == [True] * 3 + [False] * 5
    assert real_rows(data).tolist() == [True] * 3
    assert opened.batch["group_ids"][3:].tolist() == [-1] * 5
    wanted = Denominators.of(data.batch["response_mask"])
    padded = Denominators.of(opened.batch["response_mask"])
    assert padded == wanted
    args = {"norm_length": 3} if mode == "seq-mean-token-sum-norm" else {}
    whole = aggregate(losses[:3], data.batch["response_mask"], mode, wanted, **args)
    assert torch.equal(aggregate(losses, opened.batch["response_mask"], mode, padded, **args), whole)
    assert data.batch["group_ids"].tolist() == rows(3).batch["group_ids"].tolist()


def test_ragged_masks_of_padding_are_empty() -> None:
    mask = torch.nested.nested_tensor([torch.ones(n, dtype=torch.bool) for n in (2, 3, 1)], layout=torch.jagged)
    opened = Shard(DataProto.from_dict({"response_mask": mask}), 1).opened()
    assert [row.tolist() for row in opened.batch["response_mask"].unbind()] == [[True] * 2, [True] * 3, [False]]


def test_tensordicts_are_padded_too() -> None:
    result = in_process(4).tensors(TensorDict({"x": torch.arange(2)}, batch_size=[2]))
    assert result["y"].tolist() == [1, 2]
    assert list(result.keys()) == ["y"]


def test_a_mesh_that_workers_do_not_know_is_an_error() -> None:
    with pytest.raises(DispatchError, match=r"rank 0 knows no mesh `unknown`: call `set_dispatch_collect\('unknown'"):
        in_process(2).lost(rows(2))
    assert in_process(2).failure is None


class Wrong(Worker):
    def __init__(self) -> None:
        self.set_dispatch_collect("both", {"both": 0, "more": 1}, {"both": True})
        self.place(self.rank)

    @register(Dispatch.ONE_TO_ALL)
    def place(self, dp_rank: int) -> None:
        self.set_dispatch_collect("moved", {"moved": dp_rank}, {"moved": True})

    @register(make_nd_compute_dataproto_dispatch_fn("both"))
    def both(self, data: DataProto) -> DataProto:
        return data

    @register(make_nd_compute_dataproto_dispatch_fn("moved"))
    def moved(self, data: DataProto) -> DataProto:
        return DataProto.from_dict({"rank": torch.full((len(data),), self.rank)})


def test_one_rank_collects_for_each_shard() -> None:
    group: Any = NaiveWorkerGroup(ResourcePool([2]), ClassWithInitArgs(Wrong))
    with pytest.raises(DispatchError, match=r"mesh `both`: ranks \[0, 1\] have dp rank 0, and \[0, 1\] of them"):
        group.both(rows(2))
    assert group.query_collect_info("both") == [True, True]
    assert group.workers[1].get_dispatch_collect()["dispatch_dp_rank"] == {"both": 0, "moved": 1}


def test_what_workers_said_of_a_mesh_is_forgotten_when_they_are_rebuilt() -> None:
    group: Any = NaiveWorkerGroup(ResourcePool([2]), ClassWithInitArgs(Wrong))
    assert group.moved(rows(2)).batch["rank"].tolist() == [0, 1]
    for worker in group.workers:
        worker.place(1 - worker.rank)
    assert group.moved(rows(2)).batch["rank"].tolist() == [0, 1], "asked once"
    group.rebuild()
    for worker in group.workers:
        worker.place(1 - worker.rank)
    assert group.moved(rows(2)).batch["rank"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_by": "nothing"}, r"`group_by='nothing'`: the batch has no such column, it has"),
        ({"balance": lambda data: torch.rand(len(data))}, r"`balance` gave weights of shape \(4,\) and torch.float32"),
        ({"balance": lambda data: torch.ones(1).long()}, "give one integer for each of the 4 rows"),
    ],
)
def test_a_split_that_cannot_be_made_is_an_error(options: dict[str, Any], message: str) -> None:
    class Local(Worker):
        @register(PROTO, **options)
        def give(self, data: DataProto) -> DataProto:
            return data

    group: Any = NaiveWorkerGroup(ResourcePool([2]), ClassWithInitArgs(Local))
    with pytest.raises(DispatchError, match=message):
        group.give(rows(4))


def test_only_modes_that_split_take_a_rule() -> None:
    with pytest.raises(DispatchError, match="splits no batch: leave `group_by` and `balance` out"):
        register(Dispatch.ONE_TO_ALL, group_by="group_ids")
