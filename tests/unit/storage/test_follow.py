"""Lines that are followed while they grow, on every kind of file system."""

from pathlib import Path

from dagrl.storage.folder import Folder
from dagrl.storage.follow import LineFollower
from dagrl.storage.segments import LineWriter, drop_segments


def numbers(follower: LineFollower) -> list[str]:
    return [line.decode() for line in follower.new_lines()]


def line(number: int) -> str:
    return f'{{"number": {number}}}'


def test_lines_come_once_and_in_order_over_segments(any_url: str) -> None:
    writer = LineWriter(Folder(any_url).below("events"))
    follower = LineFollower(any_url, "events")
    assert numbers(follower) == []
    seen: list[str] = []
    for number in range(9):
        writer.append({"number": number})
        if number % 4 == 3:
            writer.cut()
        seen += numbers(follower)
        assert not follower.is_replaced()
    writer.cut()
    assert [*seen, *numbers(follower)] == [line(number) for number in range(9)]
    assert [line(number) for number in range(9)] == numbers(LineFollower(any_url, "events"))


def test_a_run_that_goes_on_from_before_is_noticed(any_url: str) -> None:
    folder = Folder(any_url).below("events")
    writer = LineWriter(folder)
    follower = LineFollower(any_url, "events")
    for number in (1, 2, 3):
        writer.append({"number": number})
        writer.cut()
    assert numbers(follower) == [line(1), line(2), line(3)]
    drop_segments(folder, 1)
    assert follower.is_replaced(), "gone"
    again = LineWriter(folder, 1)
    for number in (4, 5):
        again.append({"number": number})
        again.cut()
    assert follower.is_replaced(), "others are in their place"
    follower.restart()
    assert not follower.is_replaced()
    assert numbers(follower) == [line(1), line(4), line(5)]


def test_a_line_that_is_not_complete_comes_later(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    segment = tmp_path / "events/000000.jsonl"
    segment.write_text(f"{line(1)}\n{line(2)[:5]}")
    follower = LineFollower(str(tmp_path), "events")
    assert numbers(follower) == [line(1)]
    assert numbers(follower) == []
    segment.write_text(f"{line(1)}\n{line(2)}\n")
    assert numbers(follower) == [line(2)]
