"""Memory in which one bucket of weights after the other is put together."""

from __future__ import annotations

import weakref

import numpy as np
import torch
from torch import Tensor


class BucketMemory:
    """Hands out memory for a bucket at a time, on the CPU the same for all of them.

    Pages that are new to a process cost more than what is copied into them, so what the largest bucket took is kept
    from sync to sync. Memory of which a tensor is still alive is never handed out again: the bucket after it then has
    memory of its own. On an accelerator torch's allocator does all this, and nothing is kept here.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, dtype=np.uint8)
        self._taken: weakref.ref[np.ndarray] | None = None

    @property
    def num_bytes(self) -> int:
        """What is kept."""
        return self._memory.nbytes

    def take(self, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """So many numbers, of any values, one after the other."""
        if device.type != "cpu" or numel == 0:
            return torch.empty(numel, dtype=dtype, device=device)
        num_bytes = numel * dtype.itemsize
        is_taken = self._taken is not None and self._taken() is not None
        if is_taken or num_bytes > len(self._memory):
            self._memory = np.empty(0, dtype=np.uint8)  # what was there goes first
            self._memory = np.empty(num_bytes, dtype=np.uint8)
        # A tensor and all its views keep the array that it was made of alive, and this one is of no one else.
        lent = self._memory[:num_bytes]
        self._taken = weakref.ref(lent)
        return torch.from_numpy(lent).view(dtype)
