"""What a process adds to a checkpoint: the state of its workers, and of the random generators that anybody may use."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dagrl.errors import CheckpointError
from dagrl.storage.checkpoints import PartRecord, StatePart, write_part
from dagrl.workers.base import RoleWorker

OpenPart = Callable[[str], StatePart]


def save_process(folder_url: str, workers: Mapping[str, RoleWorker], rank: int, process: str) -> list[PartRecord]:
    """Write a part ``GROUP-00000`` for each worker that has something to add, and one for the random generators.

    ``process`` names this process among all of the run.
    """
    states = {name: worker.state() for name, worker in workers.items()}
    written = [
        write_part(folder_url, f"{name}-{rank:05d}", state.tensors, state.info)
        for name, state in states.items()
        if state is not None
    ]
    return [*written, write_part(folder_url, _random_part(process), *random_state())]


def load_process(open_part: OpenPart, names: Sequence[str], workers: Mapping[str, RoleWorker], process: str) -> None:
    """Bring workers and random generators to what was saved; ``names`` are those of all parts.

    Raises:
        CheckpointError: when a group that trains has no part.
    """
    for group, worker in workers.items():
        own = [name for name in names if name.rpartition("-")[0] == group]
        if own:
            worker.load_state([open_part(name) for name in own])
        elif worker.group.model.optimizer is not None:
            raise CheckpointError(f"the checkpoint has no part of worker group `{group}`, which trains")
    if _random_part(process) in names:
        set_random_state(open_part(_random_part(process)))


def random_state() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The generators of torch (the CPU's and this process's GPU's), numpy and Python."""
    version, numbers, gauss = random.getstate()
    algorithm, keys, place, has_gauss, cached = np.random.get_state()
    tensors = {"torch": torch.get_rng_state(), "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64))}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    return tensors, {"python": [version, numbers, gauss], "numpy": [algorithm, place, has_gauss, cached]}


def set_random_state(part: StatePart) -> None:
    """Bring the generators to what ``random_state`` said."""
    version, numbers, gauss = part.info["python"]
    random.setstate((version, tuple(numbers), gauss))
    algorithm, place, has_gauss, cached = part.info["numpy"]
    np.random.set_state((algorithm, part.tensor("numpy").numpy().astype(np.uint32), place, has_gauss, cached))
    torch.set_rng_state(part.tensor("torch"))
    if "cuda" in part.names and torch.cuda.is_available():
        torch.cuda.set_rng_state(part.tensor("cuda"))


def _random_part(process: str) -> str:
    """A name that no worker group's part has: no group is named with a plus."""
    return f"random+{process}"
