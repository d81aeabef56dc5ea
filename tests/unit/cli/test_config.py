"""Values for `Config` from the command line: texts become typed values, and faults come all at once."""

from dataclasses import dataclass, field
from typing import Literal

import pytest

from dagrl.cli.config import make_config, parse_text, split_assignments
from dagrl.errors import ConfigError

SOURCE = """
@dataclass(frozen=True, kw_only=True)
class Knobs:
    lr: float
    n: int = 4
    label: str | None = "x"
    flag: bool = False
    mode: Literal["a", "b"] = "a"
    limit: float | None = None
    sizes: list[int] = field(default_factory=list)
"""


@dataclass(frozen=True, kw_only=True)
class Knobs:
    lr: float
    n: int = 4
    label: str | None = "x"
    flag: bool = False
    mode: Literal["a", "b"] = "a"
    limit: float | None = None
    sizes: list[int] = field(default_factory=list)


def knobs(**values: str) -> Knobs:
    return make_config(Knobs, values, "knobs.py", SOURCE)


def faults(**values: str) -> list[tuple[str, int]]:
    with pytest.raises(ConfigError) as error:
        knobs(**values)
    assert all(problem.at and problem.at.file == "knobs.py" and problem.fix for problem in error.value.problems)
    return [(problem.what, problem.at.line) for problem in error.value.problems if problem.at]


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("1e-6", float, 1e-6),
        ("2", float, 2.0),
        ("0", float, 0.0),
        ("8", int, 8),
        ("-3", int, -3),
        ("true", bool, True),
        ("false", bool, False),
        ("off", bool, False),
        ("none", str, "none"),
        ("none", str | None, None),
        ("None", str | None, None),
        ("false", float | None, None),
        ("null", int | None, None),
        ("OFF", int | None, None),
        ("", str | None, None),
        ("false", bool | None, False),
        ("0.5", float | None, 0.5),
        ("fp32", Literal["bf16", "fp32"], "fp32"),
        ("[1, 2]", list[int], [1, 2]),
        ("[0.9, 0.99]", tuple[float, float], (0.9, 0.99)),
        ("a=b", str, "a=b"),
        ("7", str, "7"),
    ],
)
def test_texts(text: str, hint: object, value: object) -> None:
    parsed = parse_text(text, hint)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("x", int),
        ("1.5", int),
        ("none", int),
        ("none", float),
        ("maybe", bool),
        ("c", Literal["a", "b"]),
        ("[1, x]", list[int]),
        ("", int),
    ],
)
def test_texts_that_are_no_value(text: str, hint: object) -> None:
    with pytest.raises(ValueError, match="got"):
        parse_text(text, hint)


def test_assignments() -> None:
    assert split_assignments(["n=8", " lr = 1e-3 ", "label=a=b", "n=9", "limit="]) == {
        "n": "9",
        "lr": "1e-3",
        "label": "a=b",
        "limit": "",
    }
    with pytest.raises(ConfigError) as error:
        split_assignments(["n", "=3", "lr=1", " =4"])
    assert [problem.what for problem in error.value.problems] == [
        "`--set n` is not `key=value`.",
        "`--set =3` is not `key=value`.",
        "`--set  =4` is not `key=value`.",
    ]


def test_defaults_and_values() -> None:
    assert knobs(lr="1e-6") == Knobs(lr=1e-6)
    assert knobs(lr="1", n="2", label="none", flag="true", mode="b", limit="3", sizes="[1]") == Knobs(
        lr=1.0, n=2, label=None, flag=True, mode="b", limit=3.0, sizes=[1]
    )


def test_all_faults_at_their_lines() -> None:
    assert faults(n="x", mode="c", labell="y") == [
        ("`Knobs` has no field `labell`.", 3),
        ("`lr`: it has no default and was not set: pass `--set lr=...`.", 4),
        ("`n`: got 'x'; it should be a valid integer, unable to parse string as an integer.", 5),
        ("`mode`: got 'c'; it should be 'a' or 'b'.", 8),
    ]


def test_an_unknown_key_names_the_nearest_or_all() -> None:
    with pytest.raises(ConfigError) as error:
        knobs(lr="1", flagg="true", zzz="1")
    near, far = error.value.problems
    assert near.fix == "did you mean `flag`?"
    assert far.fix is not None
    assert far.fix.startswith("known: `flag`, `label`")


def test_a_default_of_the_wrong_type_is_a_fault() -> None:
    @dataclass
    class Wrong:
        n: int = "4"  # pyright: ignore[reportAssignmentType]

    with pytest.raises(ConfigError, match="`n`: got '4'"):
        make_config(Wrong, {}, "wrong.py", "class Wrong:\n    n: int = '4'\n")


class Own: ...


def test_a_field_of_a_users_class_keeps_its_default_and_cannot_be_set() -> None:
    @dataclass
    class WithOwn:
        own: Own = field(default=Own())

    assert isinstance(make_config(WithOwn, {}, "own.py", "").own, Own)
    with pytest.raises(ConfigError, match="`own`: its type cannot be given on the command line"):
        make_config(WithOwn, {"own": "x"}, "own.py", "")


@dataclass(frozen=True, kw_only=True)
class Switches:
    flag: bool | None = True
    choice: Literal["a", None] = "a"
    number: int = 1
    rate: float = 0.1
    pair: tuple[int, int] = (1, 2)


def test_an_optional_flag_can_be_absent_and_false_is_a_value_of_it() -> None:
    made = make_config(Switches, {"flag": "none", "choice": "none"}, "f.py", "")
    assert (made.flag, made.choice) == (None, None)
    assert make_config(Switches, {"flag": "false"}, "f.py", "").flag is False


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("number", "true"),
        ("number", "1e2"),
        ("number", "2.5"),
        ("rate", "true"),
        ("rate", "off"),
        ("pair", "[1, true]"),
    ],
)
def test_a_flag_is_no_number_and_a_fraction_no_count(key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"`{key}`"):
        make_config(Switches, {key: text}, "f.py", "")


def test_a_tuple_is_written_as_a_json_list() -> None:
    assert make_config(Switches, {"pair": "[3, 4]"}, "f.py", "").pair == (3, 4)
