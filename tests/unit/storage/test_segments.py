"""Lines in segments: in order, cut at checkpoints, dropped after one, whole on object stores."""

import pytest

from dagrl.storage import segments
from dagrl.storage.folder import Folder
from dagrl.storage.segments import LineWriter, drop_segments, read_lines


def steps(url: str) -> list[int]:
    return [line["step"] for line in read_lines(url, "metrics")]


def test_lines_come_back_in_order_over_segments(any_url: str) -> None:
    folder = Folder(any_url).below("metrics")
    writer = LineWriter(folder)
    for step in range(23):
        writer.append({"step": step, "text": "ä\u2028\n"})
        if step % 2:
            writer.cut()
    assert writer.cut() == 12
    assert steps(any_url) == list(range(23))
    assert folder.names()[0] == "000000.jsonl"
    assert writer.cut() == 12


def test_what_comes_after_a_cut_can_be_dropped(any_url: str) -> None:
    folder = Folder(any_url).below("metrics")
    writer = LineWriter(folder)
    writer.append({"step": 1})
    first = writer.cut()
    for step in (2, 3):
        writer.append({"step": step})
        writer.cut()
    drop_segments(folder, first)
    again = LineWriter(folder, first)
    again.append({"step": 2})
    again.cut()
    assert steps(any_url) == [1, 2]


def test_a_line_on_a_local_disk_is_there_at_once(tmp_path) -> None:
    writer = LineWriter(Folder(str(tmp_path)).below("metrics"))
    writer.append({"step": 1})
    assert steps(str(tmp_path)) == [1]
    writer.cut()


def test_a_line_that_a_crash_cut_short_is_left_out(tmp_path) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics/000000.jsonl").write_text('{"step": 1}\n{"st')
    assert steps(str(tmp_path)) == [1]


def test_elsewhere_lines_are_written_when_many_or_old(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "memory://many_or_old"
    writer = LineWriter(Folder(url).below("metrics"))
    writer.append({"step": 1})
    writer.flush()
    assert steps(url) == []
    monkeypatch.setattr(segments, "_MOST_SECONDS", 0.0)
    writer.flush()
    assert steps(url) == [1]
    monkeypatch.setattr(segments, "_MOST_SECONDS", 100.0)
    writer.append({"step": 2, "text": "x" * (1 << 20)})
    writer.flush()
    assert steps(url) == [1, 2]


def test_other_files_are_no_segments(tmp_path) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics/notes.jsonl").write_text("mine")
    (tmp_path / "metrics/000000.jsonl").write_text('{"step": 1}\n')
    assert steps(str(tmp_path)) == [1]
    assert read_lines(str(tmp_path), "events") == []
