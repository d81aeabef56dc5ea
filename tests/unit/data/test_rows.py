"""Prompt rows of one's own data: the known shapes, splits and held-out parts, and what is refused."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagrl.data.rows import open_rows
from dagrl.errors import ConfigError


def jsonl(path: Path, rows: Sequence[Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def parquet(path: Path, rows: Sequence[Any]) -> str:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return str(path)


def refusal(*arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        open_rows(*arguments)
    assert all(problem.fix for problem in caught.value.problems)
    return str(caught.value)


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3 5"}]
PLAIN = {"prompt": "3 5", "answer": "5", "level": 2}
VERL = {
    "data_source": "openai/gsm8k",
    "prompt": CHAT,
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "5"},
    "extra_info": {"split": "train", "index": 0, "answer": "3 < 5 #### 5"},
}
TRL = {"prompt": CHAT, "solution": "$5$", "difficulty": [1, 2]}
WRITE = {"rows.jsonl": jsonl, "rows.parquet": parquet}


@pytest.mark.parametrize("name", WRITE)
@pytest.mark.parametrize(
    ("row", "messages", "answer", "source"),
    [
        (PLAIN, [{"role": "user", "content": "3 5"}], "5", "rows"),
        ({**PLAIN, "prompt": CHAT, "data_source": "mine"}, CHAT, "5", "mine"),
        (VERL, CHAT, "5", "openai/gsm8k"),
        (TRL, CHAT, "$5$", "rows"),
        ({"prompt": "x", "solution": "s", "ground_truth": "g"}, [{"role": "user", "content": "x"}], "g", "rows"),
        ({"prompt": "x", "solution": "s", "answer": "a"}, [{"role": "user", "content": "x"}], "a", "rows"),
    ],
    ids=["plain", "plain messages", "verl", "TRL", "TRL ground_truth", "TRL answer"],
)
def test_the_shapes(
    tmp_path: Path, name: str, row: dict[str, Any], messages: list[dict[str, str]], answer: str, source: str
) -> None:
    rows = open_rows(WRITE[name](tmp_path / name, [row, row]), "train")
    assert len(rows) == 2
    read = rows[1]
    assert (list(read.messages), read.answer, read.data_source) == (messages, answer, source)
    assert read.fields == row
    assert rows.unanswered is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (72, "72"),
        (-0.5, "-0.5"),
        (72.0, "72"),
        (True, "true"),
        (["a", "é"], '["a", "é"]'),
        ({"target": 24, "numbers": [1, 2]}, '{"target": 24, "numbers": [1, 2]}'),
        ("", ""),
        (" 5\n", " 5\n"),
    ],
)
def test_an_answer_that_is_no_text_becomes_its_json(tmp_path: Path, value: Any, text: str) -> None:
    plain = open_rows(jsonl(tmp_path / "plain.jsonl", [{"prompt": "x", "answer": value}]), "train")
    verl = {**VERL, "reward_model": {"style": "rule", "ground_truth": value}}
    assert plain[0].answer == open_rows(jsonl(tmp_path / "verl.jsonl", [verl]), "train")[0].answer == text
    assert plain[0].fields["answer"] == value


def test_an_answer_that_json_cannot_say_is_named(tmp_path: Path) -> None:
    data = parquet(tmp_path / "nan.parquet", [{"prompt": "x", "answer": 1.0}, {"prompt": "y", "answer": float("nan")}])
    assert "nan.parquet` row 2: `answer` is nan, which has no text" in refusal(data, "train")
    data = parquet(tmp_path / "bytes.parquet", [{"prompt": "x", "answer": b"5"}])
    assert "bytes.parquet` row 1: `answer` is a bytes, which has no text" in refusal(data, "train")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"question": "3 5", "answer": "5"}, ("it has no `prompt`; it has `question`, `answer`", "rename")),
        ({"prompt": "", "answer": "5"}, ("`prompt` is empty",)),
        ({"prompt": " \n", "answer": "5"}, ("`prompt` is empty",)),
        ({"prompt": None, "answer": "5"}, ("`prompt` is null", "write text, or messages")),
        ({"prompt": 35, "answer": "5"}, ("`prompt` is 35",)),
        ({"prompt": [], "answer": "5"}, ("`prompt` is an empty list",)),
        ({"prompt": {"role": "user", "content": "x"}, "answer": "5"}, ("`prompt` is an object",)),
        ({"prompt": ["3 5"], "answer": "5"}, ("`prompt[0]` is text, not a message",)),
        ({"prompt": [*CHAT, {"role": "user"}]}, ("`prompt[2]` has no `content`",)),
        ({"prompt": [{"content": "3 5"}]}, ("`prompt[0]` has no `role`",)),
        ({"prompt": [{"from": "human", "value": "3 5"}]}, ("`prompt[0]` has no `role`",)),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, ("`prompt[0].content` is a list, not text",)),
        ({"prompt": [{"role": "user", "content": None}]}, ("`prompt[0].content` is null, not text",)),
        ({**PLAIN, "data_source": 3}, ("`data_source` is 3", "leave it out")),
    ],
)
def test_a_row_that_is_no_prompt_is_named_with_field_and_fix(
    tmp_path: Path, row: dict[str, Any], says: tuple[str, ...]
) -> None:
    message = refusal(jsonl(tmp_path / "rows.jsonl", [PLAIN, row, PLAIN]), "train")
    assert f"`{tmp_path}/rows.jsonl` line 2: " in message
    assert "1 problem:" in message
    for text in says:
        assert text in message


def test_a_folder_with_a_file_for_each_split(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", [PLAIN] * 3)
    parquet(tmp_path / "test.parquet", [VERL] * 2)
    (tmp_path / "README.md").write_text("mine")
    folder = str(tmp_path)
    assert len(open_rows(folder, "train")) == len(open_rows(folder + "/", "train")) == 3
    assert open_rows(folder, "test")[1].data_source == "openai/gsm8k"
    assert open_rows(folder, "train")[0].data_source == "train"
    message = refusal(folder, "validation")
    assert "no file for the split `validation`; it has `README.md`, `test.parquet`, `train.jsonl`" in message
    jsonl(tmp_path / "test.json", [PLAIN])
    assert "several files for the split `test`: `test.json`, `test.parquet`" in refusal(folder, "test")


def test_a_path_with_the_split_in_it(tmp_path: Path) -> None:
    jsonl(tmp_path / "train/math.jsonl", [PLAIN] * 3)
    jsonl(tmp_path / "test/math.jsonl", [PLAIN])
    data = f"{tmp_path}/{{split}}/math.jsonl"
    assert (len(open_rows(data, "train")), len(open_rows(data, "test"))) == (3, 1)
    assert f"{tmp_path}/dev/math.jsonl` is not known" in refusal(data, "dev")


def numbered(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"{i} {i + 1}", "answer": str(i + 1)} for i in range(count)]


def prompts_of(data: str, split: str, share: float) -> list[str]:
    return [row.messages[0]["content"] for row in open_rows(data, split, share)]


def test_the_held_out_part_of_one_file_depends_on_the_prompts_alone(tmp_path: Path) -> None:
    rows = numbered(2000)
    data = jsonl(tmp_path / "rows.jsonl", rows)
    train, test = (prompts_of(data, split, 0.1) for split in ("train", "test"))
    assert sorted(train + test) == sorted(row["prompt"] for row in rows)
    assert 150 < len(test) < 250
    assert train == [row["prompt"] for row in rows if row["prompt"] not in set(test)]
    changed = [{**row, "note": "new"} for row in [*numbered(1000), *rows[1000:]]][::-1]
    assert set(prompts_of(parquet(tmp_path / "other.parquet", changed), "test", 0.1)) == set(test)
    assert set(prompts_of(data, "test", 0.2)) > set(test)


def test_rows_with_one_prompt_are_on_one_side(tmp_path: Path) -> None:
    rows = [{**row, "answer": str(copy)} for row in numbered(50) for copy in range(3)]
    data = jsonl(tmp_path / "rows.jsonl", rows)
    train, test = (prompts_of(data, split, 0.3) for split in ("train", "test"))
    assert not set(train) & set(test)
    assert len(test) % 3 == 0
    assert len(test) > 0


def test_rows_without_an_answer_count_in_their_part_alone(tmp_path: Path) -> None:
    rows = numbered(40)
    data = jsonl(tmp_path / "rows.jsonl", rows)
    held_out = prompts_of(data, "test", 0.3)[0]
    line = next(n for n, row in enumerate(rows, 1) if row["prompt"] == held_out)
    jsonl(tmp_path / "rows.jsonl", [{"prompt": r["prompt"]} if r["prompt"] == held_out else r for r in rows])
    assert open_rows(data, "train", 0.3).unanswered is None
    assert (open_rows(data, "test", 0.3).unanswered or "").startswith(f"`{data}` line {line} has no `answer`")


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    data = jsonl(tmp_path / "rows.jsonl", numbered(3))
    assert len(open_rows(data, "train")) == 3
    jsonl(tmp_path / "rows.jsonl", numbered(4))
    assert len(open_rows(data, "train")) == 4


def test_what_cannot_be_found_or_split_is_refused(tmp_path: Path) -> None:
    data = jsonl(tmp_path / "rows.jsonl", numbered(3))
    (tmp_path / "rows.csv").write_text("prompt,answer\n")
    (tmp_path / "empty").mkdir()
    cases = [
        ((data, "test"), ("is one file and has no split `test`", "`--set test_share=0.1`", "in every `prompts` call")),
        ((data, "validation", 0.1), ("is one file and has no split `validation`",)),
        ((data, "train", 1.0), ("`test_share` is 1.0", "below 1")),
        ((data, "train", -0.1), ("`test_share` is -0.1",)),
        ((data, "test", 1e-9), ("none of the 3 rows", "choose another share")),
        (("zoo:larger", "train", 0.1), ("has splits of its own",)),
        ((str(tmp_path), "train", 0.1), ("has splits of its own",)),
        ((f"{tmp_path}/{{split}}.jsonl", "train", 0.1), ("has splits of its own",)),
        ((f"{tmp_path}/none.jsonl", "train"), ("is not known: there is no such file", "zoo:larger")),
        ((f"{tmp_path}/none", "train"), ("is not known: there is no such file or folder", ".parquet")),
        ((f"{tmp_path}/rows.csv", "train"), ("is neither a file of rows nor a folder", ".jsonl")),
        ((f"{tmp_path}/empty", "train"), ("is neither a file of rows nor a folder", ".jsonl")),
        (("nope://rows.jsonl", "train"), ("cannot be opened", "protocol")),
        (("", "train"), ("`data` is empty",)),
    ]
    for arguments, says in cases:
        message = refusal(*arguments)
        for text in says:
            assert text in message


def test_rows_of_the_zoo_carry_their_fields() -> None:
    row = open_rows("zoo:larger", "test")[0]
    assert row.fields == {"prompt": row.messages[0]["content"], "answer": row.answer, "data_source": row.data_source}
