"""Losses bind to options, run on tensors, and add up with coefficients."""

import pickle

import pytest
import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl import LossTerms, Metrics, loss
from dagrl.data.columns import ColumnType
from dagrl.graph.contract import Read
from dagrl.nodes import entropy_bonus, kl_loss, ppo_clip

Tokens = Float32[Tensor, "B T"]


@loss()
def weighted(
    new_logprobs: Tokens, weights: Tokens, response_mask: Bool[Tensor, "B T"] | None = None, *, scale: float = 1.0
) -> tuple[Tokens, Metrics]:
    """A toy loss."""
    return -new_logprobs * weights * scale, Metrics()


def only(terms: LossTerms):
    (term,) = terms.terms
    return term


def test_contract_splits_engine_outputs_columns_and_options() -> None:
    contract = weighted.contract
    assert contract.engine_outputs == ("new_logprobs",)
    assert contract.reads == (
        Read("weights", ColumnType("f32", ("B", "T"))),
        Read("response_mask", ColumnType("bool", ("B", "T")), optional=True),
    )
    assert [option.name for option in contract.options] == ["scale"]


def test_called_with_options_it_binds() -> None:
    term = only(weighted(scale=2.0))
    assert term.option_values() == {"scale": 2.0}
    assert term.coefficient == 1.0
    assert only(weighted()).option_values() == {"scale": 1.0}


def test_called_with_tensors_it_runs() -> None:
    ones = torch.ones(2, 3)
    for losses, _ in (weighted(ones, ones * 2, scale=0.5), weighted(new_logprobs=ones, weights=ones * 2, scale=0.5)):
        assert torch.equal(losses, -ones)


def test_arithmetic() -> None:
    terms = ppo_clip(eps=0.1) + 0.5 * kl_loss() - entropy_bonus() * 2
    assert [term.coefficient for term in terms.terms] == [1.0, 0.5, -2.0]
    assert [term.contract.name for term in terms.terms] == ["ppo_clip", "kl_loss", "entropy_bonus"]
    assert [term.coefficient for term in (-terms).terms] == [-1.0, -0.5, 2.0]
    assert [term.coefficient for term in (3 * (kl_loss() + 2 * kl_loss())).terms] == [3.0, 6.0]


@pytest.mark.parametrize("factor", [True, "0.1", None])
def test_only_a_number_multiplies(factor: object) -> None:
    with pytest.raises(TypeError, match="multiplied by a number"):
        factor * kl_loss()


@pytest.mark.parametrize("other", [1, None, kl_loss])
def test_only_losses_add_up(other: object) -> None:
    with pytest.raises(TypeError, match="a loss is added to a loss"):
        ppo_clip() + other
    with pytest.raises(TypeError, match="a loss is added to a loss"):
        ppo_clip() - other


def test_coefficient_zero_drops_columns_but_stays_visible() -> None:
    terms = ppo_clip() + 0 * kl_loss(kind="k3")
    assert [term.contract.name for term in terms.live] == ["ppo_clip"]
    assert [term.contract.name for term in terms.dropped] == ["kl_loss"]
    assert "ref_logprobs" not in {read.name for read in terms.reads()}
    assert "ref_logprobs" in {read.name for read in (ppo_clip() + 0.1 * kl_loss()).reads()}
    assert "0 * kl_loss" in str(terms)


def test_reads_come_once_and_are_required_where_any_term_requires_them() -> None:
    for terms in (weighted() + ppo_clip(), ppo_clip() + weighted()):
        names = [read.name for read in terms.reads()]
        assert len(names) == len(set(names))
        assert not next(read for read in terms.reads() if read.name == "response_mask").optional
    assert next(read for read in weighted().reads() if read.name == "response_mask").optional


def test_text() -> None:
    terms = ppo_clip(eps=0.2) + 0.001 * kl_loss(kind="k3") - 0.01 * entropy_bonus()
    assert str(terms) == "ppo_clip(eps=0.2) + 0.001 * kl_loss(kind='k3') - 0.01 * entropy_bonus()"
    assert repr(ppo_clip) == "<loss ppo_clip>"


def test_wrong_options_are_collected_with_their_line() -> None:
    term = only(ppo_clip(epz=0.1, eps="big"))
    unknown, ill_typed = term.problems
    assert unknown.what == "`ppo_clip` has no option `epz`."
    assert unknown.fix == "did you mean `eps`?"
    assert "`eps='big'`" in ill_typed.what
    assert unknown.at is not None
    assert unknown.at.file == __file__
    assert unknown.at.line == term.at.line


def test_a_loss_pickles_as_its_module_name() -> None:
    assert pickle.loads(pickle.dumps(ppo_clip)) is ppo_clip
    assert str(pickle.loads(pickle.dumps(0.5 * ppo_clip(eps=0.3)))) == "0.5 * ppo_clip(eps=0.3)"
