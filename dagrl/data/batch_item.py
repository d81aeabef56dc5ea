"""One row of a batch."""

import copy
from dataclasses import dataclass, field
from typing import Any

from tensordict import TensorDict

from dagrl.data.wire import state_to_send


@dataclass
class DataProtoItem:
    """One row: tensors without the row dim, and plain values."""

    batch: TensorDict | None = None
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return state_to_send(vars(self))

    def __copy__(self) -> "DataProtoItem":
        return DataProtoItem(self.batch, self.non_tensor_batch, self.meta_info)

    def __deepcopy__(self, memo: dict[int, Any]) -> "DataProtoItem":
        return DataProtoItem(*copy.deepcopy((self.batch, self.non_tensor_batch, self.meta_info), memo))
