"""What the compiler says against KL terms, losses and rollout corrections that make no sense together."""

from collections.abc import Callable, Mapping
from functools import cached_property
from math import inf
from typing import Any

import pytest
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl import LossTerms, Metrics, Pipeline, ResourcePool, WorkerGroup, adamw, loss, node, nodes, policy
from dagrl.compiler import LOCAL, Plan, compile_pipelines
from dagrl.errors import CompileError
from dagrl.graph.pipeline import Edge


class Step:
    """The calls of an RL step, each made when it is first asked for: none is left over."""

    def __init__(self, **sampling: Any) -> None:
        pool = ResourcePool("main")
        self.actor = WorkerGroup("actor", policy("zoo:tiny", optimizer=adamw(lr=1e-3)), pool=pool)
        self.ref = WorkerGroup("ref", policy("zoo:tiny"), pool=pool)
        batch = nodes.prompts(data="zoo:larger", batch_size=2, n=2)
        self.rollout = nodes.generate(self.actor, batch, max_new_tokens=4, **sampling)
        self.reward = nodes.verify(batch, self.rollout)

    @cached_property
    def old(self) -> Edge:
        return nodes.old_logprob(self.actor, self.rollout)

    @cached_property
    def reference(self) -> Edge:
        return nodes.ref_logprob(self.ref, self.rollout)

    @cached_property
    def teacher(self) -> Edge:
        return nodes.teacher_topk(self.ref, self.rollout)

    @cached_property
    def correction(self) -> Edge:
        return nodes.rollout_correction(self.rollout, self.old)

    @cached_property
    def advantage(self) -> Edge:
        return nodes.grpo_advantage(self.rollout, self.reward)

    def paid_advantage(self, penalty: Edge) -> Edge:
        return nodes.grpo_advantage(self.rollout, penalty.rename(penalized_rewards="rewards"))

    def update(self, *edges: Edge, loss: LossTerms) -> None:
        nodes.update_policy(self.actor, self.rollout, *edges, loss=loss)


def compiled(rest: Callable[[Step], None], **sampling: Any) -> Plan:
    """The plan of a step that ``rest`` ends."""
    with Pipeline("step", steps=1) as step:
        rest(Step(**sampling))
    return compile_pipelines([step], LOCAL)[0]


def problems(rest: Callable[[Step], None], **options: Any) -> list[tuple[str, str | None]]:
    with pytest.raises(CompileError) as error:
        compiled(rest, **options)
    return [(problem.what, problem.fix) for problem in error.value.problems]


def with_kl_in_reward(loss: LossTerms, penalty: Callable[..., Edge], **options: Any) -> Callable[[Step], None]:
    def rest(step: Step) -> None:
        paid = penalty(step.rollout, step.reward, step.old, step.reference, **options)
        step.update(step.old, step.paid_advantage(paid), step.reference, loss=loss)

    return rest


@node(writes="rewards")
def own_penalty(rewards: Float32[Tensor, " B"], ref_logprobs: Float32[Tensor, "B T"]) -> Float32[Tensor, " B"]:
    """A reward of one's own that reads the reference."""
    return rewards - ref_logprobs.sum(dim=1)


def own(step: Step) -> None:
    advantage = nodes.grpo_advantage(step.rollout, own_penalty(step.reward, step.reference))
    step.update(step.old, advantage, step.reference, loss=nodes.ppo_clip() + 0.1 * nodes.kl_loss())


