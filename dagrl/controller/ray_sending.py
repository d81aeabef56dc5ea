"""The arguments of a call on their way to Ray actors: what several ranks get is stored once, large batches at once."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import ray

from dagrl.controller.batches import as_proto, is_batch
from dagrl.controller.shards import Shard
from dagrl.controller.worker_group import RankCall

#: Arguments of these types, texts below a size, and short containers of such travel with each rank's call:
#: storing and fetching one takes longer than sending it again.
_SMALL = (type(None), bool, int, float, complex, ray.ObjectRef)
_SMALL_BYTES = 16384
_SHORT = 32
#: From this size on, batches are copied into the object store side by side.
_LARGE_BYTES = 1 << 20
_THREADS = 4


class Sending:
    """The arguments of a call by rank."""

    def __init__(self, calls: Mapping[int, RankCall]) -> None:
        given = [value for args, kwargs in calls.values() for value in (*args, *kwargs.values())]
        self._counts: dict[int, int] = {}
        for value in given:
            self._counts[id(value)] = self._counts.get(id(value), 0) + 1
        large = {id(value): value for value in given if _bytes_of(value) >= _LARGE_BYTES}
        self._storing: dict[int, Future[Any]] = {}
        if len(large) > 1:
            self._storing = {number: _threads().submit(ray.put, value) for number, value in large.items()}
        self._refs: dict[int, Any] = {}

    def sent(self, value: Any) -> Any:
        """The value, or a reference to it.

        Raises:
            TypeError: when it cannot be sent.
        """
        number = id(value)
        if number in self._storing:
            return self._storing[number].result()
        if self._counts[number] == 1 or _is_small(value):
            return value
        if number not in self._refs:
            self._refs[number] = ray.put(value)
        return self._refs[number]


def _is_small(value: Any) -> bool:
    """Whether sending the value several times costs next to nothing; False where that cannot be told."""
    if isinstance(value, str | bytes):
        return len(value) < _SMALL_BYTES
    if isinstance(value, tuple | list | set | frozenset):
        return len(value) <= _SHORT and all(map(_is_small, value))
    if isinstance(value, dict):
        return len(value) <= _SHORT and all(map(_is_small, value.values()))
    return isinstance(value, _SMALL)


def _bytes_of(value: Any) -> int:
    """What the tensors of a batch take; 0 for anything else."""
    batch = value.batch if isinstance(value, Shard) else value
    if not is_batch(batch):
        return 0
    tensors = as_proto(batch).batch
    return 0 if tensors is None else sum(tensor.nbytes for tensor in tensors.values())


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="dagrl-send")
