"""Functions beside a loss: what the contract takes from their signatures, and what it refuses."""

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from dagrl import Metrics, Objects, loss
from dagrl.data.columns import ColumnType
from dagrl.errors import ContractError
from dagrl.graph.contract import Read
from dagrl.nodes import clip_cov, kl_cov, ppo_clip, topk_distill

if TYPE_CHECKING:
    from somewhere import Missing

Tokens = Float32[Tensor, "B T"]
Mask = Bool[Tensor, "B T"]
Logits = Float32[Tensor, "N V"]
OfTokens = Float32[Tensor, " N"]
Result = tuple[Tokens, Metrics]


class Kept(NamedTuple):
    kept: Mask
    weight: Float32[Tensor, " B"]


class Loose(NamedTuple):
    kept: Float[Tensor, "B T"]


class Number(NamedTuple):
    kept: int


class Texts(NamedTuple):
    kept: Objects[str]


class Reserved(NamedTuple):
    new_kept: Mask


class Unknown(NamedTuple):
    kept: "Missing"


def keep(new_logprobs: Tokens, rewards: Float32[Tensor, " B"], token_uniform: Tokens, *, share: float) -> Kept:
    return Kept(token_uniform < share, rewards)


def margin(
    new_logits: Logits, answers_ids: Int64[Tensor, "N K"], temperatures: OfTokens, hint: OfTokens | None = None
) -> OfTokens:
    return new_logits.amax(1)


def test_contract_of_a_loss_with_both() -> None:
    @loss(prepare=keep, project=margin)
    def both(new_entropy: Tokens, advantages: Tokens, kept: Mask, margin: Tokens, *, share: float = 0.5) -> Result:
        return margin * advantages * kept, Metrics()

    contract = both.contract
    assert contract.engine_outputs == ("new_entropy",)
    assert contract.arguments == ("advantages", "kept", "margin")
    assert {str(read) for read in contract.reads} == {
        "advantages: f32[B T]", "rewards: f32[B]", "answers_ids: i64[B T K]", "temperatures: f32[B]", "hint: f32[B T]",
    }  # fmt: skip
    assert [read.name for read in contract.reads if read.optional] == ["hint"]
    assert contract.prepare is not None
    assert contract.prepare.engine_inputs == {"new_logprobs", "token_uniform"}
    assert contract.prepare.options == ("share",)
    assert contract.prepare.gives == (
        Read("kept", ColumnType("bool", ("B", "T"))), Read("weight", ColumnType("f32", ("B",))),
    )  # fmt: skip
    assert contract.project is not None
    assert contract.project.gives == (Read("margin", ColumnType("f32", ("B", "T"))),)


def test_a_loss_without_engine_output_has_its_gradient_from_the_projection() -> None:
    assert topk_distill.contract.engine_outputs == ()
    names = {read.name for read in topk_distill().reads()}
    assert names == {"response_mask", "teacher_topk_ids", "teacher_topk_logprobs"}


def test_called_with_what_is_prepared_it_runs() -> None:
    ones = torch.ones(2, 3)
    every = ones.bool()
    losses, _ = kl_cov(ones, ones, ones, every, covariance=ones, selected=every)
    assert torch.equal(losses, -ones)
    assert torch.equal(topk_distill(teacher_kl=ones, response_mask=every)[0], ones)
    assert str(clip_cov(clip_ratio=0.1)) == "clip_cov(clip_ratio=0.1)"


def test_coefficient_zero_drops_what_the_functions_read() -> None:
    terms = ppo_clip() + 0 * topk_distill() - 0 * clip_cov()
    assert terms.reads() == ppo_clip().reads()


def test_a_column_is_required_where_loss_or_function_requires_it() -> None:
    @loss(prepare=keep)
    def softer(
        new_logprobs: Tokens, kept: Mask, rewards: Float32[Tensor, " B"] | None = None, *, share: float = 0.5
    ) -> Result:
        return new_logprobs * kept, Metrics()

    assert [(read.name, read.optional) for read in softer.contract.reads] == [("rewards", False)]


def test_losses_with_functions_pickle_by_name() -> None:
    assert pickle.loads(pickle.dumps(clip_cov)) is clip_cov
    assert pickle.loads(pickle.dumps(0.5 * topk_distill())).terms[0].loss is topk_distill


