"""``make mutants``: break the code in one place at a time and see whether the tests notice.

Every breakage is made in a copy of the project, its tests run there, and the score is printed. The exit code is 1 if a
breakage was not noticed, or if its tests fail without it. An argument chooses those whose reason or file contains it.

A test run that a breakage keeps from ending within the time limit counts as noticed, since the same run passes without
it; the score names these apart, as no test has said what is wrong.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from tests.mutants.mutant import ROOT, Mutant, all_mutants

T = TypeVar("T")
R = TypeVar("R")

_SECONDS = 300
#: pytest's exit codes: all passed, and some failed.
_PASSED, _FAILED = 0, 1
_COPIED = ("dagrl", "pipelines", "plugins", "tests", "pyproject.toml", "README.md", "Makefile")


def copied(folder: Path) -> Path:
    """A copy of the project without what was compiled."""
    folder.mkdir()
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return folder


class Verdict(NamedTuple):
    """What became of a breakage: ``fault`` is "" if its tests noticed it, ``timed_out`` if they did not end in time."""

    fault: str
    timed_out: bool = False

    def __str__(self) -> str:
        return self.fault or ("noticed by time-out" if self.timed_out else "noticed")


def outcome(root: Path, tests: str, seconds: float = _SECONDS) -> tuple[int | None, str]:
    """pytest's exit code there, None after the time that a test run may take, and the end of what it and its end said.

    Nothing compiled is left behind: a change within a second that keeps a file's length would not be seen.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests.split()]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, "\n".join([*done.stdout.splitlines()[-12:], *done.stderr.splitlines()[-4:]])


def judged(root: Path, mutant: Mutant, seconds: float = _SECONDS) -> Verdict:
    """Break the copy, run the breakage's tests there, and mend it again."""
    if faults := mutant.faults():
        return Verdict("; ".join(faults))
    whole = (root / mutant.file).read_text()
    try:
        mutant.apply(root)
        code, said = outcome(root, mutant.tests, seconds)
    finally:
        (root / mutant.file).write_text(whole)
    if code in (_FAILED, None):
        return Verdict("", timed_out=code is None)
    return Verdict("NOT NOTICED" if code == _PASSED else f"pytest ended with {code}:\n{said}")


def score(verdicts: Sequence[tuple[Mutant, Verdict]]) -> str:
    """How many breakages were noticed, and how many and which of them by nothing but time."""
    noticed = sum(not verdict.fault for _, verdict in verdicts)
    late = [f"{mutant.file} ({mutant.why})" for mutant, verdict in verdicts if verdict.timed_out]
    names = f": {', '.join(late)}" if late else ""
    return f"{noticed} of {len(verdicts)} breakages noticed, {len(late)} of them by time-out{names}"


def sound(root: Path, tests: str) -> str:
    """What is wrong with the tests without any breakage: "" if they pass."""
    code, said = outcome(root, tests)
    ended = "did not end in time" if code is None else f"ended with {code}"
    return "" if code == _PASSED else f"`{tests}` does not pass without a breakage: pytest {ended}:\n{said}\n"


class Copies:
    """Copies of the project, one for each process, in which work is done side by side."""

    def __init__(self, folder: str, processes: int) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        self._pool = ThreadPoolExecutor(processes)
        for number in range(processes):
            self._free.put(copied(Path(folder, str(number))))

    def map(self, work: Callable[[Path, T], R], items: Iterable[T]) -> Iterator[R]:
        """What the work on each item says, in their order."""
        return self._pool.map(partial(self._with_copy, work), items)

    def _with_copy(self, work: Callable[[Path, T], R], item: T) -> R:
        root = self._free.get()
        try:
            return work(root, item)
        finally:
            self._free.put(root)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chosen", nargs="?", default="")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    mutants = [each for each in all_mutants() if options.chosen in each.why or options.chosen in each.file]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copies = Copies(folder, options.processes)
        broken = [said for said in copies.map(sound, sorted({each.tests for each in mutants})) if said]
        print(*broken, sep="", end="", flush=True)
        verdicts: list[tuple[Mutant, Verdict]] = []
        for mutant, verdict in zip(mutants, copies.map(judged, mutants), strict=True):
            verdicts.append((mutant, verdict))
            print(f"{verdict}: {mutant.file}: {mutant.why}", flush=True)
    print(f"{score(verdicts)}; {time.monotonic() - started:.0f} s")
    return int(any(verdict.fault for _, verdict in verdicts) or bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
