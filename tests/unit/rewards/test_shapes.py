import pytest

from dagrl.rewards.shapes import (
    Parameters,
    detect_shape,
    list_arguments,
    shape_fault,
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
    given = list_arguments(parameters("solution_str", takes_any=True), "verl", columns)
    assert given == {
        "data_source": ["gsm8k", "other"],
        "solution_str": ["a", "b"],
        "ground_truth": [{"target": 3}, "plain"],
        "extra_info": [{"index": 7}, {}],
    }
    assert list_arguments(parameters("solution_str", "ground_truth"), "verl", columns) == {
        "solution_str": ["a", "b"],
        "ground_truth": [{"target": 3}, "plain"],
    }


def test_trl_gets_text_or_messages_as_the_data_row_has_them() -> None:
    chat = [{"role": "user", "content": "2"}]
    columns = {
        "response_text": ["a", "b", "c"],
        "messages": [[{"role": "user", "content": "1"}], chat, chat],
        "answers": ["x", "y", "z"],
        "row_fields": [{"prompt": "1", "level": 5, "completion_ids": [1]}, {"prompt": chat, "topic": "t"}, {}],
    }
    given = list_arguments(parameters("completions", takes_any=True), "trl", columns)
    assert given["prompts"] == ["1", chat, chat]
    assert given["completions"] == [
        "a", [{"role": "assistant", "content": "b"}], [{"role": "assistant", "content": "c"}]
    ]  # fmt: skip
    assert given["level"] == [5, None, None]
    assert given["topic"] == [None, "t", None]
    assert given["answer"] == given["answers"] == ["x", "y", "z"]
    assert "completion_ids" not in given
    part = list_arguments(parameters("completions", "level", "solution"), "trl", columns)
    assert part["level"] == [5, None, None]
    assert part["solution"] == [None, None, None], "required, and some other row of the data may have it"
    assert set(part) == {"completions", "level", "solution"}


def test_our_own_columns_are_not_hidden_by_fields_that_no_row_has() -> None:
    columns = {"response_text": ["a"], "answers": ["x"], "data_source": ["d"], "row_fields": [{"prompt": "1"}]}
    given = list_arguments(parameters("completions", "answer", "data_source"), "trl", columns)
    assert given == {"completions": ["a"], "answer": ["x"], "data_source": ["d"]}


def test_columns_are_cut_to_what_is_taken() -> None:
    columns = {"response_text": ["a", "b", "c"], "truncated": [True, False, True]}
    assert list_arguments(parameters("truncated"), "columns", columns) == {"truncated": [True, False, True]}


def test_a_hidden_signature_tells_no_shape_and_the_ways_out() -> None:
    hidden = Parameters((), frozenset(), takes_any=True, takes_many=True)
    assert detect_shape(hidden) is None
    fault = shape_fault(hidden, None, frozenset())
    assert fault is not None
    assert "`(*args, **kwargs)`" in fault
    assert "`functools.wraps`" in fault
    assert "`shape='verl'`" in fault
    assert shape_fault(hidden, "verl", frozenset({"answers"})) is None
    assert detect_shape(Parameters((), frozenset(), takes_any=True)) == "columns"


def test_known_fields_of_the_data_tell_what_is_missing() -> None:
    trl = parameters("completions", "solution")
    assert shape_fault(trl, "trl", frozenset({"row_fields"}), frozenset({"solution"})) is None
    fault = shape_fault(trl, "trl", frozenset({"row_fields"}), frozenset({"prompt", "level"}))
    assert fault is not None
    assert "`solution`" in fault
    assert "`level`" in fault
