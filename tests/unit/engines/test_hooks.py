"""The engine's part of `prepare=` and `project=`: what functions see, and what no layout of the rows changes."""

from collections.abc import Iterator
from dataclasses import replace
from math import exp, fsum
from typing import NamedTuple

import pytest
import reference_hooks as reference
import torch
from hook_rows import LOSSES, HookCase, HookOutcome, draw, hook_plan, laid_out, own_rows, train_hooked, weighed_loss
from jaxtyping import Bool, Float32
from recorded_rows import MODELS, NUM_ROWS, VOCABULARY
from torch import Tensor

from dagrl import LossColumns, Metrics, adamw, loss
from dagrl.engines import scoring
from dagrl.engines.projection import SumPiSquared
from dagrl.engines.scoring import Scorer
from dagrl.engines.training import Trainer
from dagrl.errors import NodeError
from dagrl.graph.roles import UpdatePlan
from dagrl.ops.random import key_of, uniforms

SHUFFLED = (4, 2, 6, 0, 5, 1, 3)
Tokens = Float32[Tensor, "B T"]
Mask = Bool[Tensor, "B T"]


def assert_same(found: HookOutcome, expected: HookOutcome) -> None:
    assert found.metrics.keys() == expected.metrics.keys()
    for name, value in expected.metrics.numbers().items():
        assert found.metrics.numbers()[name] == pytest.approx(value, rel=1e-6, abs=1e-6), name
    assert found.gradient.keys() == expected.gradient.keys()
    for name, grad in expected.gradient.items():
        assert (found.gradient[name] - grad).abs().max() <= 1e-6 * max(1.0, float(grad.abs().max())), name


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(
    "changes",
    [
        {"micro_batch_size": 1},
        {"micro_batch_size": 2},
        {"micro_batch_size": 3, "order": SHUFFLED},
        {"extra": (3, 2)},
        {"extra": (1, 3), "order": SHUFFLED, "poison": float("nan")},
        {"poison": float("inf"), "micro_batch_size": 4},
        {"poison": float("-inf"), "padded": True},
        {"max_logits": 2 * VOCABULARY},
        {"max_logits": VOCABULARY, "micro_batch_size": 3, "order": SHUFFLED},
    ],
    ids=lambda changes: " ".join(f"{name}={value}" for name, value in changes.items()),
)
def test_layout_changes_no_number(name: str, changes: dict) -> None:
    """Micro-batches, row order, wider padding, poison at masked places, rows that pad, chunks of logits."""
    case = HookCase(name)
    assert_same(train_hooked(replace(case, **changes)), train_hooked(case))


@pytest.mark.parametrize("mode", ["token-sum", "seq-mean-token-mean"])
def test_every_aggregation_takes_them(mode: str) -> None:
    case = HookCase("all", mode=mode)
    assert_same(train_hooked(replace(case, micro_batch_size=2, order=SHUFFLED)), train_hooked(case))


