"""What a process is asked to do for one op, and what it tells of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Int32, Int64
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.data.reported import RankMemory, Sample
from dagrl.workers.frames import Rows


@dataclass(frozen=True)
class NodeTask:
    """What one process is asked to do: an op of a plan, on these rows.

    ``rows`` None means the op's rows that are here already. ``group_ids`` and ``positions``, one for each prompt,
    are given to a source alone. ``arrivals`` are shards that other processes have published.
    """

    pipeline: str
    op: str
    step: int
    group_ids: Int64[Tensor, " M"] | None = None
    positions: Int64[Tensor, " M"] | None = None
    rows: Rows | None = None
    arrivals: Mapping[str, Sequence[tuple[Any, int]]] = field(default_factory=dict)
    state: Any = None

    @property
    def row_bytes(self) -> int:
        """The bytes in it that grow with the rows."""
        rows = () if self.rows is None else (self.rows.row_ids, self.rows.group_ids)
        return sum(ids.nbytes for ids in (self.group_ids, self.positions, *rows) if ids is not None)


@dataclass(frozen=True)
class NodeReport:
    """What the driver learns of a task: counts, metrics and state, never a column.

    ``metrics`` are the node's own, ``statistics`` those of the row columns it wrote. ``kept`` are the row ids that a
    filter let pass; ``num_tokens`` counts the tokens of each row, and ``response_tokens`` those of all responses, where
    they are written. ``bytes`` are those of the
    written tensors. ``samples`` are texts of a few rows, on rank 0 of a node that scores; ``held`` is what the process
    holds after it. ``printed`` is what the node wrote to the console of another process.
    """

    num_rows: int
    metrics: Metrics
    statistics: Metrics
    state: Any
    seconds: float
    cpu_seconds: float
    bytes: int
    kept: Int64[Tensor, " K"] | None = None
    num_tokens: Int32[Tensor, " B"] | None = None
    response_tokens: int = 0
    samples: tuple[Sample, ...] = ()
    held: RankMemory | None = None
    printed: str = ""

    @property
    def row_bytes(self) -> int:
        """The bytes in it that grow with the rows."""
        return sum(ids.nbytes for ids in (self.kept, self.num_tokens) if ids is not None)
