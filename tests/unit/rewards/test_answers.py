"""What of a response is its answer."""

import pytest

from dagrl.rewards.answers import find_answer


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("15 - 43 = -28", "-28"),
        ("The sum of 3 and 4 is 7.", "7"),
        ("3-4", "4"),
        ("x-4", "4"),
        ("(-4)", "-4"),
        ("1,234,567.50 in all", "1234567.50"),
        ("a .5", ".5"),
        ("12.", "12"),
        ("none", None),
        ("", None),
        ("-", None),
    ],
)
def test_the_last_number(text: str, found: str | None) -> None:
    assert find_answer(text, "last_number") == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<answer> 7 </answer>", "7"),
        ("<answer>1</answer> no, <answer>2</answer>.", "2"),
        ("<answer>1</answer><answer>2", "1"),
        ("<answer>1<answer>2</answer>", "2"),
        ("<answer></answer>", None),
        ("</answer>7<answer>", None),
        ("7", None),
    ],
)
def test_between_the_last_tags(text: str, found: str | None) -> None:
    assert find_answer(text, "tags") == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{1} or \boxed{2}", "2"),
        (r"\boxed{1", None),
        (r"\boxed{}", None),
        ("1", None),
    ],
)
def test_in_the_last_box(text: str, found: str | None) -> None:
    assert find_answer(text, "boxed") == found


def test_the_whole_text() -> None:
    assert find_answer(" so 7\n", "whole") == "so 7"
    assert find_answer(" \n", "whole") is None
