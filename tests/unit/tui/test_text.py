"""Text is shown and never obeyed, and measured by cells."""

import unicodedata
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from support import calls_of

from dagrl.tui.text import cells, cut, folded, pad, pad_left, safe, safe_in_full, safe_lines

ANYTHING = st.text(st.characters() | st.sampled_from("\x1b\x9b\r\n\t\u202e\u2066\u200d\ufe0f\u0301日👩🏽"))


def is_harmless(text: str) -> bool:
    return all(unicodedata.category(each) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for each in text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [red]text[/]", "plain [red]text[/]"),
        ("\x1b[31mred", "␛[31mred"),
        ("two\r\nlines\ttab", "two↵lines tab"),
        ("\u202eabc\u2066", "abc"),
        ("e\u0301" + "\u0301" * 50, "e\u0301\u0301\u0301"),
        ("\u0301abc", "abc"),
        ("👨\u200d👩\u200d👧", "👨👩👧"),
        ("👍🏽", "👍"),
        ("❤\ufe0f", "❤"),
        ("\ud800\x9b\ue000", "\ufffd\ufffd\ufffd"),
        ("a\u00a0b\u3000c", "a b c"),
    ],
)
def test_what_a_terminal_would_obey_is_made_visible_or_dropped(text: str, shown: str) -> None:
    assert safe(text) == shown


@given(ANYTHING)
def test_safe_text_is_harmless_and_stays_as_it_is(text: str) -> None:
    shown = safe(text)
    assert is_harmless(shown)
    assert safe(shown) == shown
    assert cells(shown) == cell_len(shown) == sum(cell_len(each) for each in shown)


@given(ANYTHING, st.integers(-2, 40))
def test_cutting_and_filling_count_cells(text: str, width: int) -> None:
    shown = safe(text)
    assert cell_len(cut(shown, width)) <= max(0, width)
    assert cell_len(pad(shown, width)) == cell_len(pad_left(shown, width)) == max(0, width)
    if cell_len(shown) <= width:
        assert cut(shown, width) == shown
    elif width > 0:
        assert cut(shown, width).endswith("…")
        assert shown.startswith(cut(shown, width)[:-1])


@given(ANYTHING, st.integers(-2, 30), st.integers(1, 5))
def test_folded_lines_fit_and_say_as_much_as_they_can(text: str, width: int, most: int) -> None:
    shown = safe(text)
    lines = folded(shown, width, most)
    assert 1 <= len(lines) <= most
    assert all(cells(line) <= max(0, width) for line in lines)
    said = "".join(lines).replace(" ", "")
    if not said.endswith("…"):
        assert said == shown.replace(" ", "") or width < 2
    else:
        assert shown.replace(" ", "").startswith(said[:-1])


def test_lines_are_folded_at_spaces_near_their_end() -> None:
    assert folded("one two three four", 9, 3) == ["one two", "three", "four"]
    assert folded("one two three four", 9, 2) == ["one two", "three fo…"]
    assert folded("abcdefghijkl", 5, 3) == ["abcde", "fghij", "kl"]
    assert folded("", 5, 3) == [""]


def test_very_long_text_is_cut_before_it_is_measured() -> None:
    for text in ("x" * 100_000, "日" * 100_000, "e\u0301" * 100_000, "\x1b[0m" * 30_000):
        assert calls_of(partial(safe, text)) < 40_000
        shown = safe(text)
        assert calls_of(partial(cut, shown, 80)) < 2_000
    assert len(safe_in_full("日\n" * 100_000)) == 200_000


def test_lines_of_an_error_are_the_first_that_say_something() -> None:
    assert safe_lines("\nValueError: no\n\n  at \x1b[1mx\nmore", 2) == ["ValueError: no", "  at ␛[1mx"]
    assert safe_lines("", 3) == []
