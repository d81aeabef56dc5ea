"""Every policy loss against its scalar reference: values, derivatives, clipped tokens, poison, weights, fp32."""

import math

import pytest
import reference_losses as reference
import torch

from dagrl import nodes

NAN, INF = math.nan, math.inf
ROWS, WIDTH = 6, 7
COLUMNS = ("old_logprobs", "rollout_logprobs", "advantages", "rollout_weights")
#: Options, and the columns beside the advantages that the loss reads.
CASES = [
    ("ppo_clip", {}),
    ("ppo_clip", {"eps": 0.1, "eps_high": 0.3, "dual_clip": 1.4}),
    ("decoupled_ppo", {}),
    ("decoupled_ppo", {"eps_high": 0.28, "dual_clip": 2.0, "weight_cap": 1.2}),
    ("decoupled_ppo", {"weight_cap": 1.1, "over_cap": "drop"}),
    ("decoupled_ppo", {"weight_cap": None}),
    ("gspo", {}),
    ("gspo", {"eps": 0.1, "eps_high": 0.2}),
    ("gmpo", {}),
    ("gmpo", {"eps": 0.2, "eps_high": 0.3}),
    ("reinforce", {}),
    ("cispo", {}),
    ("cispo", {"eps": 0.2, "eps_high": 0.28}),
    ("topr", {}),
    ("topr", {"length_normalized": True}),
    ("sapo", {}),
    ("sapo", {"tau_positive": 0.5, "tau_negative": 3.0}),
    ("dppo_tv", {}),
    ("dppo_tv", {"delta": 0.01, "delta_high": 0.03, "ratio_cap": 1.2}),
    ("dppo_kl", {}),
    ("dppo_kl", {"delta": 0.001, "delta_high": 0.01, "ratio_cap": 1.2}),
    ("dro", {}),
    ("dro", {"beta": 2.0}),
]
each_case = pytest.mark.parametrize(
    ("name", "options"), CASES, ids=[" ".join([name, *map(str, options.values())]) for name, options in CASES]
)


def random_batch(seed, dtype=torch.float64):
    """Rows of random length with holes, the first without a trained token; advantages that differ within a row."""
    draw = torch.Generator().manual_seed(seed)

    def normal(scale=1.0):
        return scale * torch.randn(ROWS, WIDTH, generator=draw, dtype=torch.float64)

    mask = torch.rand(ROWS, WIDTH, generator=draw) < 0.7
    mask[0] = False
    old = -normal().abs() - 0.1
    advantages = normal()
    advantages[:, 2] = 0.0
    advantages[1] = 1.0
    batch = {
        "new_logprobs": (old + normal(0.4)).clamp(max=-0.01),
        "old_logprobs": old,
        "rollout_logprobs": (old + normal(0.2)).clamp(max=-0.01),
        "advantages": advantages,
        "rollout_weights": normal(0.3).exp(),
    }
    return {name: column.to(dtype) for name, column in batch.items()}, mask, normal().to(dtype)


def reads(name):
    return {read.name for read in getattr(nodes, name).contract.reads} & set(COLUMNS)


def run(name, batch, mask, coefficients, options, *, weights=False):
    """Losses, the derivative of their weighted sum, and metrics."""
    loss = getattr(nodes, name)
    new = batch["new_logprobs"].clone().requires_grad_()
    columns = {column: batch[column] for column in reads(name) if weights or column != "rollout_weights"}
    losses, metrics = loss.function(new, response_mask=mask, **columns, **options)
    (losses.masked_fill(~mask, 0.0) * coefficients).sum().backward()
    return losses.detach(), new.grad, metrics.numbers()


def expected(name, batch, mask, coefficients, options, *, weights=False):
    """The same from the reference: at trained tokens in order, and the share of clipped ones."""
    loss = getattr(reference, name)
    losses, slopes, clipped = [], [], []
    for row, keep in enumerate(mask):
        values = {column: batch[column][row][keep].double().tolist() for column in batch}
        factors = values["rollout_weights"] if weights and "rollout_weights" in reads(name) else [1.0] * int(keep.sum())
        if not factors:
            continue
        new, old, rollout, advantages = (
            values[key] for key in ("new_logprobs", "old_logprobs", "rollout_logprobs", "advantages")
        )

        def weighed(at, fixed=(new, old, rollout, advantages), factors=factors):
            tokens, _ = loss(at, *fixed, **options)
            return [factor * token for factor, token in zip(factors, tokens, strict=True)]

        losses += weighed(new)
        slopes += reference.derivative(weighed, new, coefficients[row][keep].double().tolist())
        clipped += loss(new, new, old, rollout, advantages, **options)[1]
    return losses, slopes, sum(clipped) / len(clipped)


