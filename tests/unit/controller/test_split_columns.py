"""Columns of every dtype and layout, jagged ones too, through every way to split a batch."""

from typing import Any

import torch
from batches import as_rows, batches
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagrl.controller import (
    ClassWithInitArgs,
    Dispatch,
    NaiveWorkerGroup,
    ResourcePool,
    Worker,
    make_nd_compute_dataproto_dispatch_fn,
    real_rows,
    register,
)
from dagrl.data import DataProto

PROTO = Dispatch.DP_COMPUTE_PROTO


def by_number(data: DataProto) -> torch.Tensor:
    return torch.tensor([1 + number % 5 for number in data.non_tensor_batch["number"]], dtype=torch.int64)


class Columns(Worker):
    def __init__(self) -> None:
        self.set_dispatch_collect("pairs", self.rank // 2, self.rank % 2 == 1 or self.world_size % 2 == 1)
        self.real = 0

    def look(self, data: DataProto) -> DataProto:
        self.real = int(real_rows(data).sum())
        return data

    in_order = register(PROTO)(lambda self, data: self.look(data))
    grouped = register(PROTO, group_by="key")(lambda self, data: self.look(data))
    balanced = register(PROTO, balance=by_number)(lambda self, data: self.look(data))
    both = register(PROTO, group_by="key", balance=by_number)(lambda self, data: self.look(data))
    later = register(PROTO, blocking=False)(lambda self, data: self.look(data))
    pairs = register(make_nd_compute_dataproto_dispatch_fn("pairs"))(lambda self, data: self.look(data))

    @register(Dispatch.DP_COMPUTE_METRIC, group_by="key")
    def rows(self, data: DataProto) -> dict[str, Any]:
        return {"rows": len(data), "keys": set(data.non_tensor_batch["key"])}


GROUPS: dict[int, Any] = {
    ranks: NaiveWorkerGroup(ResourcePool([ranks]), ClassWithInitArgs(Columns)) for ranks in (1, 2, 3, 4)
}
WAYS = ("in_order", "grouped", "balanced", "both", "later", "pairs")


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(batches(), st.integers(1, 4), st.sampled_from(WAYS), st.data())
def test_rows_come_back_as_they_went(data: DataProto, ranks: int, way: str, draw: Any) -> None:
    keys = draw.draw(st.lists(st.sampled_from(["a", ("b", 1), None]), min_size=len(data), max_size=len(data)))
    data = DataProto(data.batch, {**data.non_tensor_batch, "key": keys}, data.meta_info)
    wanted, group = as_rows(data), GROUPS[2 if way == "pairs" and ranks == 3 else ranks]
    result = getattr(group, way)(data)
    result = result.get() if way == "later" else result
    assert as_rows(result) == wanted == as_rows(data)
    assert result == data
    collected = [worker for worker in group.workers if way != "pairs" or worker.query_collect_info("pairs")]
    assert sum(worker.real for worker in collected) == len(data)
    counts = group.rows(data)
    assert sum(count["rows"] for count in counts) == len(data)
    assert sum(len(count["keys"]) for count in counts) == len(set(keys))


def test_a_batch_of_meta_info_goes_to_every_rank() -> None:
    for empty in (DataProto(), DataProto(meta_info={"step": 3})):
        for way in ("in_order", "pairs"):
            assert getattr(GROUPS[2], way)(empty) == empty
