"""Ending an engine of vLLM in a process that goes on."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

#: The default process group that an engine has made where it found none.
_made: list[dist.ProcessGroup] = []


def has_foreign_group() -> bool:
    """Whether there is a default process group, and it is none that an engine has made."""
    return dist.is_initialized() and dist.group.WORLD not in _made


def note_group(*, found: bool) -> None:
    """Remember the group that an engine has made as it started, unless it has ``found`` one."""
    world = dist.group.WORLD
    _made[:] = [] if found or world is None else [world]


def end_vllm(llm: Any, *, found_group: bool) -> None:
    """Shut the engine down; ``found_group`` is whether others had made the default process group."""
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