@each_case
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("weights", [False, True])
def test_values_and_derivatives(name, options, seed, weights):
    batch, mask, coefficients = random_batch(seed)
    losses, slopes, clipped = expected(name, batch, mask, coefficients, options, weights=weights)
    got, gradient, metrics = run(name, batch, mask, coefficients, options, weights=weights)
    assert got[mask].tolist() == pytest.approx(losses, abs=1e-9)
    assert gradient[mask].tolist() == pytest.approx(slopes, abs=1e-6)
    assert not gradient[~mask].any()
    assert metrics["actor/pg_loss"] == pytest.approx(math.fsum(losses) / len(losses), abs=1e-9)
    assert metrics.get("actor/clip_fraction", 0.0) == pytest.approx(clipped)


@each_case
def test_in_single_precision(name, options):
    batch, mask, coefficients = random_batch(7, torch.float32)
    losses, slopes, _ = expected(name, batch, mask, coefficients, options, weights=True)
    got, gradient, _ = run(name, batch, mask, coefficients, options, weights=True)
    assert got.dtype == torch.float32
    assert got[mask].tolist() == pytest.approx(losses, abs=1e-5)
    assert gradient[mask].tolist() == pytest.approx(slopes, abs=1e-5)


@each_case
@pytest.mark.parametrize("poison", [NAN, INF, -INF, -200.0])
def test_masked_poison_in_any_column_changes_nothing(name, options, poison):
    batch, mask, coefficients = random_batch(3)
    clean = run(name, batch, mask, coefficients, options, weights=True)
    for column in ("new_logprobs", *sorted(reads(name))):
        dirty = {**batch, column: batch[column].masked_fill(~mask, poison)}
        losses, gradient, metrics = run(name, dirty, mask, coefficients, options, weights=True)
        assert torch.equal(losses[mask], clean[0][mask])
        assert torch.equal(gradient, clean[1])
        assert metrics == clean[2]


@each_case
def test_nan_at_a_trained_token_is_never_hidden(name, options):
    batch, mask, coefficients = random_batch(4)
    batch["advantages"] = batch["advantages"].abs() + 0.1
    row, place = mask.nonzero()[0].tolist()
    for column in ("new_logprobs", *sorted(reads(name))):
        dirty = {**batch, column: batch[column].clone()}
        dirty[column][row, place] = NAN
        losses, _, metrics = run(name, dirty, mask, coefficients, options, weights=True)
        assert losses[row, place].isnan()
        assert math.isnan(metrics["actor/pg_loss"])


ON_POLICY = [case for case in CASES if case[0] not in ("sapo", "reinforce")]


@pytest.mark.parametrize(("name", "options"), ON_POLICY, ids=str)
def test_on_policy_the_ratio_is_exactly_one(name, options):
    """The first step: nothing is clipped, the KL is 0 and the gradient that of REINFORCE."""
    draw = torch.Generator().manual_seed(0)
    logprobs = -9 * torch.rand(4, 8, generator=draw)
    advantages = torch.tensor([[1.0], [-1.0], [0.5], [2.0]]).expand(4, 8)
    batch = dict.fromkeys(("new_logprobs", "old_logprobs", "rollout_logprobs"), logprobs)
    batch["advantages"] = advantages
    losses, gradient, metrics = run(name, batch, torch.ones(4, 8).bool(), torch.ones(4, 8), options)
    rowwise = name in ("gspo", "gmpo")
    assert torch.allclose(gradient, -advantages, atol=1e-6) if rowwise else torch.equal(gradient, -advantages)
    expected_losses = -advantages * logprobs if name in ("cispo", "topr", "dro") else -advantages
    assert torch.equal(losses, expected_losses)
    assert metrics["actor/old_kl"] == metrics.get("actor/clip_fraction", 0.0) == 0


def at(name, log_ratio, advantage, **options):
    """Loss and derivative of one token in single precision, and whether it counts as clipped."""
    batch = {"new_logprobs": torch.tensor([[log_ratio]]), "advantages": torch.tensor([[float(advantage)]])}
    batch |= {"old_logprobs": torch.zeros(1, 1), "rollout_logprobs": torch.zeros(1, 1)}
    losses, gradient, metrics = run(name, batch, torch.ones(1, 1).bool(), torch.ones(1, 1), options)
    return losses.item(), gradient.item(), metrics.get("actor/clip_fraction", 0.0)


