"""How far ranks on Ray are: each notes it in the key-value store of its Ray, and the run looks there now and then.

A rank that runs a node answers no calls, so it cannot be asked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import ray
from ray.experimental import internal_kv

from dagrl.executor.process_sets import RankProgress

_NAMESPACE = b"dagrl_progress"
# Ray has no public names for its store.
_put = internal_kv._internal_kv_put  # pyright: ignore[reportPrivateUsage]
_get = internal_kv._internal_kv_get  # pyright: ignore[reportPrivateUsage]
_del = internal_kv._internal_kv_del  # pyright: ignore[reportPrivateUsage]


class ProgressBoard:
    """The notes of the ranks of one pool of this run; the actors and the driver of one Ray job see the same."""

    def __init__(self, pool: str) -> None:
        self._prefix = f"{ray.get_runtime_context().get_job_id()}/{pool}/"
        self._last: dict[int, bytes] = {}

    def write(self, progress: RankProgress) -> None:
        """Note how far a rank is, instead of what it noted before."""
        _put(self._key(progress.rank), json.dumps(progress).encode(), overwrite=True, namespace=_NAMESPACE)

    def read(self, size: int) -> Sequence[RankProgress]:
        """What ranks below ``size`` have noted since the last time."""
        fresh: list[RankProgress] = []
        for rank in range(size):
            note = _get(self._key(rank), namespace=_NAMESPACE)
            if note and note != self._last.get(rank):
                self._last[rank] = note
                fresh.append(RankProgress(*json.loads(note)))
        return fresh

    def clear(self) -> None:
        """Remove all notes."""
        _del(self._prefix.encode(), del_by_prefix=True, namespace=_NAMESPACE)

    def _key(self, rank: int) -> bytes:
        return f"{self._prefix}{rank}".encode()
