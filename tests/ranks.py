"""Real processes of one group on this machine: run a function on each, or fail within a minute."""

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from dagrl.engines.parallel import end_process_group, start_process_group

#: A rank that waits for another in vain says so after this; the whole group is ended a little later.
TIMEOUT_SECONDS = 30
DEADLINE_SECONDS = 60

#: Imported once for all ranks of all tests, which takes longer than most of them run.
_IMPORTS = [
    "dagrl.workers.policy",
    "transformers.models.llama.modeling_llama",
    "transformers.models.gpt2.modeling_gpt2",
]


def run_on_ranks(
    function: Callable[..., Any], size: int, folder: Path, *args: Any, deadline_seconds: float = DEADLINE_SECONDS
) -> list[Any]:
    """What ``function(rank, size, *args)`` returns on each rank; it must be importable by name."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    mp.get_context("forkserver").set_forkserver_preload(_IMPORTS)
    started = mp.start_processes(
        _one_rank, args=(size, port, folder, function, args), nprocs=size, join=False, start_method="forkserver"
    )
    deadline = time.monotonic() + deadline_seconds
    try:
        while not started.join(timeout=1):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{size} ranks did not end within {deadline_seconds} s")
    finally:
        for process in started.processes:
            process.kill()
            process.join()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


def _one_rank(rank: int, size: int, port: int, folder: Path, function: Callable[..., Any], args: tuple) -> None:
    torch.set_num_threads(1)
    start_process_group(rank, size, "127.0.0.1", port, TIMEOUT_SECONDS)
    torch.save(function(rank, size, *args), folder / f"{rank}.pt")
    end_process_group()