# fmt: off
def no_result(rewards: Tokens): ...
def one_column(rewards: Tokens) -> Tokens: ...
def loose(rewards: Tokens) -> Loose: ...
def number(rewards: Tokens) -> Number: ...
def texts(rewards: Tokens) -> Texts: ...
def reserved(rewards: Tokens) -> Reserved: ...
def unknown_field(rewards: Tokens) -> Unknown: ...
def unknown(rewards: "Missing") -> Kept: ...
def unannotated(rewards) -> Kept: ...
def variadic(*rewards: Tokens) -> Kept: ...
def seeded(seeds: Int64[Tensor, " B"]) -> Kept: ...
def grouped(group_ids: Int64[Tensor, " B"]) -> Kept: ...
def entropic(new_entropy: Tokens) -> Kept: ...
def wide(new_logprobs: Float32[Tensor, " B"]) -> Kept: ...
def whole_uniform(token_uniform: Float32[Tensor, " B"]) -> Kept: ...
def objects(response_text: Objects[str]) -> Kept: ...
def positional_option(rewards: Tokens, share: float) -> Kept: ...
def foreign_option(rewards: Tokens, *, shares: float) -> Kept: ...
def clashing(advantages: Float32[Tensor, " B"]) -> Kept: ...
async def waits(rewards: Tokens) -> Kept: ...

def without_logits(rewards: OfTokens) -> OfTokens: ...
def rows_of_logits(new_logits: Float32[Tensor, "B V"]) -> OfTokens: ...
def double_logits(new_logits: Float32[Tensor, "N K"]) -> OfTokens: ...
def by_row(new_logits: Logits, rewards: Tokens) -> OfTokens: ...
def by_place(new_logits: Logits, input_ids: Int64[Tensor, " N"]) -> OfTokens: ...
def by_logprob(new_logits: Logits, new_logprobs: OfTokens) -> OfTokens: ...
def by_draw(new_logits: Logits, token_uniform: OfTokens) -> OfTokens: ...
def by_seed(new_logits: Logits, seeds: Int64[Tensor, " N"]) -> OfTokens: ...
def by_option(new_logits: Logits, scale: float) -> OfTokens: ...
def half_optional(new_logits: Logits, rewards: OfTokens | None) -> OfTokens: ...
def new_margin(new_logits: Logits) -> OfTokens: ...
def two_results(new_logits: Logits) -> tuple[OfTokens, OfTokens]: ...
def of_rows(new_logits: Logits) -> Tokens: ...


PREPARE: list[tuple[Any, str, str]] = [
    (no_result, "its result is no NamedTuple of columns", "annotate `-> MyColumns`"),
    (one_column, "its result is no NamedTuple of columns", "annotate `-> MyColumns`"),
    (loose, "field `kept` of `Loose` must name one dtype", "Float32"),
    (number, "field `kept` of `Number` is no tensor column", "jaxtyping"),
    (texts, "field `kept` of `Texts` is no tensor column", "jaxtyping"),
    (reserved, "field `new_kept` of `Reserved` cannot have that name", "another name"),
    (unknown_field, "`Unknown`: field `kept` uses `Missing`", "outside TYPE_CHECKING"),
    (unknown, "parameter `rewards` uses `Missing`", "outside TYPE_CHECKING"),
    (unannotated, "parameter `rewards` has no annotation", "annotate it: a column"),
    (variadic, "parameter `rewards` is variadic", "name every column"),
    (seeded, "it cannot read `seeds`", "take `token_uniform` in `prepare=`"),
    (grouped, "it cannot read `group_ids`", "a column in a node"),
    (entropic, "the engine has no `new_entropy` for it", "take `new_logprobs`, which comes detached"),
    (wide, "`new_logprobs` is f32[B T]", 'Float32[Tensor, "B T"]'),
    (whole_uniform, "`token_uniform` is f32[B T]", 'Float32[Tensor, "B T"]'),
    (objects, "it cannot read the object column `response_text`", "in a node"),
    (positional_option, "parameter `share` is no column", "keyword-only (after `*`)"),
    (foreign_option, "takes the option `shares`, which the loss does not have", "add `shares` to the loss's own"),
    (clashing, "reads `advantages: f32[B]`, but the loss reads `advantages: f32[B T]`", "as one type"),
    (waits, "is no plain function", "def my_function"),
    ("keep", "prepare='keep' is no plain function", "def my_function"),
]
PROJECT: list[tuple[Any, str, str]] = [
    (without_logits, "it does not take `new_logits`", 'add `new_logits: Float32[Tensor, "N V"]`'),
    (rows_of_logits, 'parameter `new_logits` has the dims "B V": the first dim is N here', ""),
    (double_logits, "`new_logits` is f32[N V]", 'Float32[Tensor, "N V"]'),
    (by_row, 'parameter `rewards` has the dims "B T": the first dim is N here, the trained tokens', ""),
    (by_place, "`input_ids` has no value for each response token", "such as `responses`"),
    (by_logprob, "it cannot take `new_logprobs`", "combine results in the loss"),
    (by_draw, "it cannot take `token_uniform`", "combine results in the loss"),
    (by_seed, "it cannot read `seeds`", "in `prepare=`"),
    (by_option, "parameter `scale` is no column of tokens", "annotate it by token"),
    (half_optional, "`rewards` must be optional and have the default None, or neither", "| None = None"),
    (two_results, "its result is not one number for each token", 'annotate `-> Float32[Tensor, " N"]`'),
    (of_rows, "its result is not one number for each token", 'annotate `-> Float32[Tensor, " N"]`'),
    (new_margin, "the loss cannot take its result as `new_margin`", "rename the function"),
]
# fmt: on


