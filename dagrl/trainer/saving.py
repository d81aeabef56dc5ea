"""When the checkpoints of a run are saved, and what is in them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dagrl.executor.base import Executor
from dagrl.executor.events import CheckpointSaved
from dagrl.storage.checkpoints import Checkpoint, Checkpoints
from dagrl.storage.run_folder import RunFolder


@dataclass(frozen=True)
class Saving:
    """How many checkpoints are kept, and when they are saved: every so many steps, after the last, and on a signal.

    With ``every=0`` only a signal saves.
    """

    every: int = 0
    keep: int = 2


#: Nothing but a signal saves.
ON_SIGNAL = Saving()


class Saver:
    """Saves checkpoints when they are due; ``newest`` is the last one that is there."""

    def __init__(
        self, saving: Saving, checkpoints: Checkpoints, description: Mapping[str, Any], newest: Checkpoint | None
    ) -> None:
        self._every = saving.every
        self._checkpoints = checkpoints
        self._description = description
        self.newest = newest

    def is_due(self, step: int, num_steps: int) -> bool:
        """Every so many steps, and after the last."""
        return self._every > 0 and (step % self._every == 0 or step == num_steps)

    def has(self, step: int) -> bool:
        """Whether there is a checkpoint of the step."""
        return self.newest is not None and self.newest.step == step

    def save(self, step: int, executor: Executor, folder: RunFolder, drawn: Mapping[str, int]) -> CheckpointSaved:
        """Save everything after ``step``, and how much of the data is drawn; complete when this returns."""
        started = time.perf_counter()
        parts = executor.save_state(self._checkpoints.begin(step))
        state = {"run": self._description, "lines": folder.cut(), "drawn": dict(drawn)}
        self.newest = self._checkpoints.publish(step, parts, state)
        num_bytes = sum(part.bytes for part in parts)
        return CheckpointSaved(time.time(), step, time.perf_counter() - started, num_bytes)
