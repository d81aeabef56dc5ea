"""A data file that changes while it is in use: one error that names it, however and wherever it changes."""

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dagrl.data.rows import PromptRow, PromptRows, open_rows, read_rows, rows_in_use
from dagrl.errors import DataChangedError
from dagrl.nodes import prompts

ROWS = [{"prompt": f"{i} {i + 1}", "answer": str(i + 1)} for i in range(20)]
LINES = [json.dumps(row).encode() + b"\n" for row in ROWS]
CONTENT = b"".join(LINES)


def write(url: str, content: bytes, mode: str = "wb") -> None:
    with fsspec.open(url, mode) as file:
        file.write(content)


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


def packed(name: str, rows: int, answer: str | None = None) -> bytes:
    """Some rows in the format of the name."""
    table = [{**row, **({"answer": answer} if answer else {})} for row in ROWS[:rows]]
    if name.endswith("parquet"):
        return parquet(table)
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in table)
    return gzip.compress(lines, mtime=0) if name.endswith("gz") else lines


def read(rows: PromptRows, *positions: int) -> list[PromptRow]:
    found = [rows[position] for position in positions]
    rows.check_unchanged()
    return found


def changed(rows: PromptRows, data: str, *positions: int) -> str:
    with pytest.raises(DataChangedError) as caught:
        read(rows, *positions)
    message = str(caught.value)
    assert f"data file `{data}` has changed since it was opened: " in message
    assert "start again" in message
    return message


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder on a file system."""
    if request.param == "local":
        yield str(tmp_path)
        return
    yield f"memory://changing{tmp_path}"
    fs = fsspec.filesystem("memory")
    fs.rm("/changing", recursive=True)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.parquet"])
@pytest.mark.parametrize("change", ["fewer rows", "more rows", "other answers", "gone"])
def test_a_file_that_is_written_again_or_deleted(place: str, name: str, change: str) -> None:
    data = f"{place}/{name}"
    write(data, packed(name, 10))
    rows = open_rows(data, "train")
    assert [row.answer for row in read(rows, 9, 0)] == ["10", "1"]
    assert len(rows) == 10
    if change == "gone":
        fs, path = fsspec.core.url_to_fs(data)
        fs.rm(path)
        assert "it is gone" in changed(rows, data)
        return
    write(data, packed(name, {"fewer rows": 5, "more rows": 20}.get(change, 10), "12" * (change == "other answers")))
    changed(rows, data, 9)
    changed(rows, data, 0)
    assert len(rows) == 10
    again = open_rows(data, "train")
    assert len(again) == len(read(again, *range(len(again)))) == {"fewer rows": 5, "more rows": 20}.get(change, 10)


def truncate(path: Path) -> None:
    os.truncate(path, len(CONTENT) - 8)


def keep_nothing(path: Path) -> None:
    os.truncate(path, 0)


def overwrite_in_place(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(len(CONTENT) - len(LINES[-1]))
        file.write(b"{}" + b" " * (len(LINES[-1]) - 3))


def drop_the_answer(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(len(CONTENT) - len(LINES[-1]))
        file.write(LINES[-1].replace(b"answer", b"nswera"))


def shift(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(LINES[0] + CONTENT)


@pytest.mark.parametrize("change", [truncate, keep_nothing, overwrite_in_place, drop_the_answer, shift])
@pytest.mark.parametrize("seen", [True, False], ids=["new time", "same time and size"])
def test_a_row_that_is_another_is_named_with_its_line(
    tmp_path: Path, change: Callable[[Path], None], seen: bool
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n" + CONTENT[:-1] + b"\n")
    path.write_bytes(CONTENT)
    before = path.stat()
    rows = open_rows(str(path), "train")
    change(path)
    if not seen:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "line 20 is another than it was" in changed(rows, str(path), 19)


def test_the_line_is_the_one_of_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n" + LINES[0] + b"\n\n" + LINES[1] + LINES[2])
    rows = open_rows(str(path), "train")
    path.write_bytes(LINES[0])
    assert "line 6 is another than it was" in changed(rows, str(path), 2)


def test_a_file_that_grows_or_is_replaced_under_its_name(tmp_path: Path) -> None:
    data = str(tmp_path / "rows.jsonl")
    write(data, CONTENT)
    rows = open_rows(data, "train")
    write(data, LINES[0], "ab")
    assert f"it had {len(CONTENT)} bytes and has {len(CONTENT) + len(LINES[0])}" in changed(rows, data, 0, 19)
    rows = open_rows(data, "train")
    write(data + ".new", CONTENT)
    os.replace(data + ".new", data)
    assert f"and has {len(CONTENT)}" in changed(rows, data, 0, 19)
    rows = open_rows(data, "train")
    os.utime(data, ns=(1, 1))
    assert "it was written again" in changed(rows, data, 0, 19)


def test_another_working_folder_is_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    write(str(tmp_path / "rows.jsonl"), CONTENT)
    monkeypatch.chdir(tmp_path)
    rows = open_rows("rows.jsonl", "train")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert read(rows, 3)[0].answer == "4"


def test_a_split_of_a_folder_stays_the_file_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(CONTENT)
    open_rows(str(folder), "train")
    (folder / "train.parquet").write_bytes(parquet(ROWS))
    assert len(read_rows(str(folder), "train", 0.0, [0, 2])) == 2
    (folder / "train.jsonl").unlink()
    with pytest.raises(DataChangedError, match=r"mine/train\.jsonl` has changed since it was opened: it is gone"):
        read_rows(str(folder), "train", 0.0, [0])


def test_a_part_of_a_file_that_is_held_out_changes_with_it(tmp_path: Path) -> None:
    data = str(tmp_path / "rows.jsonl")
    write(data, CONTENT)
    open_rows(data, "test", 0.5)
    write(data, CONTENT[: len(LINES[0])])
    rows = rows_in_use(data, "test", 0.5)
    assert len(rows) > 1
    with pytest.raises(DataChangedError):
        rows[len(rows) - 1]
    with pytest.raises(DataChangedError):
        rows.check_unchanged()


def test_the_node_reads_what_was_opened_and_says_when_that_has_changed(tmp_path: Path) -> None:
    data = str(tmp_path / "rows.jsonl")
    write(data, CONTENT)
    open_rows(data, "train")
    columns = prompts(torch.tensor([3, 3, 1]), data=data, batch_size=2)
    assert columns.answers == ["4", "4", "2"]
    write(data, CONTENT + LINES[0])
    with pytest.raises(DataChangedError, match="has changed since it was opened"):
        prompts(torch.tensor([3]), data=data, batch_size=2)
    assert prompts(torch.tensor([20]), data=data, batch_size=2).answers == ["1"]


@pytest.mark.parametrize("error", [ConnectionError("offline"), RuntimeError("of a kind of its own")])
def test_a_file_system_that_cannot_be_asked_says_nothing_of_a_change(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    write("memory://asked/rows.jsonl", CONTENT)
    rows = open_rows("memory://asked/rows.jsonl", "train")

    def offline(*_: Any) -> None:
        raise error

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "info", offline)
    assert read(rows, 2)[0].answer == "3"