def tokens_of(case: HookCase) -> Iterator[tuple[int, int, Tensor]]:
    """Row, place and logits at the row's temperature of every trained token, each row alone and unpadded."""
    tokens, _, _ = laid_out(case)
    model = MODELS[case.model]().eval()
    width = tokens.response_mask.shape[1]
    for row in range(NUM_ROWS):
        kept = tokens.attention_mask[row]
        logits = model(input_ids=tokens.input_ids[row][kept][None]).logits[0].detach() / tokens.temperatures[row]
        prompt = int(kept[:-width].sum())
        for place in range(width):
            if tokens.response_mask[row, place]:
                yield row, place, logits[prompt + place - 1]


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
@pytest.mark.parametrize("micro_batch_size", [0, 2])
def test_selection_and_loss_are_those_of_a_plain_reference(name: str, micro_batch_size: int) -> None:
    case = HookCase(name, micro_batch_size=micro_batch_size)
    tokens, columns, seeds = laid_out(case)
    mask, width = tokens.response_mask, tokens.response_mask.shape[1]
    logprobs = [[0.0] * width for _ in range(NUM_ROWS)]
    for row, place, logits in tokens_of(case):
        target = int(tokens.input_ids[row, -width:][place])
        logprobs[row][place] = reference.log_softmax(logits.tolist())[target]
    uniform = uniforms(key_of("token_uniform", 0), seeds, width).tolist()
    old, advantages = columns["old_logprobs"].tolist(), columns["advantages"].tolist()
    if name == "clip_cov":
        chosen = reference.clip_cov_selected(
            logprobs, old, advantages, mask.tolist(), uniform, eps=0.2, eps_high=0.2, share=0.25, low=-0.4, high=0.6
        )
    else:
        chosen = reference.kl_cov_selected(logprobs, advantages, mask.tolist(), uniform, share=0.2)
    total = 0.0
    for row, place in reference.trained(mask.tolist()):
        given = (logprobs[row][place], old[row][place], advantages[row][place])
        selected = (row, place) in chosen
        if name == "clip_cov":
            total += reference.clip_cov(*given, selected=selected, eps=0.2, eps_high=0.2)[0]
        else:
            total += reference.kl_cov(*given, selected=selected, coef=0.7)[0]
    metrics = train_hooked(case).metrics.numbers()
    assert chosen
    assert metrics["actor/cov_selected"] == pytest.approx(len(chosen) / int(mask.sum()))
    assert metrics["actor/loss"] == pytest.approx(total / int(mask.sum()), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("name", "kind", "tail"), [
    ("topk forward", "forward", "bucket"),
    ("topk reverse", "reverse", "bucket"),
    ("topk renormalized", "forward", "renormalize"),
    ("topk dropped", "forward", "drop"),
])  # fmt: skip
@pytest.mark.parametrize("max_logits", [None, 2 * VOCABULARY])
def test_a_projection_is_that_of_logits_at_the_rows_temperature(
    name: str, kind: str, tail: str, max_logits: int | None
) -> None:
    case = HookCase(name, max_logits=max_logits)
    _, columns, _ = laid_out(case)
    found = [
        reference.topk_kl(
            logits.tolist(), columns["teacher_topk_ids"][row, place].tolist(),
            columns["teacher_topk_logprobs"][row, place].tolist(), kind, tail,
        )
        for row, place, logits in tokens_of(case)
    ]  # fmt: skip
    metrics = train_hooked(case).metrics.numbers()
    assert metrics["actor/loss"] == pytest.approx(sum(found) / len(found), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("aliased", [False, True])
@pytest.mark.parametrize("micro_batch_size", [0, 2])
def test_a_projection_reads_row_columns_and_aliases(aliased: bool, micro_batch_size: int) -> None:
    case = HookCase("drawn", micro_batch_size=micro_batch_size)
    tokens, columns, seeds = laid_out(case)
    width, total, count = tokens.response_mask.shape[1], 0.0, 0
    for row, place, logits in tokens_of(case):
        old = float(columns["old_logprobs"][row, place])
        if aliased:
            old = float(logits.log_softmax(-1)[int(tokens.input_ids[row, -width:][place])])
        raw = logits * tokens.temperatures[row]
        total += float(raw.square().mean() * columns["weights"][row]) + old * float(logits[3])
        count += 1
    if aliased:
        del columns["old_logprobs"]
    columns["weights"] = columns["weights"][:, None].expand(tokens.response_mask.shape)
    plan = replace(
        hook_plan(case), loss=weighed_loss(), aliases={"old_logprobs": "new_logprobs"} if aliased else {}
    )  # fmt: skip
    metrics = update(plan, tokens, columns, seeds)
    assert metrics["weighed"] == pytest.approx(total / count, rel=1e-5)


def update(plan: UpdatePlan, tokens, columns, seeds, *, dropout: bool = False, model: str = "tied") -> dict:
    scorer = Scorer(MODELS[model](), precision="fp32", micro_batch_tokens=10**6)
    trainer = Trainer(scorer, adamw(lr=1e-3, max_grad_norm=None), total_steps=10, dropout=dropout)
    return trainer.update(tokens, LossColumns(columns), seeds, plan, None).numbers()


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({"loss": "clip_cov"}, (0, 1)),
        ({"loss": "clip_cov", "epochs": 3}, (0, 3)),
        ({"loss": "clip_cov", "micro_batch_size": 4}, (2, 2)),
        ({"loss": "clip_cov", "mini_batch_size": 4, "micro_batch_size": 4}, (0, 2)),
        ({"loss": "drawn", "micro_batch_size": 4}, (0, 2)),
        ({"loss": "all", "micro_batch_size": 4, "epochs": 2}, (4, 4)),
        ({"loss": "topk forward", "micro_batch_size": 4}, (0, 2)),
    ],
)
def test_a_forward_pass_is_spared_where_it_can_be(changes: dict, passes: tuple[int, int]) -> None:
    assert train_hooked(HookCase(**changes)).passes == passes


