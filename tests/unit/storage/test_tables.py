"""Rows of JSONL and parquet files: what counts as a row, every fault with its line, and memory that stays flat."""

import gzip
import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagrl.errors import ConfigError, DataChangedError
from dagrl.storage.row_faults import RowFault
from dagrl.storage.tables import Table, ending, open_table


def accept(row: Mapping[str, Any]) -> None:
    """A check that takes every row."""


def opened(folder: Path, content: bytes, name: str = "rows.jsonl") -> Table:
    (folder / name).write_bytes(content)
    return open_table(str(folder / name), accept)


def refusal(folder: Path, content: bytes, name: str = "rows.jsonl") -> str:
    with pytest.raises(ConfigError) as caught:
        opened(folder, content, name)
    assert name in str(caught.value)
    assert all(problem.fix for problem in caught.value.problems)
    return str(caught.value)


ROWS = [{"a": 1, "text": "x\u2028y\u0085z"}, {"a": 2, "text": "é🙂"}, {"a": 3, "text": "", "more": [1, {"b": None}]}]
LINES = [json.dumps(row, ensure_ascii=False).encode() for row in ROWS]


@pytest.mark.parametrize(
    "content",
    [
        b"\n".join(LINES),
        b"\n".join(LINES) + b"\n",
        b"\xef\xbb\xbf" + b"\n".join(LINES) + b"\n",
        b"\r\n".join(LINES) + b"\r\n",
        b"\n\n" + b"\n \t\r\n\n".join(LINES) + b"\n\n\n",
        b"\xef\xbb\xbf\r\n" + b"\r\n\r\n".join(LINES),
        gzip.compress(b"\n".join(LINES), mtime=0),
        gzip.compress(LINES[0] + b"\n", mtime=0) + gzip.compress(b"\n".join(LINES[1:]), mtime=0),
    ],
    ids=["bare", "last line end", "BOM", "CRLF", "blank lines", "BOM, CRLF, blank", "gzip", "two gzip members"],
)
def test_the_same_rows_however_the_lines_are_written(tmp_path: Path, content: bytes) -> None:
    table = opened(tmp_path, content)
    assert len(table) == 3
    assert [table[index] for index in (2, 0, 1)] == [ROWS[2], ROWS[0], ROWS[1]]
    assert list(table) == ROWS
    assert table[-1] == ROWS[2]
    with pytest.raises(IndexError):
        table[3]


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl.gz", "rows.json.gz", "ROWS.JSONL"])
def test_gzip_is_told_by_content(tmp_path: Path, name: str) -> None:
    assert list(opened(tmp_path, gzip.compress(b"\n".join(LINES)), name)) == ROWS
    assert list(opened(tmp_path, b"\n".join(LINES), name)) == ROWS


def test_rows_of_any_file_system() -> None:
    with fsspec.open("memory://tables/rows.jsonl", "wb") as file:
        file.write(b"\n".join(LINES))
    with fsspec.open("memory://tables/rows.jsonl.gz", "wb") as file:
        file.write(gzip.compress(b"\n".join(LINES)))
    with fsspec.open("memory://tables/rows.parquet", "wb") as file:
        pq.write_table(pa.Table.from_pylist(ROWS), file)
    assert list(open_table("memory://tables/rows.jsonl", accept)) == ROWS
    assert list(open_table("memory://tables/rows.jsonl.gz", accept)) == ROWS
    assert [row["a"] for row in open_table("memory://tables/rows.parquet", accept)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b'{"a": 1', ("no valid JSON", "column 8")),
        (b'{"a": 1} {"a": 2}', ("Extra data",)),
        (b"{'a': 1}", ("no valid JSON",)),
        (b"[1, 2]", ("a list, not an object",)),
        (b'"text"', ("a text, not an object",)),
        (b"7", ("a number, not an object",)),
        (b"null", ("null, not an object",)),
        (b"true", ("true or false, not an object",)),
        (b'{"a": 1, "b": 2, "a": 1}', ("it has `a` twice", "keep one of them")),
        (b'{"a": [{"b": {"c": 1, "c": null}}]}', ("it has `c` twice",)),
        (b'{"a": NaN}', ("NaN is no JSON number",)),
        (b'{"a": [{"b": -Infinity}]}', ("-Infinity is no JSON number",)),
        (b'{"a": 1e999}', ("1e999 is too large",)),
        (b'{"a": ' + b"9" * 5000 + b"}", ("no valid JSON",)),
        (rb'{"a": "x\ud83dy"}', ("half of a character", r"\ud83d")),
        (rb'{"\udc00": 1}', ("half of a character", r"\udc00")),
        (b'{"a": "\xff"}', ("byte 8", "no UTF-8")),
        (b'{"a": "\xed\xa0\xbd"}', ("byte 8", "no UTF-8")),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", ("nested too deeply",)),
        (b'{"a": "tab\there"}', ("Invalid control character",)),
        (LINES[0].decode().encode("utf-16"), ("no UTF-8",)),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, bad: bytes, says: tuple[str, ...]) -> None:
    message = refusal(tmp_path, b"\xef\xbb\xbf" + LINES[0] + b"\r\n\n" + bad + b"\n" + LINES[1] + b"\n")
    assert "line 3: " in message
    assert "1 problem:" in message
    for text in says:
        assert text in message


