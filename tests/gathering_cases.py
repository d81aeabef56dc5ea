"""What ranks gather, importable by name in their processes."""

from typing import Any

import torch
from tensordict import TensorDict

from dagrl.data import DataProto, all_gather_data_proto
from dagrl.errors import DataError


def rank_batch(rank: int) -> DataProto:
    """rank + 1 rows of several dtypes and layouts; rank 1 also has a metric of its own."""
    rows = rank + 1
    jagged = torch.nested.nested_tensor([torch.arange(i + rank) for i in range(rows)], layout=torch.jagged)
    tensors = {
        "row": torch.arange(rows) + 10 * rank,
        "half": torch.full((rows, 3), rank + 0.5, dtype=torch.bfloat16),
        "wide": torch.arange(4 * rows).view(rows, 4)[:, ::2],
        "jagged": jagged,
    }
    objects = {"o": [{"rank": rank, "i": i} for i in range(rows)]}
    return DataProto(TensorDict(tensors, batch_size=[rows]), objects, {"name": "x", "metrics": {"loss": float(rank)}})


def gather(rank: int, size: int) -> dict[str, Any]:
    data = rank_batch(rank)
    returned = all_gather_data_proto(data, None)
    objects = DataProto(None, {"o": [rank]})
    all_gather_data_proto(objects, None)
    pairs = [torch.distributed.new_group([0, 1]), torch.distributed.new_group([2])]
    paired = rank_batch(rank)
    all_gather_data_proto(paired, pairs[rank // 2])
    error = ""
    try:
        all_gather_data_proto(DataProto.from_dict({f"x{rank // 2}": torch.ones(1)}), None)
    except DataError as failure:
        error = str(failure)
    return {
        "same": returned is data,
        "rows": data.batch["row"].tolist(),
        "whole": data == DataProto.concat([rank_batch(each) for each in range(size)]),
        "objects": objects.non_tensor_batch["o"].tolist(),
        "paired": paired.batch["row"].tolist(),
        "error": error,
    }
