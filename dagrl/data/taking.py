"""Places of a dense tensor along one dim, copied as fast as torch can."""

import torch
from jaxtyping import Int64
from torch import Tensor

#: Dtypes of which torch selects nothing along the only dim, and those whose bytes stand in for theirs.
_SELECTED_AS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def taken(tensor: Tensor, dim: int, places: Int64[Tensor, " m"]) -> Tensor:
    """What is at the places, in their order; several times as fast as ``tensor[places]``."""
    stand_in = _SELECTED_AS.get(tensor.dtype)
    if stand_in is None:
        return tensor.index_select(dim, places)
    return tensor.view(stand_in).index_select(dim, places).view(tensor.dtype)
