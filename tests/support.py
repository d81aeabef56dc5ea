"""What several tests share: small runs of the shipped pipeline, and ways to look at what they leave."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dagrl.cli.pipeline_file import LoadedPipelines, load_pipelines
from dagrl.storage.segments import read_lines
from dagrl.trainer.loop import run
from dagrl.trainer.records import RunResult

ROOT = Path(__file__).resolve().parent.parent
GRPO = ROOT / "pipelines" / "grpo.py"
#: Small enough for a step in a fraction of a second.
SMALL = {"batch_size": "8", "n": "4", "eval_every": "1000"}


def load_grpo(file: Path = GRPO, **values: Any) -> LoadedPipelines:
    """The shipped pipeline (or a changed copy) with fields set as on the command line."""
    return load_pipelines(str(file), {**SMALL, **{key: str(value) for key, value in values.items()}})


def run_grpo(
    out: Path, *, steps: int = 3, seed: int = 0, file: Path = GRPO, evaluate: bool = False, **values: Any
) -> RunResult:
    """A short run; the evaluation only if asked for."""
    pipelines = load_grpo(file, **values).pipelines
    return run(pipelines if evaluate else pipelines[:1], out=str(out), seed=seed, steps=steps)


def edited_pipeline(folder: Path, *edits: tuple[str, str], name: str = "edited.py") -> Path:
    """A copy of pipelines/grpo.py with each first text replaced by the second."""
    text = GRPO.read_text()
    for old, new in edits:
        assert text.count(old) >= 1, f"pipelines/grpo.py has no {old!r}"
        text = text.replace(old, new)
    copy = folder / name
    copy.write_text(text)
    return copy


def calls_of(act: Callable[[], object]) -> int:
    """How many functions are called while this is done: its work, the same on every machine, busy or not."""
    calls = 0

    def count(_frame: object, kind: str, _argument: object) -> None:
        nonlocal calls
        calls += kind in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(before)
    return calls


def untimed(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics without the times, the only keys in which equal runs differ."""
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


def metrics_lines(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run folder without times."""
    return [untimed(line) for line in read_lines(str(folder), "metrics")]


def event_lines(folder: Path) -> list[dict[str, Any]]:
    """The events of a run folder."""
    return read_lines(str(folder), "events")