def test_whole_characters_written_as_escapes_are_fine(tmp_path: Path) -> None:
    table = opened(tmp_path, rb'{"a": "\ud83d\ude42 \u2028", "b": "\\ud83d"}')
    assert table[0] == {"a": "🙂 \u2028", "b": "\\ud83d"}


def test_five_bad_rows_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    message = refusal(tmp_path, b"".join(b"{}\nnope\n" for _ in range(8)))
    assert [f"line {number}:" in message for number in (2, 4, 6, 8, 10, 12)] == [True] * 5 + [False]
    assert "has 8 such rows; the first 5 are listed" in message


def test_faults_of_the_check_are_named_like_faults_of_the_file(tmp_path: Path) -> None:
    def check(row: Mapping[str, Any]) -> None:
        if row["a"] != 1:
            raise RowFault("`a` is not 1", "make it 1")

    (tmp_path / "rows.jsonl").write_bytes(b'{"a": 1}\n{"a": 2}\n{\n')
    pq.write_table(pa.table({"a": [1, 2, 1]}), tmp_path / "rows.parquet")
    with pytest.raises(ConfigError) as caught:
        open_table(str(tmp_path / "rows.jsonl"), check)
    assert "line 2: `a` is not 1." in str(caught.value)
    assert "line 3: no valid JSON" in str(caught.value)
    with pytest.raises(ConfigError, match=r"rows.parquet` row 2: `a` is not 1\.\n +fix +make it 1"):
        open_table(str(tmp_path / "rows.parquet"), check)


