"""One breakage of the code in one place, and the tests that must notice it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Mutant:
    """``old``, which stands once in the file, becomes ``new``; ``why`` says what that breaks.

    ``tests`` are pytest's arguments, separated by spaces.
    """

    file: str
    old: str
    new: str
    tests: str
    why: str

    def faults(self) -> list[str]:
        """Why this is no breakage of the code as it is; empty if it is one."""
        path = ROOT / self.file
        if not path.is_file():
            return [f"there is no `{self.file}`"]
        found = path.read_text().count(self.old)
        missing = [f"there is no `{each}`" for each in self.test_files if not (ROOT / each).exists()]
        places = [] if found == 1 else [f"`{self.file}` has the text {found} times, not once: {self.old!r}"]
        same = ["it changes nothing"] if self.old == self.new else []
        return [*places, *missing, *same]

    @property
    def test_files(self) -> list[str]:
        """The files and folders among the arguments."""
        return [word.partition("::")[0] for word in self.tests.split() if word.startswith("tests/")]

    def apply(self, root: Path) -> None:
        """Break the copy of the project at ``root``."""
        path = root / self.file
        path.write_text(path.read_text().replace(self.old, self.new))


def all_mutants() -> Iterator[Mutant]:
    """Those of every list in this folder."""
    for path in sorted(HERE.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            yield Mutant(**json.loads(line))