FINITE = "it must be above 0, and finite"
LOG_CLIP = "it bounds log ratios, so it must be above 0 (the paper's is 0.4)"
PENALTIES: Mapping[str, tuple[Callable[..., Edge], dict[str, Any]]] = {
    "kl_penalty": (nodes.kl_penalty, {"beta": 0.1}),
    "adaptive_kl_penalty": (nodes.adaptive_kl_penalty, {"target": 1.0, "state": nodes.KlCoefficient(0.1)}),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_kl_in_the_reward_and_in_the_loss_must_be_said(name: str) -> None:
    penalty, options = PENALTIES[name]
    ppo = nodes.ppo_clip()
    ((what, fix),) = problems(with_kl_in_reward(ppo + 0.1 * nodes.kl_loss(), penalty, **options))
    assert what == f"loss `kl_loss`: the KL to the reference is in the reward already, by `{name}`."
    assert fix == "drop one of them, or say `also_in_reward=True`"
    for terms in (ppo + 0.1 * nodes.kl_loss(also_in_reward=True), ppo + 0.0 * nodes.kl_loss(), ppo):
        compiled(with_kl_in_reward(terms, penalty, **options))


def test_a_penalty_of_ones_own_is_seen_too() -> None:
    assert any("in the reward already, by `own_penalty`" in what for what, _ in problems(own))


@pytest.mark.parametrize(
    ("loss", "named", "mend"),
    [
        (nodes.ppo_clip(eps=1.0), "`eps` is 1.0", "the clip range must lie between 0 and 1"),
        (nodes.ppo_clip(eps_high=-0.1), "`eps_high` is -0.1", "it must be above 0, or None for `eps`"),
        (nodes.ppo_clip(eps_high=inf), "`eps_high` is inf", "it must be above 0, or None for `eps`"),
        (nodes.ppo_clip(dual_clip=1.0), "`dual_clip` is 1.0", "it must be above 1"),
        (nodes.decoupled_ppo(eps=0.0), "`eps` is 0.0", "the clip range must lie between 0 and 1"),
        (nodes.decoupled_ppo(eps_high=0.0), "`eps_high` is 0.0", "it must be above 0, or None for `eps`"),
        (nodes.decoupled_ppo(dual_clip=0.5), "`dual_clip` is 0.5", "it must be above 1"),
        (nodes.decoupled_ppo(weight_cap=0.0), "`weight_cap` is 0.0", FINITE),
        (nodes.gmpo(eps=0.0), "`eps` is 0.0", LOG_CLIP),
        (nodes.gmpo(eps_high=inf), "`eps_high` is inf", LOG_CLIP),
        (nodes.cispo(eps=1.5), "`eps` is 1.5", "it must lie above 0, at most 1, or be None for no lower bound"),
        (nodes.cispo(eps_high=-1.0), "`eps_high` is -1.0", "it must be above 0: weights are clipped at 1 + eps_high"),
        (nodes.sapo(tau_positive=0.0), "`tau_positive` is 0.0", FINITE),
        (nodes.sapo(tau_negative=0.0), "`tau_negative` is 0.0", FINITE),
        (nodes.dppo_tv(delta=-0.1), "`delta` is -0.1", FINITE),
        (nodes.dppo_tv(delta_high=0.0), "`delta_high` is 0.0", FINITE),
        (nodes.dppo_kl(delta_high=-0.1), "`delta_high` is -0.1", FINITE),
        (nodes.dppo_kl(ratio_cap=0.0), "`ratio_cap` is 0.0", FINITE),
        (nodes.dro(beta=0.0), "`beta` is 0.0", "it must be above 0; without a pull use `reinforce`"),
    ],
    ids=str,
)
def test_options_that_make_no_sense(loss: LossTerms, named: str, mend: str) -> None:
    (term,) = loss.terms
    found = problems(lambda step: step.update(step.old, step.advantage, loss=loss))
    assert found == [(f"loss `{term.contract.name}`: {named}.", mend)]


@pytest.mark.parametrize("above", [0.0, -1.0, inf])
def test_a_drift_that_keeps_no_row_or_every_one_is_refused(above: float) -> None:
    def rest(step: Step) -> None:
        kept = nodes.low_drift(step.rollout, step.old, above=above)
        step.update(step.old, step.advantage, kept, loss=nodes.ppo_clip())

    assert problems(rest) == [(f"`low_drift`: `above` is {above}.", "give the largest drift in nats, above 0")]


@pytest.mark.parametrize("group", ["actor", "other"])
def test_a_reference_that_trains_is_refused(group: str) -> None:
    """The policy itself, or another model that some update changes."""

    def rest(step: Step) -> None:
        other = WorkerGroup("other", policy("zoo:tiny", optimizer=adamw(lr=1e-3)), pool=step.actor.pool)
        reference = nodes.ref_logprob(step.actor if group == "actor" else other, step.rollout)
        step.update(step.old, step.advantage, reference, loss=nodes.ppo_clip() + 0.1 * nodes.kl_loss())

    what = f"`ref_logprob`: its reference is `{group}`, which trains: every KL to it would be 0."
    fix = "pass a worker group whose policy has no optimizer, or use `old_logprob`"
    assert (what, fix) in problems(rest)


def test_the_value_loss_refuses_a_negative_range() -> None:
    loss = nodes.ppo_clip() + nodes.value_clip(eps=-0.2)
    found = problems(lambda step: step.update(step.old, step.advantage, loss=loss))
    assert any("`eps` is -0.2" in what for what, _ in found)


@pytest.mark.parametrize("loss", [nodes.decoupled_ppo(), nodes.dppo_tv(), nodes.dppo_kl()], ids=str)
def test_weights_are_not_applied_twice(loss: LossTerms) -> None:
    def rest(step: Step) -> None:
        weights = nodes.rollout_correction(step.rollout, step.old)
        step.update(step.old, step.advantage, weights, loss=loss)

    assert any("`rollout_weights` would do so again" in what for what, _ in problems(rest))


@pytest.mark.parametrize(
    "loss", [nodes.ppo_clip(), nodes.gspo(), nodes.reinforce(), nodes.cispo(), nodes.topr(), nodes.sapo(), nodes.dro()]
)
def test_a_loss_reads_the_weights_that_an_edge_brings(loss: LossTerms) -> None:
    def rest(step: Step) -> None:
        weights = nodes.rollout_correction(step.rollout, step.old)
        step.update(step.old, step.advantage, weights, loss=loss)

    assert "rollout_correction" in {run.call for run in compiled(rest).runs}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"low": 2.0, "high": 1.0}, "`low=2.0` and `high=1.0`"),
        ({"low": -0.1}, "`low=-0.1`"),
        ({"high": 0.0}, "`high=0.0`"),
        ({"level": "none"}, "`level='none'` without `reject_by`"),
        ({"reject_by": "k1"}, "`reject_by` goes with a limit"),
        ({"reject_above": 0.1}, "`reject_by` goes with a limit"),
        ({"low": 2.0, "high": 2.0, "outside": "mask"}, "`low=2.0` and `high=2.0` masks tokens on which"),
        ({"low": 1.5, "high": None, "outside": "mask"}, "`low=1.5` and `high=None` masks tokens on which"),
        ({"high": 0.5, "outside": "mask"}, "`high=0.5` masks tokens on which"),
        ({"reject_by": "k2", "reject_above": -1.0}, "`reject_above` is -1.0"),
        ({"reject_by": "abs", "reject_above": 0.0}, "`reject_above` is 0.0"),
        ({"reject_by": "k3", "reject_below": float("inf")}, "a limit of `reject_by` is inf"),
        ({"reject_by": "k1", "reject_above": float("-inf")}, "a limit of `reject_by` is -inf"),
        (
            {"reject_by": "k1", "reject_above": -1.0, "reject_below": 1.0},
            "`reject_above` is -1.0 and `reject_below` 1.0",
        ),
    ],
    ids=str,
)
def test_corrections_that_make_no_sense(options: dict[str, Any], named: str) -> None:
    def rest(step: Step) -> None:
        weights = nodes.rollout_correction(step.rollout, step.old, **options)
        step.update(step.old, step.advantage, weights, loss=nodes.ppo_clip())

    ((what, _),) = problems(rest)
    assert named in what


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("kl_penalty", {"beta": 0.0}, "`beta` is 0.0"),
        ("adaptive_kl_penalty", {"target": 0.0, "state": nodes.KlCoefficient(0.1)}, "`target` is 0.0"),
        ("adaptive_kl_penalty", {"target": 1.0, "horizon": 0, "state": nodes.KlCoefficient(0.1)}, "`horizon` is 0"),
        ("adaptive_kl_penalty", {"target": 1.0, "state": nodes.KlCoefficient(-0.1)}, "`state.beta` is -0.1"),
    ],
)
def test_penalties_that_make_no_sense(name: str, options: dict[str, Any], named: str) -> None:
    found = problems(with_kl_in_reward(nodes.ppo_clip(), getattr(nodes, name), **options))
    assert any(named in what for what, _ in found)


