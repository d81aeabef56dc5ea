import pytest

from dagrl.rewards.shapes import (
    Parameters,
    detect_shape,
    list_arguments,
    row_arguments,
    shape_fault,
    taken,
    wanted_columns,
)


def parameters(*names: str, required: tuple[str, ...] | None = None, takes_any: bool = False) -> Parameters:
    return Parameters(names, frozenset(names if required is None else required), takes_any)


@pytest.mark.parametrize(
    ("names", "shape"),
    [
        (("data_source", "solution_str", "ground_truth", "extra_info"), "verl"),
        (("solution_str", "ground_truth"), "verl"),
        (("prompts", "completions"), "trl"),
        (("completions", "answers"), "trl"),
        (("response_text",), "columns"),
        (("answers", "response_text", "truncated"), "columns"),
        (("x", "y"), None),
        ((), None),
    ],
)
def test_the_shape_is_told_by_names(names: tuple[str, ...], shape: str | None) -> None:
    assert detect_shape(parameters(*names)) == shape


def test_what_is_required_must_be_there() -> None:
    own = parameters("response_text", "answers", "truncated", required=("response_text", "answers"))
    assert shape_fault(own, "columns", frozenset({"response_text", "answers"})) is None
    assert "`answers`" in (shape_fault(own, "columns", frozenset({"response_text"})) or "")
    verl = parameters("data_source", "solution_str", "ground_truth")
    assert shape_fault(verl, "verl", frozenset({"data_source", "answers"})) is None
    assert "`ground_truth`" in (shape_fault(verl, "verl", frozenset({"data_source"})) or "")
    trl = parameters("completions", "solution")
    assert "`solution`" in (shape_fault(trl, "trl", frozenset({"answers"})) or "")
    assert shape_fault(trl, "trl", frozenset({"row_fields"})) is None
    ids = parameters("completions", "completion_ids")
    assert "`completion_ids`" in (shape_fault(ids, "trl", frozenset({"row_fields"})) or "")
    assert "fit no shape" in (shape_fault(parameters("x"), None, frozenset()) or "")


def test_verl_gets_its_own_rows_ground_truth_and_extra_info() -> None:
    columns = {
        "response_text": ["a", "b"],
        "answers": ["text", "plain"],
        "data_source": ["gsm8k", "other"],
        "row_fields": [
            {"reward_model": {"ground_truth": {"target": 3}}, "extra_info": {"index": 7}},
            {"answer": "plain"},
        ],
    }
    assert row_arguments(columns, 0) == {
        "data_source": "gsm8k",
        "solution_str": "a",
        "ground_truth": {"target": 3},
        "extra_info": {"index": 7},
    }
    assert row_arguments(columns, 1)["ground_truth"] == "plain"
    assert row_arguments(columns, 1)["extra_info"] == {}
    assert taken(parameters("solution_str", "ground_truth"), row_arguments(columns, 1)) == {
        "solution_str": "b",
        "ground_truth": "plain",
    }


def test_trl_gets_text_or_messages_as_the_data_row_has_them() -> None:
    chat = [{"role": "user", "content": "2"}]
    columns = {
        "response_text": ["a", "b", "c"],
        "messages": [[{"role": "user", "content": "1"}], chat, chat],
        "answers": ["x", "y", "z"],
        "row_fields": [{"prompt": "1", "level": 5, "completion_ids": [1]}, {"prompt": chat, "topic": "t"}, {}],
    }
    given = list_arguments(parameters("completions", takes_any=True), "trl", columns, slice(0, 3))
    assert given["prompts"] == ["1", chat, chat]
    assert given["completions"] == [
        "a", [{"role": "assistant", "content": "b"}], [{"role": "assistant", "content": "c"}]
    ]  # fmt: skip
    assert given["level"] == [5, None, None]
    assert given["topic"] == [None, "t", None]
    assert given["answer"] == given["answers"] == ["x", "y", "z"]
    assert "completion_ids" not in given
    part = list_arguments(parameters("completions", "level"), "trl", columns, slice(0, 1))
    assert part == {"completions": ["a"], "level": [5]}


def test_columns_are_cut_to_the_rows_and_to_what_is_taken() -> None:
    columns = {"response_text": ["a", "b", "c"], "truncated": [True, False, True]}
    assert list_arguments(parameters("truncated"), "columns", columns, slice(1, 3)) == {"truncated": [False, True]}
    assert wanted_columns(parameters("truncated"), "columns") == {"truncated"}
