"""Files whose rows differ in shape: each row is read by itself, and rows without an answer are counted one by one."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagrl.data.rows import open_rows
from dagrl.errors import ConfigError

NAMES = "`answer`, `ground_truth`, `solution` or `reward_model.ground_truth`"


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    if path.suffix == ".parquet":
        names = dict.fromkeys(name for row in rows for name in row)
        pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def answers(data: str) -> list[str | None]:
    return [row.answer for row in open_rows(data, "train")]


MIXED: list[tuple[dict[str, Any], str | None]] = [
    ({"prompt": "no answer at all"}, None),
    ({"prompt": "plain", "answer": "1"}, "1"),
    ({"prompt": "TRL", "solution": "2"}, "2"),
    ({"prompt": "TRL's other", "ground_truth": "3"}, "3"),
    ({"prompt": "verl", "reward_model": {"ground_truth": "4", "style": "rule"}, "data_source": "v"}, "4"),
    ({"prompt": "null first", "answer": None, "solution": "5"}, "5"),
    ({"prompt": "null model", "reward_model": None, "answer": "6"}, "6"),
    ({"prompt": "model without truth", "reward_model": {"style": "model"}, "answer": "7"}, "7"),
    ({"prompt": "model with null truth", "reward_model": {"ground_truth": None}, "solution": "8"}, "8"),
    ({"prompt": "both", "reward_model": {"ground_truth": "9"}, "answer": "worked out"}, "9"),
    ({"prompt": "all null", "answer": None, "solution": None, "reward_model": {"ground_truth": None}}, None),
    ({"prompt": "kept beside it", "answer": "", "extra_info": {"index": 3}}, ""),
]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
@pytest.mark.parametrize("turn", range(len(MIXED)))
def test_a_row_is_read_alike_whatever_comes_first(tmp_path: Path, name: str, turn: int) -> None:
    order = [*MIXED[turn:], *MIXED[:turn]]
    rows = open_rows(write(tmp_path / name, [row for row, _ in order]), "train")
    assert [row.answer for row in rows] == [answer for _, answer in order]
    sources = ["v" if "data_source" in row else "rows" for row, _ in order]
    assert [row.data_source for row in rows] == sources
    if name.endswith("jsonl"):
        assert [row.fields for row in rows] == [row for row, _ in order]
    assert rows.unanswered is not None
    assert rows.unanswered.endswith(f"has no {NAMES}, nor has 1 other row")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["1", None], f"line 2 has no {NAMES}"),
        ([None, "1"], f"line 1 has no {NAMES}"),
        ([None, "1", None], f"line 1 has no {NAMES}, nor has 1 other row"),
        (["1", None, None, None], f"line 2 has no {NAMES}, nor have 2 other rows"),
    ],
)
def test_rows_without_an_answer_are_named_and_counted(tmp_path: Path, given: list[str | None], says: str) -> None:
    data = write(tmp_path / "rows.jsonl", [{"prompt": "x", "answer": answer} for answer in given])
    assert answers(data) == given
    assert open_rows(data, "train").unanswered == f"`{data}` {says}"


@pytest.mark.parametrize("model", ["rule", 5, [1]])
def test_a_reward_model_that_is_no_object_matters_only_where_the_answer_should_be(tmp_path: Path, model: Any) -> None:
    assert answers(write(tmp_path / "fine.jsonl", [{"prompt": "x", "reward_model": model, "answer": "5"}])) == ["5"]
    data = write(tmp_path / "rows.jsonl", [{"prompt": "x"}, {"prompt": "x", "reward_model": model}])
    with pytest.raises(ConfigError, match=r"line 2: `reward_model` is .*\n +fix +write `reward_model` as an object"):
        open_rows(data, "train")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_whole_numbers_have_no_point_however_they_are_stored(tmp_path: Path, name: str) -> None:
    numbers = [72.0, None, -3.0, 0.5, 1e15, 1e22, -0.0]
    data = write(tmp_path / name, [{"prompt": "x", "answer": number} for number in numbers])
    assert answers(data) == ["72", None, "-3", "0.5", "1000000000000000", "1e+22", "0"]
    inside = [{"prompt": "x", "reward_model": {"ground_truth": {"target": 24.0, "numbers": [1.0, 2.5]}}}]
    assert answers(write(tmp_path / name, inside)) == ['{"target": 24, "numbers": [1, 2.5]}']
    assert answers(write(tmp_path / name, [{"prompt": "x", "answer": "72.0"}])) == ["72.0"]
    whole = write(tmp_path / name, [{"prompt": "x", "answer": 72.0}])
    assert repr(open_rows(whole, "train")[0].fields["answer"]) == "72.0"


def test_parquet_lists_in_lists_and_maps_come_as_python_values(tmp_path: Path) -> None:
    deep = [[["a", None], []], [["b"]]]
    model = pa.array([[("ground_truth", "5"), ("style", "rule")]], pa.map_(pa.string(), pa.string()))
    chat = pa.array(
        [[[("role", "user"), ("content", "3 5")]]], pa.list_(pa.map_(pa.string(), pa.string()))
    )  # as Spark writes messages
    pq.write_table(pa.table({"prompt": chat, "reward_model": model, "deep": [deep]}), tmp_path / "rows.parquet")
    (row,) = open_rows(str(tmp_path / "rows.parquet"), "train")
    assert (row.messages, row.answer) == ([{"role": "user", "content": "3 5"}], "5")
    assert row.fields["deep"] == deep
    assert answers(write(tmp_path / "lists.parquet", [{"prompt": "x", "answer": deep}])) == [json.dumps(deep)]
