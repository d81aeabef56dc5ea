"""Ending an engine of vLLM in a process that goes on."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist


def end_vllm(llm: Any, *, found_group: bool) -> None:
    """Shut the engine down; ``found_group`` is whether the process had a default process group before it."""
    with _keeping_the_default_group() if found_group else nullcontext():
        llm.llm_engine.engine_core.shutdown()


def free_memory() -> None:
    """Give back what an engine that nobody refers to has held; a GPU takes the next one only then."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def _keeping_the_default_group() -> Generator[None]:
    """An engine destroys its own groups as it ends, and the default one too, which is the trainer's."""
    destroy = dist.destroy_process_group

    def destroy_others(group: dist.ProcessGroup | None = None) -> None:
        if group is not None and group is not dist.group.WORLD:
            destroy(group)

    dist.destroy_process_group = destroy_others
    try:
        yield
    finally:
        dist.destroy_process_group = destroy