def test_greedy_responses_have_no_ratio_and_no_kl() -> None:
    def rest(step: Step) -> None:
        weights = nodes.rollout_correction(step.rollout, step.old)
        kept = nodes.low_drift(step.rollout, step.old, above=0.1)
        paid = nodes.kl_penalty(step.rollout, step.reward, step.old, step.reference, beta=0.1)
        step.update(step.old, step.paid_advantage(paid), weights, kept, loss=nodes.ppo_clip())

    owners = {what.split(":")[0] for what, _ in problems(rest, temperature=0.0) if "temperature=0" in what}
    assert {"`rollout_correction`", "`low_drift`", "`kl_penalty`", "`update_policy`"} <= owners


@pytest.mark.parametrize(("option", "value"), [("top_p", 0.9), ("top_k", 5)])
def test_rows_of_some_tokens_alone_need_a_correction(option: str, value: float) -> None:
    def plain(step: Step) -> None:
        step.update(step.old, step.advantage, loss=nodes.ppo_clip())

    def corrected(step: Step) -> None:
        weights = nodes.rollout_correction(step.rollout, step.old)
        step.update(step.old, step.advantage, weights, loss=nodes.ppo_clip())

    def weighed_by_the_loss(step: Step) -> None:
        step.update(step.old, step.advantage, loss=nodes.decoupled_ppo())

    ((what, fix),) = problems(plain, **{option: value})
    assert f"`generate` has {option}={value}: its rows come from another distribution" in what
    assert "`ppo_clip` in its loss does not make up for it" in what
    assert fix is not None
    assert "`rollout_correction`" in fix
    for rest in (corrected, weighed_by_the_loss):
        compiled(rest, **{option: value})