class Seen(NamedTuple):
    passed_on: Tokens


CALLS: list[dict[str, Tensor]] = []


def look(new_logprobs: Tokens, old_logprobs: Tokens, weights: Float32[Tensor, " B"], response_mask: Mask,
         token_uniform: Tokens, extra: Tokens | None = None, *, scale: float) -> Seen:  # fmt: skip
    """Keeps what it was given."""
    CALLS.append(
        {
            "new_logprobs": new_logprobs, "old_logprobs": old_logprobs, "weights": weights,
            "response_mask": response_mask, "token_uniform": token_uniform, "scale": torch.tensor(scale),
        }
    )  # fmt: skip
    assert extra is None
    assert not torch.is_grad_enabled()
    return Seen(new_logprobs * scale)


@loss(prepare=look)
def looking(
    new_logprobs: Tokens, old_logprobs: Tokens, passed_on: Tokens, response_mask: Mask, *, scale: float = 2.0
) -> tuple[Tokens, Metrics]:
    """Fails where what was prepared is not at its own token."""
    assert torch.allclose(passed_on, new_logprobs.detach() * scale, atol=1e-6) or not response_mask.any()
    return new_logprobs, Metrics()


def look_at(case: HookCase, dropout: bool = False, **changes) -> list[dict[str, Tensor]]:
    CALLS.clear()
    tokens, columns, seeds = own_rows(case, 0, 1)
    plan = replace(hook_plan(case), loss=looking(scale=3.0), **changes)
    update(plan, tokens, columns, seeds, dropout=dropout, model=case.model)
    return list(CALLS)


@pytest.mark.parametrize("micro_batch_size", [0, 2])
def test_a_function_sees_each_row_once_in_the_order_of_the_seeds(micro_batch_size: int) -> None:
    case = HookCase("drawn", micro_batch_size=micro_batch_size)
    _, columns, seeds = laid_out(case)
    (seen,) = look_at(case)
    assert torch.equal(seen["weights"], columns["weights"][seeds.argsort()])
    assert torch.equal(seen["response_mask"], columns["response_mask"][seeds.argsort()])
    assert float(seen["scale"]) == 3.0
    assert not seen["new_logprobs"].requires_grad
    assert not seen["new_logprobs"][~seen["response_mask"]].any()
    for changes in ({"order": SHUFFLED}, {"padded": True}, {"order": SHUFFLED, "poison": float("nan")}):
        (again,) = look_at(replace(case, **changes))
        for name, values in seen.items():
            assert torch.allclose(again[name], values, atol=1e-6), (changes, name)


def test_draws_differ_from_step_to_step_and_come_again() -> None:
    case = HookCase("drawn", epochs=2, mini_batch_size=4)
    first, again = look_at(case), look_at(case)
    drawn = [seen["token_uniform"] for seen in first]
    assert len(drawn) == 4
    assert all(torch.equal(one, other["token_uniform"]) for one, other in zip(drawn, again, strict=True))
    values = torch.cat([one.flatten() for one in drawn])
    assert len(values.unique()) == len(values)
    shuffled = look_at(replace(case, order=SHUFFLED, extra=(0, 2)))
    for one, other in zip(first, shuffled, strict=True):
        assert torch.equal(other["token_uniform"][:, : one["token_uniform"].shape[1]], one["token_uniform"])


@pytest.mark.parametrize("micro_batch_size", [0, 2])
def test_an_aliased_column_is_the_policys_own_log_probs(micro_batch_size: int) -> None:
    case = HookCase("drawn", micro_batch_size=micro_batch_size)
    (seen,) = look_at(case, aliases={"old_logprobs": "new_logprobs"})
    assert torch.equal(seen["old_logprobs"], seen["new_logprobs"])
    assert seen["new_logprobs"].any()


