"""Prompts as chat messages: what a chat template gets of them, and what is refused with its row."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagrl.data.rows import open_rows
from dagrl.errors import ConfigError

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
TOOLS = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "1 + 2", "name": "ada"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "3", "name": "add", "tool_call_id": "x"},
]
USER = {"role": "user", "content": "3 5"}


def write(path: Path, prompts: Sequence[Any]) -> str:
    rows = [{"prompt": prompt, "answer": "5"} for prompt in prompts]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_every_field_of_a_message_is_kept(tmp_path: Path, name: str) -> None:
    """Parquet has every field in every message, null where the file that it came from had none."""
    other = [{"role": "assistant", "content": "", "tool_calls": [{**CALL, "function": {"arguments": {"c": "d"}}}]}]
    rows = open_rows(write(tmp_path / name, [TOOLS, other, [USER]]), "train")
    assert [list(row.messages) for row in rows] == [TOOLS, other, [USER]]


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_an_assistant_that_calls_tools_needs_no_content(tmp_path: Path, content: dict[str, Any]) -> None:
    said = {"role": "assistant", **content, "tool_calls": [CALL]}
    (row,) = open_rows(write(tmp_path / "rows.jsonl", [[USER, said]]), "train")
    assert row.messages[1] == {"role": "assistant", "content": "", "tool_calls": [CALL]}


def test_null_fields_count_as_absent(tmp_path: Path) -> None:
    spelled = {**USER, "name": None, "more": {"a": None, "b": [None, 1]}}
    (row,) = open_rows(write(tmp_path / "rows.jsonl", [[spelled]]), "train")
    assert row.messages == [{**USER, "more": {"b": [None, 1]}}]
    assert row.fields["prompt"] == [spelled]


def held_out(data: str) -> list[int]:
    split = [row.messages[0]["content"] for row in open_rows(data, "test", 0.5)]
    return [int(text.split()[0]) for text in split]


def test_the_held_out_part_counts_every_field_but_not_how_it_is_spelled(tmp_path: Path) -> None:
    plain = [[{"role": "user", "content": f"{i} x"}] for i in range(200)]
    named = [[{"role": "user", "content": f"{i} x", "name": "ada", "id": 1}] for i in range(200)]
    turned = [[{"content": f"{i} x", "id": 1, "name": "ada", "role": "user", "more": None}] for i in range(200)]
    text = [f"{i} x" for i in range(200)]
    names = ("plain", "named", "turned", "text")
    split = {
        name: held_out(write(tmp_path / f"{name}.jsonl", prompts))
        for name, prompts in zip(names, (plain, named, turned, text), strict=True)
    }
    assert split["plain"] == split["text"] != split["named"] == split["turned"]
    assert held_out(write(tmp_path / "named.parquet", named)) == split["named"]


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([{"role": "human", "content": "x"}], ("`prompt[0]` has the role `human`", "`developer`, `user`")),
        ([USER, {"role": "User", "content": "x"}], ("`prompt[1]` has the role `User`",)),
        ([{"role": "", "content": "x"}], ("`prompt[0]` has the role ``",)),
        ([{"role": None, "content": "x"}], ("`prompt[0].role` is null, not text",)),
        ([USER, {"role": "assistant", "content": None}], ("`prompt[1].content` is null, not text",)),
        ([USER, {"role": "assistant", "tool_calls": []}], ("`prompt[1]` has no `content`",)),
        ([{"role": "user", "content": None, "tool_calls": [CALL]}], ("`prompt[0].content` is null, not text",)),
        ([{"role": "user", "content": ""}], ("`prompt` is empty",)),
        ([{"role": "system", "content": " "}, {"role": "user", "content": "\n"}], ("`prompt` is empty",)),
        ([[USER]], ("`prompt[0]` is a list, not a message",)),
        ([None], ("`prompt[0]` is null, not a message",)),
        (True, ("`prompt` is True",)),
    ],
)
def test_a_prompt_that_is_no_chat_is_named_with_its_line(tmp_path: Path, prompt: Any, says: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        open_rows(write(tmp_path / "rows.jsonl", ["3 5", [USER], prompt, "3 5"]), "train")
    assert "rows.jsonl` line 3: " in str(caught.value)
    for text in says:
        assert text in str(caught.value)


def test_an_empty_message_beside_one_that_says_something_is_fine(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Count."}, {"role": "user", "content": ""}]
    assert open_rows(write(tmp_path / "rows.jsonl", [chat]), "train")[0].messages == chat
