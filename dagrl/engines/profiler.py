"""Traces of what a process does in chosen steps, by torch's profiler; methods and nodes are named ranges in them."""

from __future__ import annotations

import functools
import gzip
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from dagrl.errors import DagrlError

P = ParamSpec("P")
R = TypeVar("R")


class DistProfiler:
    """The profiler of one process; each rank of a run has its own, and all begin and end together."""

    def __init__(self) -> None:
        self._running: profile | None = None

    def start(self) -> None:
        """Begin a trace: all operators on the CPU, and all kernels where there is an accelerator."""
        if self._running is None:
            kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
            self._running = profile(activities=kinds)
            self._running.start()

    def stop(self) -> bytes:
        """End the trace; what Perfetto and chrome://tracing open, as gzipped JSON.

        Raises:
            DagrlError: when none was begun.
        """
        if self._running is None:
            raise DagrlError("a trace was ended that nobody had begun")
        ended, self._running = self._running, None
        ended.stop()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "trace.json")
            ended.export_chrome_trace(str(file))
            return gzip.compress(file.read_bytes(), mtime=0)

    @staticmethod
    def annotate(name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Have every call of a function be a range in traces, named so, or by the function's qualified name."""

        def wrap(function: Callable[P, R]) -> Callable[P, R]:
            label = name or function.__qualname__

            @functools.wraps(function)
            def called(*args: P.args, **kwargs: P.kwargs) -> R:
                with record_function(label):
                    return function(*args, **kwargs)

            return called

        return wrap
