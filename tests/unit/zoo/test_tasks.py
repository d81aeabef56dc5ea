"""The packaged task: what its splits contain, and how an unknown name is reported."""

import subprocess
import sys

import pytest

from dagrl.errors import ConfigError
from dagrl.zoo import Row, model_folder, open_task
from dagrl.zoo.larger import EASY, HARD, is_held_out

SIZES = {"train": 65_536, "test": 2_048, "sft": 65_536}


def sampled_rows(split: str) -> list[Row]:
    """Every row of the test split, and an eighth of the others in whole cycles of four."""
    task = open_task("larger", split)
    if split == "test":
        return list(task)
    return [task[i] for start in range(0, len(task), 32) for i in range(start, start + 4)]


@pytest.mark.parametrize("split", SIZES)
def test_answer_is_the_larger_number_and_the_source_names_the_stratum(split: str) -> None:
    for prompt, answer, data_source in sampled_rows(split):
        a, b = prompt.split(" ")
        assert len(a) == len(b) == 3
        assert a != b
        assert answer == str(max(int(a), int(b)))
        assert data_source == (HARD if a[0] == b[0] else EASY)
        assert data_source == EASY or a[1] != b[1]


@pytest.mark.parametrize("split", SIZES)
def test_only_test_rows_are_held_out(split: str) -> None:
    assert {is_held_out(row.prompt) for row in sampled_rows(split)} == {split == "test"}


def test_no_test_prompt_is_a_training_prompt() -> None:
    test = {row.prompt for row in sampled_rows("test")}
    assert test.isdisjoint(row.prompt for split in ("train", "sft") for row in sampled_rows(split))


def test_held_out_prompts_are_about_a_tenth() -> None:
    prompts = [f"{a} {b}" for a in range(100, 1000, 7) for b in range(100, 1000, 7)]
    share = sum(map(is_held_out, prompts)) / len(prompts)
    assert share == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(("split", "share"), [("train", 0.25), ("test", 0.25), ("sft", 1.0)])
def test_share_of_easy_rows(split: str, share: float) -> None:
    rows = sampled_rows(split)
    assert sum(row.data_source == EASY for row in rows) == share * len(rows)


def test_the_test_split_has_512_easy_rows() -> None:
    assert sum(row.data_source == EASY for row in open_task("larger", "test")) == 512


def test_a_row_depends_on_the_split_and_the_index_alone() -> None:
    forward, backward = open_task("larger", "train"), open_task("larger", "train")
    assert [forward[i] for i in range(50)] == [backward[i] for i in reversed(range(50))][::-1]
    assert forward[0] != open_task("larger", "sft")[0]


def test_rows_do_not_change_between_versions() -> None:
    assert [open_task("larger", split)[1] for split in SIZES] == [
        Row("835 810", "835", HARD),
        Row("462 436", "462", HARD),
        Row("286 949", "949", EASY),
    ]


@pytest.mark.parametrize(("split", "size"), SIZES.items())
def test_a_split_is_a_sequence(split: str, size: int) -> None:
    task = open_task("larger", split)
    assert len(task) == size
    assert task[-1] == task[size - 1]
    assert task[2:5] == [task[2], task[3], task[4]]
    with pytest.raises(IndexError):
        task[size]


def test_unknown_task_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no task named `larfer`") as caught:
        open_task("larfer", "train")
    assert "known  larger" in str(caught.value)
    assert "did you mean `larger`?" in str(caught.value)


def test_unknown_split_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no split of `larger` named `zzz`") as caught:
        open_task("larger", "zzz")
    assert "sft, test, train" in str(caught.value)
    assert "use `sft` or `test` or `train`" in str(caught.value)


def test_unknown_model_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no model named `tinny`") as caught:
        model_folder("tinny")
    assert "did you mean `tiny`?" in str(caught.value)


def test_importing_the_zoo_loads_no_torch() -> None:
    code = "import sys, dagrl.zoo; print([m for m in ('torch', 'transformers', 'tokenizers') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