def test_dropout_is_not_in_what_a_function_sees() -> None:
    """So the pass of the update, which has it, is not the one."""
    case = HookCase("drawn", model="gpt2")
    (without,) = look_at(case)
    with pytest.raises(AssertionError):  # the loss sees log-probs with dropout
        look_at(case, dropout=True)
    (with_dropout,) = CALLS
    assert torch.allclose(with_dropout["new_logprobs"], without["new_logprobs"], atol=1e-6)


def returns(kind: str):
    def odd(response_mask: Mask) -> Seen:
        return {
            "none": None,
            "list": Seen([0.0]),
            "width": Seen(response_mask[:, 1:].float()),
            "rows": Seen(response_mask[1:].float()),
            "dtype": Seen(response_mask.double()),
            "dims": Seen(response_mask.float()[..., None]),
        }[kind]

    @loss(prepare=odd)
    def of_odd(new_logprobs: Tokens, passed_on: Tokens) -> tuple[Tokens, Metrics]:
        return new_logprobs * passed_on, Metrics()

    return of_odd()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("none", "prepare `odd` of loss `of_odd` returned a NoneType, its annotation says Seen"),
        ("list", "returned a list for `passed_on`, declared f32"),
        ("width", r"returned float32\[7, 4\] for `passed_on`, declared f32\[B T\] of 7 rows"),
        ("rows", r"returned float32\[6, 5\] for `passed_on`"),
        ("dtype", r"returned float64\[7, 5\] for `passed_on`"),
        ("dims", r"returned float32\[7, 5, 1\] for `passed_on`"),
    ],
)
def test_a_prepare_function_that_returns_something_else_is_named(kind: str, said: str) -> None:
    case = HookCase("drawn")
    with pytest.raises(NodeError, match=said):
        update(replace(hook_plan(case), loss=returns(kind)), *laid_out(case))


def projecting(kind: str):
    def odd(new_logits: Float32[Tensor, "N V"]) -> Float32[Tensor, " N"]:
        return {"none": None, "dims": new_logits, "dtype": new_logits[:, 0].double(), "one": new_logits.sum()}[kind]

    @loss(project=odd)
    def of_odd(odd: Tokens) -> tuple[Tokens, Metrics]:
        return odd, Metrics()

    return of_odd()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("none", "project `odd` of loss `of_odd` returned a NoneType, its annotation says f32"),
        ("dims", r"returned float32\[\d+, 23\]: one float32 for each of \d+ tokens is declared"),
        ("dtype", r"returned float64\[\d+\]"),
        ("one", r"returned float32\[\]"),
    ],
)
def test_a_projection_that_returns_something_else_is_named(kind: str, said: str) -> None:
    case = HookCase("drawn")
    with pytest.raises(NodeError, match=said):
        update(replace(hook_plan(case), loss=projecting(kind)), *laid_out(case))


def test_two_losses_that_prepare_the_same_name_keep_theirs() -> None:
    case = HookCase("drawn")

    class Other(NamedTuple):
        drawn: Tokens

    def other_draw(token_uniform: Tokens) -> Other:
        return Other(token_uniform + 1)

    @loss(prepare=other_draw)
    def other(new_logprobs: Tokens, drawn: Tokens) -> tuple[Tokens, Metrics]:
        assert bool((drawn >= 1).logical_or(drawn == 0).all())
        return new_logprobs * drawn, Metrics()

    metrics = update(replace(hook_plan(case), loss=LOSSES["drawn"] + other()), *laid_out(case))
    assert metrics["drawn"] < 1
    assert draw.__name__ == "draw"