def declare(**functions: Any) -> Callable[[], Any]:
    def my_loss(new_logprobs: Tokens, advantages: Tokens, kept: Mask, margin: Tokens) -> Result: ...

    return lambda: loss(**functions)(my_loss)


@pytest.mark.parametrize(("function", "what", "fix"), PREPARE, ids=lambda value: getattr(value, "__name__", None))
def test_a_prepare_function_that_is_no_contract(function: Any, what: str, fix: str) -> None:
    with pytest.raises(ContractError) as raised:
        declare(prepare=function)()
    text = str(raised.value)
    assert what in text
    assert fix in text
    assert "loss `my_loss`" in text


@pytest.mark.parametrize(("function", "what", "fix"), PROJECT, ids=lambda value: getattr(value, "__name__", None))
def test_a_project_function_that_is_no_contract(function: Any, what: str, fix: str) -> None:
    with pytest.raises(ContractError) as raised:
        declare(project=function)()
    text = str(raised.value)
    assert what in text
    assert fix in text
    assert f"project `{function.__name__}`" in text


def test_all_faults_come_at_once() -> None:
    with pytest.raises(ContractError) as raised:
        declare(prepare=seeded, project=by_row)()
    assert "prepare `seeded`: it cannot read `seeds`" in str(raised.value)
    assert "project `by_row`: parameter `rewards`" in str(raised.value)


def test_what_a_loss_must_take_of_its_functions() -> None:
    with pytest.raises(ContractError) as raised:

        @loss(prepare=keep, project=margin)
        def deaf(new_logprobs: Tokens, token_uniform: Tokens, *, share: float = 0.1) -> Result: ...

    text = str(raised.value)
    assert "it takes nothing of what prepare `keep` gives: `kept`, `weight`" in text
    assert "it takes nothing of what project `margin` gives: `margin`" in text
    assert "add a parameter `kept`" in text
    assert "a loss cannot take `token_uniform`" in text


def test_a_parameter_of_another_type_than_it_is_given() -> None:
    with pytest.raises(ContractError, match=r"parameter `kept` is not bool\[B T\], which"):

        @loss(prepare=keep)
        def other(new_logprobs: Tokens, kept: Tokens, *, share: float = 0.1) -> Result: ...


def test_two_functions_cannot_give_one_name() -> None:
    def kept(new_logits: Logits) -> OfTokens: ...

    with pytest.raises(ContractError, match="`prepare=` and `project=` both give `kept`"):

        @loss(prepare=keep, project=kept)
        def twice(new_logprobs: Tokens, kept: Mask, *, share: float = 0.1) -> Result: ...
