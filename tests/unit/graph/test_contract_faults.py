"""Signatures that are no contract: each fault has its own words, and all faults of one signature come together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from dagrl import LossColumns, Metrics, Objects, Policy, loss, node
from dagrl.errors import ContractError

if TYPE_CHECKING:
    from somewhere import Missing

Rewards = Float32[Tensor, " B"]
Tokens = Float32[Tensor, "B T"]


@dataclass(frozen=True)
class Running:
    mean: float = 0.0


class Loose(NamedTuple):
    scores: Float[Tensor, " B"]


class Fine(NamedTuple):
    scores: Rewards


class NoColumn(NamedTuple):
    scores: Rewards
    total: int


class Carries(NamedTuple):
    scores: Rewards
    row_ids: Int64[Tensor, " B"]


class Unresolved(NamedTuple):
    scores: "Missing"


# fmt: off
def no_annotation(rewards): ...
def positional_option(rewards: Rewards, size: int): ...
def float_column(rewards: Float[Tensor, " B"]): ...
def without_rows(rewards: Float32[Tensor, " T"]): ...
def scalar(rewards: Float32[Tensor, ""]): ...
def default_without_optional(rewards: Rewards = None): ...
def optional_without_default(rewards: Rewards | None): ...
def variadic(*rewards: Rewards): ...
def positional_only(rewards: Rewards, /): ...
def keywords(rewards: Rewards, **rest: Any): ...
def late_role(rewards: Rewards, actor: Policy): ...
def reads_row_ids(row_ids: Int64[Tensor, " B"]): ...
def wrong_carried(group_ids: Rewards): ...
def named_option(rewards: Rewards, *, name: str): ...
def role_of_none(rewards: Rewards): ...
def unresolved(rewards: Rewards, other: "Missing"): ...
def unresolved_result(rewards: Rewards) -> "Missing": ...
def state_lost(rewards: Rewards, *, state: Running): ...
def state_by_row(rewards: Rewards, *, state: Running) -> Running: ...
def column(rewards: Rewards) -> Rewards: ...
def loose_column(rewards: Rewards) -> Float[Tensor, " B"]: ...
def number(rewards: Rewards) -> int: ...
def optional_column(rewards: Rewards) -> Rewards | None: ...
def two_columns(rewards: Rewards) -> tuple[Rewards, Rewards]: ...
def metrics_first(rewards: Rewards) -> tuple[Metrics, Rewards]: ...
def loose_fields(rewards: Rewards) -> Loose: ...
def number_field(rewards: Rewards) -> NoColumn: ...
def fields(rewards: Rewards) -> Fine: ...
def carried_field(rewards: Rewards) -> Carries: ...
def unresolved_field(rewards: Rewards) -> Unresolved: ...
def flags_of_tokens(rewards: Rewards) -> Bool[Tensor, "B T"]: ...
def flags(rewards: Rewards) -> Bool[Tensor, " B"]: ...
def reads_positions(positions: Int64[Tensor, " B"], *, data: str, split: str, batch_size: int, n: int): ...
def no_positions(rewards: Rewards, *, data: str, split: str, batch_size: int, n: int): ...
def no_options(positions: Int64[Tensor, " B"]): ...
def policy_column(actor: Policy, rewards: Rewards) -> Tokens: ...
def loss_reader(actor: Policy, columns: LossColumns) -> Metrics: ...
def learner(actor: Policy, columns: LossColumns, *, epochs: int = 1) -> Metrics: ...


CASES: list[tuple[Callable[..., Any], dict[str, Any], str, str]] = [
    (no_annotation, {}, "parameter `rewards` has no annotation", "annotate it"),
    (positional_option, {}, "parameter `size` is no column, role or option", "keyword-only (after `*`)"),
    (float_column, {}, "parameter `rewards` must name one dtype", "write Float32, Int64 or Bool"),
    (without_rows, {}, 'parameter `rewards` has the dims "T"', "the first dim of a column is B"),
    (scalar, {}, 'parameter `rewards` has the dims ""', "the first dim of a column is B"),
    (default_without_optional, {}, "column `rewards` has a default but is not optional", "| None = None"),
    (optional_without_default, {}, "optional column `rewards` has no default", "`rewards: ... | None = None`"),
    (variadic, {}, "parameter `rewards` is variadic", "name every column"),
    (positional_only, {}, "parameter `rewards` is variadic or positional-only", "name every column"),
    (keywords, {}, "parameter `rest` is variadic", "name every column"),
    (late_role, {}, "parameter `actor` is a role but not the first parameter", "put the role first"),
    (reads_row_ids, {}, "`row_ids` stays with the executor", "`group_ids` or `seeds`"),
    (wrong_carried, {}, "`group_ids` is i64[B], not f32[B]", 'annotate `Int64[Tensor, " B"]`'),
    (named_option, {}, "`name` cannot be an option", "names the call"),
    (role_of_none, {"needs": "rollout"}, "it has needs= or mutates= but no role", "`actor: Policy`"),
    (role_of_none, {"mutates": True}, "it has needs= or mutates= but no role", "`actor: Policy`"),
    (
        policy_column,
        {"writes": "x", "needs": "rollout", "mutates": True},
        'it mutates with needs="rollout"',
        "training",
    ),
    (unresolved, {}, "parameter `other` uses `Missing`, which does not resolve", "outside TYPE_CHECKING"),
    (unresolved_result, {"writes": "x"}, "the result uses `Missing`, which does not resolve", "outside TYPE_CHECKING"),
    (state_lost, {"split": "batch"}, "it takes `state` but does not return it", "return the new state"),
    (state_by_row, {}, "a node with state sees the whole batch", 'split="batch"'),
    (column, {}, "its result is no declared column", 'writes="name"'),
    (number, {"writes": "x"}, "its result is no declared column", "a NamedTuple of columns"),
    (optional_column, {"writes": "x"}, "its result is no declared column", "a NamedTuple"),
    (loose_column, {"writes": "x"}, "its result must name one dtype", "Float32"),
    (role_of_none, {"writes": "x"}, "it declares writes='x' but returns nothing", "annotate the returned column"),
    (two_columns, {"writes": "x"}, "its result is not columns, state, Metrics in that order", "a NamedTuple"),
    (metrics_first, {"writes": "x"}, "its result is not columns, state, Metrics in that order", "a NamedTuple"),
    (loose_fields, {}, "field `scores` of `Loose` must name one dtype", "Float32"),
    (number_field, {}, "field `total` of `NoColumn` is no column", "jaxtyping or Objects"),
    (carried_field, {}, "it cannot write a column `row_ids`: every edge carries it already", "another name"),
    (unresolved_field, {}, "`Unresolved`: field `scores` uses `Missing`", "outside TYPE_CHECKING"),
    (fields, {"writes": "x"}, "it has both writes= and a NamedTuple result", "drop writes="),
    (column, {"writes": "new_rewards"}, "it cannot write a column `new_rewards`", "another name"),
    (column, {"writes": "count"}, "it cannot write a column `count`", "another name"),
    (column, {"writes": "index"}, "it cannot write a column `index`", "another name"),
    (column, {"writes": "seeds"}, "it cannot write a column `seeds`", "another name"),
    (column, {"writes": "two words"}, "it cannot write a column `two words`: it is not", "another name"),
    (flags_of_tokens, {"rows": "filter"}, "a filter returns one flag for each row", 'Bool[Tensor, " B"]'),
    (flags, {"rows": "filter", "writes": "kept"}, "a filter returns one flag for each row", "Bool"),
    (no_options, {"rows": "source"}, "needs the options `data`, `split`, `batch_size`, `n`", "after `*`"),
    (reads_positions, {}, '`positions` and rows="source" go together', "at `positions`"),
    (no_positions, {"rows": "source"}, '`positions` and rows="source" go together', "at `positions`"),
    (learner, {"mutates": True, "split": "minibatch"}, "needs the options `mini_batch_size`", "after `*`"),
    (loss_reader, {}, "it takes LossColumns but does not mutate", "mutates=True"),
    (column, {"writes": "x", "alias_of": "old_logprobs"}, "alias_of='old_logprobs' needs", "new_logprobs"),
    (role_of_none, {"alias_of": "new_logprobs"}, "needs one written column and an engine output", "new_logprobs"),
    (column, {"writes": "x", "split": "rows"}, "split='rows' is unknown", "'row', 'group', 'batch', 'minibatch'"),
    (column, {"writes": "x", "rows": "filters"}, "rows='filters' is unknown", "'filter'"),
    (policy_column, {"writes": "x", "needs": "trian"}, "needs='trian' is unknown", "'train', 'rollout'"),
]


@pytest.mark.parametrize(
    ("function", "flags_given", "what", "fix"),
    CASES,
    ids=[f"{case[0].__name__}-{number}" for number, case in enumerate(CASES)],
)
def test_a_fault_is_named_with_its_fix(function: Any, flags_given: dict[str, Any], what: str, fix: str) -> None:
    with pytest.raises(ContractError) as error:
        node(**flags_given)(function)
    message = error.value.message()
    assert what in message
    assert fix in message
    assert f"node `{function.__name__}`" in message
    assert f"test_contract_faults.py:{function.__code__.co_firstlineno}" in message
    assert len(error.value.problems) == 1, message


def test_all_faults_of_a_signature_come_in_one_error() -> None:
    with pytest.raises(ContractError) as error:

        @node(writes="count", split="rows")
        def hopeless(
            size: int, rewards: Float[Tensor, " B"], actor: Policy, row_ids: Int64[Tensor, " B"], *, name: str = ""
        ) -> Rewards: ...

    message = error.value.message()
    assert "7 problems" in message
    for words in ("`size`", "`rewards` must", "`actor`", "`row_ids`", "`name`", "`count`", "'rows'"):
        assert words in message


# fmt: off
def no_result(new_logprobs: Tokens): ...
def wrong_result(new_logprobs: Tokens) -> tuple[Rewards, Metrics]: ...
def only_losses(new_logprobs: Tokens) -> Tokens: ...
def unknown_output(new_logprobs: Tokens, new_logits: Tokens) -> tuple[Tokens, Metrics]: ...
def no_engine_output(old_logprobs: Tokens) -> tuple[Tokens, Metrics]: ...
def rows_output(new_logprobs: Rewards) -> tuple[Tokens, Metrics]: ...
def carried(new_logprobs: Tokens, group_ids: Int64[Tensor, " B"]) -> tuple[Tokens, Metrics]: ...
def with_state(new_logprobs: Tokens, *, state: int) -> tuple[Tokens, Metrics]: ...
def with_wanted(new_logprobs: Tokens, *, wanted: frozenset[str]) -> tuple[Tokens, Metrics]: ...
def with_rest(new_logprobs: Tokens, *rest: Tokens) -> tuple[Tokens, Metrics]: ...
def with_role(new_logprobs: Tokens, actor: Policy) -> tuple[Tokens, Metrics]: ...
def with_objects(new_logprobs: Tokens, answers: Objects[str] = ()) -> tuple[Tokens, Metrics]: ...


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (no_result, "its result is not per-token losses and metrics"),
        (wrong_result, "its result is not per-token losses and metrics"),
        (only_losses, "its result is not per-token losses and metrics"),
        (unknown_output, "parameter `new_logits` is no engine output"),
        (no_engine_output, "it reads no engine output, so it has no gradient"),
        (rows_output, "`new_logprobs` is f32[B T]"),
        (carried, "a loss cannot read `group_ids`"),
        (with_state, "a loss cannot take `state`"),
        (with_wanted, "a loss cannot take `wanted`"),
        (with_rest, "parameter `rest` is variadic"),
        (with_role, "parameter `actor` is no column, role or option"),
        (with_objects, "column `answers` has a default but is not optional"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_losses_that_are_no_contract(function: Any, what: str) -> None:
    with pytest.raises(ContractError) as error:
        loss()(function)
    assert what in error.value.message()
    assert f"loss `{function.__name__}`" in error.value.message()
    assert f":{function.__code__.co_firstlineno}" in error.value.message()
    assert len(error.value.problems) == 1


def below(function: Callable[..., Any]) -> str:
    """Where a message places the function: its line, with or without decorators."""
    return f"test_contract_faults.py:{function.__code__.co_firstlineno}"


def test_a_decorator_without_parentheses_says_what_it_needs() -> None:
    with pytest.raises(ContractError) as error:
        node(column)  # pyright: ignore[reportCallIssue, reportArgumentType]
    message = error.value.message()
    assert "node `column`" in message
    assert "`@node` stands without parentheses." in message
    assert 'write `@node(writes="rewards")`' in message
    assert "`@node()` where it returns a NamedTuple" in message
    assert below(column) in message
    with pytest.raises(ContractError) as error:
        loss(wrong_result)  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert "`@loss` stands without parentheses." in error.value.message()
    assert "write `@loss()`" in error.value.message()
    assert below(wrong_result) in error.value.message()


def test_what_a_decorator_takes_goes_by_name() -> None:
    with pytest.raises(ContractError, match=r"`@node\(...\)` got 'rewards' by position") as error:
        node("rewards")  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert error.value.problems[0].at is not None
    assert error.value.problems[0].at.file == __file__


async def asynchronous(rewards: Rewards) -> Rewards: ...
def generator(rewards: Rewards) -> Rewards: yield rewards


@pytest.mark.parametrize("function", [asynchronous, generator])
def test_a_function_that_returns_no_columns(function: Any) -> None:
    with pytest.raises(ContractError, match="it is async or a generator, so a call returns no columns"):
        node(writes="rewards")(function)


@pytest.mark.parametrize("thing", [Fine, len, 3, node()(role_of_none)], ids=["class", "builtin", "number", "node"])
def test_what_is_no_function(thing: Any) -> None:
    with pytest.raises(ContractError, match=r"`@node\(...\)` stands above an? \w+, "):
        node(writes="x")(thing)