def test_top_k_of_the_scorer_is_that_of_the_whole_distribution() -> None:
    case = HookCase("drawn")
    tokens, _, _ = laid_out(case)
    scorer = Scorer(MODELS["tied"](), precision="fp32", micro_batch_tokens=10**6)
    found = scorer.compute_topk(tokens, 4)
    parts = scorer.compute_topk(tokens, 4, micro_batch_size=2)
    assert all(torch.allclose(a.float(), b.float(), atol=1e-6) for a, b in zip(found, parts, strict=True))
    assert torch.allclose(found.logprobs, scorer.compute(tokens).logprobs, atol=1e-6)
    assert not found.topk_ids[~tokens.response_mask].any()
    assert not found.topk_logprobs[~tokens.response_mask].any()
    for row, place, logits in tokens_of(case):
        highest, ids = logits.log_softmax(-1).topk(4)
        assert torch.equal(found.topk_ids[row, place], ids)
        assert torch.allclose(found.topk_logprobs[row, place], highest, atol=1e-5)
    with pytest.raises(NodeError, match="the 24 likeliest tokens are asked for, but the model's vocabulary has 23"):
        scorer.compute_topk(tokens, 24)


@pytest.mark.parametrize("max_logits", [None, 2 * VOCABULARY])
def test_squared_probabilities_are_summed_over_the_vocabulary(max_logits, monkeypatch: pytest.MonkeyPatch) -> None:
    case = HookCase("drawn")
    tokens, _, _ = laid_out(case)
    if max_logits is not None:
        monkeypatch.setattr(scoring, "MAX_LOGITS", max_logits)
    scorer = Scorer(MODELS["tied"](), precision="fp32", micro_batch_tokens=10**6)
    found = scorer.compute_sum_pi_squared(tokens)
    parts = scorer.compute_sum_pi_squared(tokens, micro_batch_size=2)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, parts, strict=True))
    assert torch.allclose(found.logprobs, scorer.compute(tokens).logprobs, atol=1e-6)
    assert not found.sum_pi_squared[~tokens.response_mask].any()
    for row, place, logits in tokens_of(case):
        expected = fsum(exp(logprob) ** 2 for logprob in reference.log_softmax(logits.tolist()))
        assert float(found.sum_pi_squared[row, place]) == pytest.approx(expected, abs=1e-5)
    flat, sure = torch.zeros(1, VOCABULARY), torch.full((1, VOCABULARY), -float("inf"))
    sure[0, 3] = 80.0
    assert float(SumPiSquared()(flat, {}, slice(None))[0]) == pytest.approx(1 / VOCABULARY, abs=1e-6)
    assert float(SumPiSquared()(sure, {}, slice(None))[0]) == 1.0


@pytest.mark.parametrize("name", ["topk forward", "topk reverse", "topk renormalized"])
def test_distillation_draws_the_student_to_its_teacher(name: str) -> None:
    case = HookCase(name)
    scorer = Scorer(MODELS["tied"](), precision="fp32", micro_batch_tokens=10**6)
    trainer = Trainer(scorer, adamw(lr=1e-2, max_grad_norm=None), total_steps=100, dropout=False)
    tokens, columns, seeds = laid_out(case)
    values = [
        trainer.update(tokens, LossColumns(columns), seeds, hook_plan(case), None).numbers()["actor/loss"]
        for _ in range(60)
    ]
    assert values[-1] < 0.3 * values[0]


@pytest.mark.parametrize("max_logits", [1 << 26, 2 * VOCABULARY])
def test_a_projection_computes_in_float32_where_the_model_computes_in_bf16(
    max_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtypes = []

    def similar(new_logits: Float32[Tensor, "N V"]) -> Float32[Tensor, " N"]:
        dtypes.extend([new_logits.dtype, (new_logits @ new_logits.T).dtype])
        return new_logits.square().sum(1)

    @loss(project=similar)
    def of_similar(similar: Tokens) -> tuple[Tokens, Metrics]:
        return similar, Metrics()

    monkeypatch.setattr("dagrl.engines.scoring.MAX_LOGITS", max_logits)
    tokens, columns, seeds = laid_out(HookCase("drawn"))
    scorer = Scorer(MODELS["tied"](), precision="bf16", micro_batch_tokens=10**6)
    trainer = Trainer(scorer, adamw(lr=1e-3), total_steps=10, dropout=False)
    plan = replace(hook_plan(HookCase("drawn")), loss=of_similar())
    assert trainer.update(tokens, LossColumns(columns), seeds, plan, None).numbers()["actor/grad_norm"] > 0
    assert set(dtypes) == {torch.float32}