@pytest.mark.parametrize("content", [b"", b"\n\r\n  \n", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_a_file_without_rows_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "has no rows" in refusal(tmp_path, content)


def test_one_json_list_is_told_at_once(tmp_path: Path) -> None:
    message = refusal(tmp_path, json.dumps(ROWS, indent=1).encode(), "rows.json")
    assert "one JSON list" in message
    assert "jq -c" in message
    assert "1 problem:" in message


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.jsonl"])
def test_a_damaged_gzip_file_is_named(tmp_path: Path, name: str) -> None:
    packed = gzip.compress(b"\n".join(LINES) * 50)
    assert "damaged gzip file" in refusal(tmp_path, packed[:-20], name)
    assert "damaged gzip file" in refusal(tmp_path, packed[:40] + b"\x00" * 20 + packed[60:], name)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    cases = {
        str(tmp_path / "none.jsonl"): "there is no file",
        str(tmp_path / "folder.jsonl"): "cannot be read",
        "nonsense://rows.jsonl": "cannot be opened",
        "memory://tables/none.parquet": "there is no file",
    }
    for url, says in cases.items():
        with pytest.raises(ConfigError, match=says) as caught:
            open_table(url, accept)
        assert url in str(caught.value)


def test_a_file_that_changes_while_it_is_used_is_named(tmp_path: Path) -> None:
    table = opened(tmp_path, b"\n".join(LINES))
    with open(tmp_path / "rows.jsonl", "r+b") as file:
        file.write(b"#" * 10)
    with pytest.raises(DataChangedError, match=r"rows.jsonl` has changed since it was opened: line 1 is another"):
        table[0]
    assert table[1] == ROWS[1]
    os.truncate(tmp_path / "rows.jsonl", 0)
    with pytest.raises(DataChangedError, match="line 3 is another than it was"):
        table[2]


def test_white_space_between_rows_may_change(tmp_path: Path) -> None:
    table = opened(tmp_path, LINES[0] + b"\n  \n" + LINES[1] + b"\n\n")
    with open(tmp_path / "rows.jsonl", "r+b") as file:
        file.seek(len(LINES[0]))
        file.write(b"\r\n\t\n")
    assert list(table) == ROWS[:2]


def test_the_place_of_a_row_is_its_line(tmp_path: Path) -> None:
    table = opened(tmp_path, b"\n" + LINES[0] + b"\n\n\n" + LINES[1] + b"\n" + LINES[2])
    assert [table.place(index) for index in range(3)] == ["line 2", "line 5", "line 6"]
    assert list(table) == ROWS
    lines = [3, 4, 5, 9, 10, 11, 20]
    table = opened(tmp_path, b"\n".join(b"{}" if number in lines else b"" for number in range(1, 25)))
    assert [table.place(index) for index in range(7)] == [f"line {number}" for number in lines]


def parquet_rows() -> list[dict[str, Any]]:
    return [{"i": i, "text": f"row {i}", "nested": {"list": [i] * (i % 3), "gone": None}} for i in range(1000)]


def test_parquet_rows_at_random_across_row_groups(tmp_path: Path) -> None:
    rows = parquet_rows()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet", row_group_size=77)
    table = open_table(str(tmp_path / "rows.parquet"), accept)
    assert len(table) == 1000
    assert [table[i] for i in (999, 0, 76, 77, 500)] == [rows[i] for i in (999, 0, 76, 77, 500)]
    assert list(table) == rows
    assert table.place(76) == "row 77"


def test_parquet_with_dictionaries_that_differ_between_row_groups(tmp_path: Path) -> None:
    words = pa.array([f"word {i // 10}" for i in range(600)]).dictionary_encode()
    pq.write_table(pa.table({"word": words}), tmp_path / "rows.parquet", row_group_size=100)
    assert open_table(str(tmp_path / "rows.parquet"), accept)[599] == {"word": "word 59"}


def test_broken_parquet_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(parquet_rows()), tmp_path / "good.parquet")
    good = (tmp_path / "good.parquet").read_bytes()
    for content in (b"", b"PAR1", b"no parquet at all", good[: len(good) // 2], good[:-8] + b"\xff\xff\xff\x7fPAR1"):
        assert "no readable parquet file" in refusal(tmp_path, content, "rows.parquet")
    damaged = bytearray(good)
    damaged[100:400] = b"\xff" * 300
    assert "no readable parquet file" in refusal(tmp_path, bytes(damaged), "rows.parquet")


def test_parquet_with_a_name_twice(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), tmp_path / "twins.parquet")
    with pytest.raises(ConfigError, match=r"twins\.parquet` has several columns of one name: `a`"):
        open_table(str(tmp_path / "twins.parquet"), accept)
    maps = pa.array([[("k", 1)], [("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"a": maps}), tmp_path / "map.parquet")
    with pytest.raises(ConfigError, match=r"map\.parquet` row 2: a value cannot be read: .*duplicate key was 'k'"):
        open_table(str(tmp_path / "map.parquet"), accept)


def test_parquet_without_rows_and_with_text_that_is_no_utf8(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.string())}), tmp_path / "empty.parquet")
    with pytest.raises(ConfigError, match="has no rows"):
        open_table(str(tmp_path / "empty.parquet"), accept)
    raw = pa.array([b"fine", b"\xff\xfe", b"fine"]).view(pa.string())
    pq.write_table(pa.table({"a": raw}), tmp_path / "raw.parquet")
    with pytest.raises(ConfigError, match=r"raw\.parquet` row 2: a value cannot be read: .*invalid start byte"):
        open_table(str(tmp_path / "raw.parquet"), accept)


def test_endings() -> None:
    known = {
        "a/b.jsonl": ".jsonl",
        "b.jsonl.gz": ".jsonl.gz",
        "b.JSON": ".json",
        "s3://x/b.parquet": ".parquet",
        "https://x/b.jsonl?download=true": ".jsonl",
        "zip://train.jsonl::s3://x/all.zip": ".jsonl",
        "b.csv": None,
        "folder": None,
        "b.jsonl/": None,
    }
    assert {url: ending(url) for url in known} == known


def test_no_file_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    table = opened(tmp_path, gzip.compress(b"\n".join(LINES)), "rows.jsonl.gz")
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    other = open_table(str(tmp_path / "rows.parquet"), accept)
    assert (len(table), len(other)) == (3, 3)
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.parquet"])
def test_a_full_temporary_folder_is_named(tmp_path: Path, name: str) -> None:
    rows = [{"a": str(number) * 100} for number in range(1000)]
    if name.endswith("gz"):
        (tmp_path / name).write_bytes(gzip.compress(b"\n".join(json.dumps(row).encode() for row in rows)))
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(
            ConfigError, match=r"cannot be unpacked to the temporary folder .*: File too large"
        ) as caught:
            open_table(str(tmp_path / name), accept)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "TMPDIR" in str(caught.value)


MEASURE = """
import resource, sys
from dagrl.data.rows import open_rows
if sys.argv[1].endswith("parquet"):
    import pyarrow.parquet
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = open_rows(sys.argv[1], "train")
for index in range(0, len(rows), 5):
    assert rows[index].answer == str(index % 1000)
print(len(rows), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize(("name", "megabytes"), [("rows.jsonl", 200), ("rows.jsonl.gz", 100), ("rows.parquet", 100)])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str, megabytes: int) -> None:
    """Growth of the peak in megabytes, over opening and reading."""
    path = tmp_path / name
    block = [{"prompt": f"{i} " + "0123456789 " * 250, "answer": str(i)} for i in range(1000)]
    content = b"".join(json.dumps(row).encode() + b"\n" for row in block)
    repeats = megabytes * 1_000_000 // len(content) + 1
    if name.endswith("parquet"):
        table = pa.Table.from_pylist(block)
        with pq.ParquetWriter(path, table.schema, compression="none", use_dictionary=False) as writer:
            for _ in range(repeats):
                writer.write_table(table)
    else:
        with gzip.open(path, "wb", 1) if name.endswith("gz") else open(path, "wb") as file:
            for _ in range(repeats):
                file.write(content)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    count, growth = map(int, done.stdout.split())
    assert count == repeats * 1000
    assert growth < 50
