"""The lists of breakages fit the code as it is, and the replay tells a noticed one from the others."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.__main__ import Verdict, copied, judged, score, sound
from tests.mutants.mutant import ROOT, Mutant, all_mutants

MUTANTS = list(all_mutants())


def test_every_breakage_fits_the_code() -> None:
    assert not [(mutant.why, faults) for mutant in MUTANTS if (faults := mutant.faults())]


def test_there_are_enough_and_none_comes_twice() -> None:
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS) >= 40


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("mutants") / "copy")


RATIO = Mutant(
    file="dagrl/ops/kl.py",
    old="return difference.square() / 2",
    new="return difference.square()",
    tests="tests/unit/ops/test_kl.py",
    why="k2 is not halved",
)


def test_a_breakage_that_a_test_notices(root: Path) -> None:
    assert judged(root, RATIO) == Verdict("")
    assert (root / RATIO.file).read_text() == (ROOT / RATIO.file).read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tests": "tests/unit/ops/test_random.py"}, "NOT NOTICED"),
        ({"tests": "tests/unit/ops/test_kl.py -k nothing_of_this_name"}, "pytest ended with 5"),
        ({"old": "no such text"}, "has the text 0 times"),
        ({"file": "dagrl/ops/gone.py"}, "there is no `dagrl/ops/gone.py`"),
        ({"new": RATIO.old}, "it changes nothing"),
    ],
)
def test_what_is_no_noticed_breakage(root: Path, change: dict[str, str], said: str) -> None:
    found = judged(root, replace(RATIO, **change))
    assert said in found.fault
    assert not found.timed_out


def test_one_that_keeps_its_tests_from_ending_is_told_apart(root: Path) -> None:
    endless = replace(RATIO, new="while True:\n                pass")
    assert judged(root, endless, seconds=10.0) == Verdict("", timed_out=True)
    assert (root / RATIO.file).read_text() == (ROOT / RATIO.file).read_text()


def test_tests_that_fail_without_a_breakage_are_named_with_their_exit_code(tmp_path: Path) -> None:
    (tmp_path / "test_ends_badly.py").write_text(
        "import atexit, os\n\n\ndef test_ends_badly():\n    atexit.register(os._exit, 134)\n"
    )
    assert "`test_ends_badly.py` does not pass without a breakage: pytest ended with 134:" in sound(
        tmp_path, "test_ends_badly.py"
    )
    (tmp_path / "test_ends_well.py").write_text("def test_ends_well():\n    pass\n")
    assert sound(tmp_path, "test_ends_well.py") == ""


def test_the_score_says_which_were_noticed_by_time_out_alone() -> None:
    noticed, late, missed = Verdict(""), Verdict("", timed_out=True), Verdict("NOT NOTICED")
    assert [str(verdict) for verdict in (noticed, late, missed)] == ["noticed", "noticed by time-out", "NOT NOTICED"]
    assert score([(RATIO, noticed), (RATIO, missed)]) == "1 of 2 breakages noticed, 0 of them by time-out"
    said = score([(RATIO, noticed), (RATIO, late), (RATIO, missed)])
    assert said == "2 of 3 breakages noticed, 1 of them by time-out: dagrl/ops/kl.py (k2 is not halved)"
