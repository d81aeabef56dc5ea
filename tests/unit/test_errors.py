"""How messages are put together: counts, articles, full stops, and lines under their labels."""

import pytest

from dagrl.errors import ConfigError, Location, Problem, counted, sentence, with_article


def test_counts_agree_with_their_noun() -> None:
    assert [counted(number, "row") for number in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert [counted(number, "process", "processes") for number in (1, 2)] == ["1 process", "2 processes"]


def test_articles() -> None:
    nouns = ["int", "Edge", "object", "array", "list", "Tensor", "uint8"]
    assert [with_article(noun).split()[0] for noun in nouns] == ["an"] * 4 + ["a"] * 3


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("it is wrong", "it is wrong."),
        ("it is wrong.", "it is wrong."),
        ("ValueError: it is wrong..", "ValueError: it is wrong."),
        ("it is wrong. \n", "it is wrong."),
        ("and so on...", "and so on..."),
        ("and so on....", "and so on..."),
        ("is it wrong?", "is it wrong?"),
        ("one of:", "one of:"),
    ],
)
def test_a_sentence_ends_once(text: str, ended: str) -> None:
    assert sentence(text) == ended
    assert Problem(text).lines() == [ended]


def test_lines_of_a_sentence_and_of_facts_stay_in_their_columns() -> None:
    problem = Problem("first\nsecond", Location("file.py", 3), (("seen", "one\ntwo"),), "mend\nor drop it")
    assert ConfigError([problem]).message() == (
        "the configuration is not valid, 1 problem:\n"
        "  1. first\n"
        "     second.\n"
        "     at    file.py:3\n"
        "     seen  one\n"
        "           two\n"
        "     fix   mend\n"
        "           or drop it"
    )
