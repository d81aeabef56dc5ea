"""Every dispatch mode, with equal results in this process and on Ray."""

import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from dagrl.controller import (
    Dispatch,
    Execute,
    Worker,
    WorkerGroup,
    get_predefined_dispatch_fn,
    get_predefined_execute_fn,
    register,
    register_dispatch_mode,
    ship_by_value,
    update_dispatch_mode,
)
from dagrl.data import DataProto
from dagrl.errors import DispatchError, WorkerError

ship_by_value(sys.modules[__name__])


def _reversed(group: WorkerGroup, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    return tuple(list(reversed(value)) for value in args), {}


def _summed(group: WorkerGroup, outputs: list[int]) -> int:
    return sum(outputs) * group.world_size


class Actor(Worker):
    def __init__(self, x: int) -> None:
        self.x = x

    @register(Dispatch.ONE_TO_ALL)
    def add(self, y: int, *, times: int = 1) -> int:
        return self.x + self.rank * 10 + y * times

    @register()
    def each(self, y: int, z: int = 0) -> tuple[int, int, int]:
        return self.rank, y, z

    @register(Dispatch.DP_COMPUTE)
    def compute(self, y: int) -> int:
        return y * 2

    @register(Dispatch.RANK_ZERO)
    def first(self, values: list[int]) -> tuple[int, int]:
        return self.rank, len(values)

    @register(execute_mode=Execute.RANK_ZERO)
    def also_first(self, values: list[int]) -> tuple[int, int]:
        return self.rank, len(values)

    @register(Dispatch.DP_COMPUTE_PROTO)
    def double(self, data: DataProto, scale: int = 2) -> DataProto:
        rank = torch.full((len(data),), self.rank)
        return DataProto.from_dict(
            {"x": data.batch["x"] * scale, "rank": rank}, {"text": data.non_tensor_batch["text"]}
        )

    @register(Dispatch.DP_COMPUTE_PROTO)
    def twice_each(self, data: DataProto) -> DataProto:
        return data.repeat(2)

    @register(Dispatch.DP_COMPUTE_PROTO)
    def half(self, data: DataProto) -> DataProto:
        return data.slice(0, 1)

    @register(Dispatch.DP_COMPUTE_PROTO)
    def tensors(self, data: TensorDict) -> TensorDict:
        return TensorDict({"y": data["x"] + 1}, batch_size=data.batch_size)

    @register(Dispatch.DP_COMPUTE_PROTO)
    def nothing(self, data: DataProto) -> None:
        self.kept = data

    @register(Dispatch.DP_COMPUTE_PROTO)
    def number(self, data: DataProto) -> int:
        return len(data)

    @register(Dispatch.DP_COMPUTE_METRIC)
    def count(self, data: DataProto) -> dict[str, int]:
        return {"rows": len(data), "sum": int(data.batch["x"].sum())}

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def later(self, data: DataProto) -> DataProto:
        return data

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    async def waited(self, y: int) -> int:
        return self.x + y

    @register((_reversed, _summed))
    def pair(self, y: int) -> int:
        return y * (self.rank + 1)

    @register({"dispatch_fn": _reversed, "collect_fn": _summed})
    def mapped(self, y: int) -> int:
        return y * (self.rank + 1)

    def plain(self, y: int = 0) -> int:
        return self.x + y + self.rank


def rows(count: int) -> DataProto:
    return DataProto.from_dict({"x": torch.arange(count)}, {"text": [f"t{row}" for row in range(count)]})


def add_rank(worker: Actor, data: DataProto, offset: int) -> DataProto:
    return DataProto.from_dict({"x": data.batch["x"] + offset + worker.rank})


@pytest.fixture(scope="module")
def group(make_group: Callable[..., WorkerGroup]) -> WorkerGroup:
    return make_group(Actor, 3)


def test_one_to_all_gives_every_rank_the_same(group: Any) -> None:
    assert group.add(1) == [4, 14]
    assert group.add(1, times=3) == [6, 16]
    assert group.world_size == 2
    assert len(group.workers) == 2


def test_all_to_all_gives_each_rank_its_item(group: Any) -> None:
    assert group.each([1, 2], z=[3, 4]) == [(0, 1, 3), (1, 2, 4)]
    assert group.compute([5, 6]) == [10, 12]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda group: group.each(1), "`each`: argument `y` is a `int`, but this dispatch mode needs a list of 2"),
        (lambda group: group.each([1, 2], z=[1]), "`each`: argument `z` has 1 items"),
        (lambda group: group.each([1, 2], [1, 2, 3]), "`each`: argument `z` has 3 items"),
        (lambda group: group.compute("ab"), "`compute`: argument `y` is a `str`"),
        (lambda group: group.double(rows(4), scale=rows(3)), "`double`: argument `scale` has 3 rows, but the first"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(group: Any, call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(DispatchError) as caught:
        call(group)
    assert str(caught.value).startswith(message)


def test_rank_zero_is_called_alone(group: Any) -> None:
    assert group.first([1, 2, 3]) == (0, 3)
    assert group.also_first([1, 2, 3]) == (0, 3)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
def test_proto_is_split_padded_and_put_together(group: Any, count: int) -> None:
    data = rows(count)
    result = group.double(data, scale=3)
    assert result.batch["x"].tolist() == [row * 3 for row in range(count)]
    assert list(result.non_tensor_batch["text"]) == [f"t{row}" for row in range(count)]
    assert result.batch["rank"].tolist() == [int(row >= (count + 1) // 2) for row in range(count)]
    assert data == rows(count)


def test_padding_leaves_with_all_the_rows_that_came_of_it(group: Any) -> None:
    assert group.twice_each(rows(3)).batch["x"].tolist() == [0, 0, 1, 1, 2, 2]
    assert group.double(data=rows(3)).batch["x"].tolist() == [0, 2, 4]


def test_padding_that_cannot_be_told_apart_is_an_error(group: Any) -> None:
    assert len(group.half(rows(4))) == 2
    with pytest.raises(DispatchError, match="rank 1 was given 2 rows, 1 of them padding, and 1 came back"):
        group.half(rows(3))


def test_tensordicts_are_split_too(group: Any) -> None:
    result = group.tensors(TensorDict({"x": torch.arange(3)}, batch_size=[3]))
    assert result["y"].tolist() == [1, 2, 3]


def test_a_method_of_batches_returns_batches_or_nothing(group: Any) -> None:
    assert group.nothing(rows(4)) is None
    with pytest.raises(DispatchError, match="rank 0 returned a `int`"):
        group.number(rows(4))


def test_metrics_count_no_padding(group: Any) -> None:
    assert group.count(rows(3)) == [{"rows": 2, "sum": 1}, {"rows": 1, "sum": 2}]
    assert group.count(rows(1)) == [{"rows": 1, "sum": 0}, {"rows": 0, "sum": 0}]


def test_a_function_runs_on_every_rank(group: Any) -> None:
    result = group.execute_with_func_generator(add_rank, rows(3), 100)
    assert result.batch["x"].tolist() == [100, 101, 103]
    assert group.execute_func_rank_zero(max, [1, 5]) == 5
    with pytest.raises(DispatchError, match="must be a function"):
        group.execute_with_func_generator(rows(3))


def test_functions_of_the_users_dispatch_and_collect(group: Any) -> None:
    assert group.pair([1, 10]) == (10 * 1 + 1 * 2) * 2
    assert group.mapped([1, 10]) == (10 * 1 + 1 * 2) * 2


def test_futures_are_values_or_shards_of_later_calls(group: Any) -> None:
    even, odd = group.later(rows(4)), group.later(rows(3))
    assert len(even.futures) == 2
    assert even.even
    assert not odd.even
    assert group.double(even).batch["x"].tolist() == [0, 2, 4, 6]
    assert group.double(odd).batch["x"].tolist() == [0, 2, 4]
    assert group.count(even) == [{"rows": 2, "sum": 1}, {"rows": 2, "sum": 5}]
    assert odd.get(timeout=30, deadline=60) == rows(3)
    assert odd.poll()


def test_futures_that_are_no_batches_are_values_too(group: Any) -> None:
    later = group.waited(4)
    assert group.each(later, z=later) == [(0, 7, 7), (1, 7, 7)]
    assert group.execute_all_sync("plain", later) == [10, 11]
    assert group.execute_all_sync("plain", y=group.execute_rank_zero("plain", 1)) == [7, 8]
    assert group.execute_rank_zero_sync("plain", group.execute_rank_zero_async("plain", y=1)) == 7
    with pytest.raises(DispatchError, match=r"a `CallFuture` stays in the program that made the call"):
        pickle.dumps(later)


def test_async_methods(group: Any) -> None:
    assert group.waited(4).get() == [7, 7]


def test_any_public_method_by_name(group: Any) -> None:
    assert group.execute_all_sync("plain", y=1) == [4, 5]
    assert group.execute_all_sync("plain", [1, 2]) == [4, 6]
    assert group.execute_all_async("plain").get() == [3, 4]
    assert group.execute_rank_zero_sync("plain", 5) == 8
    assert group.execute_rank_zero("plain").get() == 3
    with pytest.raises(DispatchError, match="`Actor` has no public method `plan`; did you mean `plain`"):
        group.execute_all("plan")


def test_an_error_names_type_message_method_group_rank_and_node(make_group: Callable[..., WorkerGroup]) -> None:
    group: Any = make_group(Actor, 3, name_prefix="actor")
    with pytest.raises(WorkerError) as caught:
        group.double(DataProto.from_dict({"y": torch.zeros(4)}))
    error = caught.value
    assert (error.method, error.group, error.node_ip) == ("double", "actor", "127.0.0.1")
    where = f"rank {error.rank} of worker group `actor` (node 127.0.0.1)"
    assert str(error).startswith(f"`double` failed on {where}: KeyError: ")
    assert isinstance(error.original, KeyError)
    assert "in double" in error.worker_traceback
    with pytest.raises(WorkerError) as again:
        group.add(1)
    assert again.value is error


def test_modes_can_be_added_and_changed(make_group: Callable[..., WorkerGroup]) -> None:
    name = f"backwards_{make_group.__name__.strip('<>')}"
    mode = register_dispatch_mode(name, _reversed, _summed)
    assert vars(Dispatch)[name.upper()] is mode
    with pytest.raises(DispatchError, match="already"):
        register_dispatch_mode(name, _reversed, _summed)

    class Local(Worker):
        @register(mode)
        def give(self, y: int) -> int:
            return y

    group: Any = make_group(Local)
    assert group.give([1, 2]) == 6
    update_dispatch_mode(mode, _reversed, lambda group, outputs: outputs)
    assert group.give([1, 2]) == [2, 1]


def test_predefined_functions() -> None:
    functions = get_predefined_dispatch_fn(Dispatch.ONE_TO_ALL)
    assert set(functions) == {"dispatch_fn", "collect_fn"}
    assert get_predefined_execute_fn(Execute.RANK_ZERO) == {"execute_fn_name": "execute_rank_zero"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dispatch_mode": "ONE_TO_ALL"}, "dispatch_mode='ONE_TO_ALL' is none"),
        ({"dispatch_mode": {"dispatch_fn": _reversed}}, "is none"),
        ({"dispatch_mode": (_reversed, 3)}, "is none"),
        ({"dispatch_mode": Dispatch("NEW")}, "there is no dispatch mode `NEW`"),
        ({"execute_mode": "ALL"}, "execute_mode='ALL' is none"),
        ({"dispatch_mode": Dispatch.DP_COMPUTE_PROTO, "execute_mode": Execute.RANK_ZERO}, "cannot run on rank 0 alone"),
    ],
)
def test_a_registration_that_means_nothing_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DispatchError, match=message):
        register(**options)


def test_a_method_named_like_one_of_the_group_is_refused(make_group: Callable[..., WorkerGroup]) -> None:
    class Clash(Worker):
        @register(Dispatch.ONE_TO_ALL)
        def kill(self) -> None: ...

    with pytest.raises(DispatchError, match=r"`Clash.kill` is registered under a name"):
        make_group(Clash)


def test_object_columns_need_no_tensors(group: Any) -> None:
    data = DataProto.from_dict(None, {"text": np.array(["a", "b", "c"], dtype=object)})
    assert list(group.twice_each(data).non_tensor_batch["text"]) == ["a", "a", "b", "b", "c", "c"]