@pytest.mark.parametrize(
    ("name", "advantage", "options", "loss", "slope"),
    [
        ("ppo_clip", 1, {}, -1.2, 0),
        ("ppo_clip", -1, {"dual_clip": 3.0}, 3, 0),
        ("decoupled_ppo", 1, {}, -1.2, 0),
        ("gspo", 1, {}, -1.0004, 0),
        ("gmpo", 1, {}, -math.exp(0.4), 0),
        ("cispo", 1, {}, -5 * 200.0, -5),
        ("topr", -1, {}, 200.0, 1),
        ("sapo", 1, {}, -4, 0),
        ("sapo", -1, {}, 4 / 1.05, 0),
        ("dro", 1, {}, -200 + 0.05 * 200**2, -1 + 0.1 * 200),
    ],
)
def test_a_ratio_that_overflows_leaves_the_gradient_finite(name, advantage, options, loss, slope):
    got = at(name, 200.0, advantage, **options)
    assert got[:2] == (pytest.approx(loss, rel=1e-5), pytest.approx(slope, rel=1e-5))


def test_dppo_masks_a_ratio_that_overflows():
    batch = {"new_logprobs": torch.tensor([[-0.1]]), "rollout_logprobs": torch.tensor([[-INF]])}
    batch["advantages"] = torch.ones(1, 1)
    for name in ("dppo_tv", "dppo_kl"):
        losses, gradient, metrics = run(name, batch, torch.ones(1, 1).bool(), torch.ones(1, 1), {})
        assert (losses.item(), gradient.item(), metrics["actor/clip_fraction"]) == (0, 0, 1)


def test_cispo_still_learns_from_a_clipped_token():
    assert at("cispo", math.log(8), 1) == (pytest.approx(-5 * math.log(8)), pytest.approx(-5), 1)
    assert at("cispo", math.log(0.1), 1) == (pytest.approx(-0.1 * math.log(0.1)), pytest.approx(-0.1), 0)
    assert at("cispo", math.log(0.1), 1, eps=0.2)[1:] == (pytest.approx(-0.8), 1)


def test_sapo_fades_out_on_both_sides_of_one():
    assert at("sapo", 0.0, 1)[:2] == (pytest.approx(-2), pytest.approx(-1))
    assert at("sapo", 0.0, -1)[:2] == (pytest.approx(2 / 1.05), pytest.approx(1))
    assert abs(at("sapo", 2.0, 1)[1]) < 0.1 > abs(at("sapo", -5.0, 1)[1])
    assert abs(at("sapo", 1.0, -1)[1]) < abs(at("sapo", 1.0, 1)[1])


def test_topr_tapers_negative_rows_only():
    for log_ratio, weight in ((-1.0, math.exp(-1)), (2.0, 1.0)):
        assert at("topr", log_ratio, -1)[1] == pytest.approx(weight)
        assert at("topr", log_ratio, 1)[1] == -1


def test_topr_takes_the_ratio_of_the_whole_response():
    batch = {"new_logprobs": torch.tensor([[-1.0, -1.5]]), "old_logprobs": torch.tensor([[-0.5, -1.0]])}
    batch["advantages"] = -torch.ones(1, 2)
    mask, ones = torch.ones(1, 2).bool(), torch.ones(1, 2)
    _, gradient, metrics = run("topr", batch, mask, ones, {})
    assert gradient.tolist() == [pytest.approx([math.exp(-1)] * 2)]
    assert metrics["actor/taper"] == pytest.approx(math.exp(-1))
    _, gradient, _ = run("topr", batch, mask, ones, {"length_normalized": True})
    assert gradient.tolist() == [pytest.approx([math.exp(-0.5)] * 2)]


def test_dro_rests_where_the_log_prob_has_moved_by_advantage_over_beta():
    assert at("dro", 0.5, 1, beta=2.0)[1] == pytest.approx(0)


def test_decoupled_ppo_with_one_policy_behind_the_responses_is_ppo():
    batch, mask, coefficients = random_batch(5)
    batch["rollout_logprobs"] = batch["old_logprobs"]
    decoupled, ppo = (run(name, batch, mask, coefficients, {}) for name in ("decoupled_ppo", "ppo_clip"))
    assert torch.equal(decoupled[0], ppo[0])
    assert torch.equal(decoupled[1], ppo[1])
    assert decoupled[2] == {**ppo[2], "actor/behaviour_weight": 1.0}


@pytest.mark.parametrize("name", ["ppo_clip", "gspo", "gmpo", "reinforce", "cispo", "topr", "sapo", "dro"])
def test_weights_of_one_are_none(name):
    batch, mask, coefficients = random_batch(6)
    batch["rollout_weights"] = torch.ones_like(batch["rollout_weights"])
    with_weights, without = (run(name, batch, mask, coefficients, {}, weights=given) for given in (True, False))
    assert torch.equal(with_weights[0], without[0])
    assert torch.equal(with_weights[1], without[1])
    assert with_weights[2] == without[2]
