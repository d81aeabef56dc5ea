"""Reward files of a test, and the end of the processes when its module is done."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dagrl.rewards.pool import close_pools


@pytest.fixture(scope="module", autouse=True)
def _no_processes_left() -> Iterator[None]:
    yield
    close_pools()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Write a module of the test's own and return its path."""

    def write(code: str, name: str = "rewards_of_mine.py") -> str:
        (tmp_path / name).write_text(code)
        return str(tmp_path / name)

    return write
