"""vLLM's executor for processes that others have started, with a name of its own for the memory they share."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist
from vllm.distributed.parallel_state import get_tp_group
from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher


class GroupExecutor(ExecutorWithExternalLauncher):
    """Takes rank and group from the default process group.

    vLLM names the memory that processes of a machine share after how their group was made. Of `env://` there is one
    name for all runs: two of them, or what a killed one has left, would be in each other's way.
    """

    def _init_executor(self) -> None:
        """Start, and have the shared memory end with its processes, which all have it open by now."""
        super()._init_executor()
        group: Any = get_tp_group()
        name = f"{group.device_communicator.dist_module.group_name}_{group.rank_in_group}"
        with suppress(FileNotFoundError):
            Path("/dev/shm", name).unlink()

    def _distributed_args(self) -> tuple[str, int, int]:
        _, rank, local_rank = super()._distributed_args()
        name = [f"dagrl{os.getpid()}"]
        dist.broadcast_object_list(name)
        return f"env://:{name[0]}", rank, local_rank