def test_what_the_refusal_of_a_distillation_asks_for_helps() -> None:
    def plain(step: Step) -> None:
        nodes.report(step.reward)
        step.update(step.old, step.teacher, loss=nodes.reverse_kl_distill())

    def corrected(step: Step) -> None:
        nodes.report(step.reward)
        step.update(step.old, step.teacher, step.correction, loss=nodes.reverse_kl_distill())

    ((what, fix),) = problems(plain, top_p=0.9)
    assert "`reverse_kl_distill` in its loss does not make up for it" in what
    assert fix == "pass a `rollout_correction` of the rows too, or sample with top_p=1 and top_k=0"
    compiled(plain)
    compiled(corrected, top_p=0.9)


@loss()
def own_ratio(
    new_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """A loss of one's own that knows of no rollout weights."""
    return -(new_logprobs - old_logprobs).exp() * advantages, Metrics()


SELF_WEIGHING = [nodes.decoupled_ppo(), nodes.dppo_tv(), nodes.dppo_kl()]


@pytest.mark.parametrize("other", SELF_WEIGHING, ids=str)
def test_a_term_that_weighs_itself_corrects_no_other(other: LossTerms) -> None:
    mixed = nodes.ppo_clip() + 0.1 * other

    def corrected(step: Step) -> None:
        step.update(step.old, step.advantage, step.correction, loss=mixed)

    ((what, fix),) = problems(lambda step: step.update(step.old, step.advantage, loss=mixed), top_p=0.9)
    assert "`generate` has top_p=0.9" in what
    assert "`ppo_clip` in its loss does not make up for it" in what
    assert fix == "pass a `rollout_correction` of the rows too, or sample with top_p=1 and top_k=0"
    assert "rollout_correction" in {run.call for run in compiled(corrected, top_p=0.9).runs}


def test_a_term_that_reads_no_weights_is_not_left_uncorrected() -> None:
    mixed = nodes.ppo_clip() + 0.1 * own_ratio()

    def corrected(step: Step) -> None:
        step.update(step.old, step.advantage, step.correction, loss=mixed)

    for sampling in ({}, {"top_p": 0.9}):
        ((what, fix),) = problems(corrected, **sampling)
        assert what == (
            "`update_policy`: `rollout_weights` arrive, but `own_ratio` in its loss learns from samples without them."
        )
        assert fix is not None
        assert "take a loss that reads `rollout_weights`" in fix
    found = problems(lambda step: step.update(step.old, step.advantage, loss=mixed), top_k=5)
    for (what, _), name in zip(found, ("ppo_clip", "own_ratio"), strict=True):
        assert f"`{name}` in its loss does not make up for it" in what
    assert ["`rollout_correction`" in (fix or "") for _, fix in found] == [True, False]


def test_terms_that_learn_from_no_ratio_go_with_weights() -> None:
    mixed = nodes.ppo_clip() + 0.1 * nodes.kl_loss() - 0.01 * nodes.entropy_bonus() + 0.0 * own_ratio()
    compiled(lambda step: step.update(step.old, step.advantage, step.correction, step.reference, loss=mixed), top_p=0.9)


@pytest.mark.parametrize(("option", "value"), [("top_p", 0.0), ("top_p", 1.1), ("top_k", -1)])
def test_shares_and_numbers_of_tokens_that_make_no_sense(option: str, value: float) -> None:
    def rest(step: Step) -> None:
        step.update(step.old, step.advantage, loss=nodes.decoupled_ppo())

    assert any(f"`{option}` is {value}" in what for what, _ in problems(rest, **{option: value}))


def test_weights_that_no_loss_reads_are_refused() -> None:
    def rest(step: Step) -> None:
        weights = nodes.rollout_correction(step.rollout, step.old)
        step.update(step.old, step.advantage, weights, loss=nodes.sft_loss())

    assert any("`rollout_weights` arrive, but no term of its loss reads them" in what for what, _ in problems(rest))


@pytest.mark.parametrize("loss", [nodes.clip_cov(), nodes.kl_cov()], ids=str)
def test_losses_that_prepare_take_weights(loss: LossTerms) -> None:
    def rest(step: Step) -> None:
        step.update(step.old, step.advantage, nodes.rollout_correction(step.rollout, step.old), loss=loss)

    (update,) = [op for op in compiled(rest, top_p=0.9).runs if op.node == "update_policy"]
    assert "rollout_weights" in {read.column for read in update.reads}


def test_a_loss_that_learns_from_no_sample_takes_any_rows() -> None:
    with Pipeline("step", steps=1) as plain:
        step = Step(top_p=0.9)
        nodes.report(step.reward)
        step.update(loss=nodes.sft_loss())
    assert compile_pipelines([plain], LOCAL)
