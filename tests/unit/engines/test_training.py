"""The trainer against a plain reference: loss, gradient and metrics, however the rows are laid out."""

import math
from dataclasses import dataclass, replace
from itertools import islice

import pytest
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from dagrl import LossColumns, Mean, adamw, loss
from dagrl.data.metrics import Metrics
from dagrl.engines.parallel import SINGLE
from dagrl.engines.scoring import Scorer
from dagrl.engines.training import Trainer, _walk, lr_factor
from dagrl.errors import NodeError, TrainingError
from dagrl.graph.losses import LossTerms
from dagrl.graph.roles import Canary, TokenBatch, UpdatePlan
from dagrl.nodes import entropy_bonus, gspo, kl_loss, ppo_clip
from dagrl.ops.masks import position_ids

VOCABULARY = 23
LOSS = ppo_clip(eps=0.2) + 0.1 * kl_loss(kind="k3") - 0.05 * entropy_bonus()
MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    config._attn_implementation = "eager"
    return LlamaForCausalLM(config)


def gpt2() -> PreTrainedModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=64)
    config._attn_implementation = "eager"
    return GPT2LMHeadModel(config)


@dataclass(frozen=True)
class Row:
    """One row without padding; per-token values belong to the response."""

    prompt: list[int]
    response: list[int]
    trained: list[bool]
    temperature: float
    old: list[float]
    ref: list[float]
    advantage: list[float]


def make_rows(num_rows: int = 8) -> list[Row]:
    generator = torch.Generator().manual_seed(7)

    def floats(count: int, low: float, high: float) -> list[float]:
        return (torch.rand(count, generator=generator) * (high - low) + low).tolist()

    rows = []
    for number in range(num_rows):
        size = int(torch.randint(1, 6, (1,), generator=generator))
        tokens = torch.randint(0, VOCABULARY, (size + 3 + number % 3,), generator=generator).tolist()
        trained = [(place + number) % 4 != 1 for place in range(size)] if number != 5 else [False] * size
        rows.append(
            Row(tokens[size:], tokens[:size], trained, 1.0 if number % 2 else 0.7,
                floats(size, -4, -2), floats(size, -4, -2), floats(size, -2, 2))
        )  # fmt: skip
    return rows


def lay_out(rows: list[Row], extra_p: int = 0, extra_t: int = 0, poison: float = 0.0) -> tuple[TokenBatch, LossColumns]:
    """Left-padded prompts, right-padded responses; ``poison`` stands at masked places of the columns."""
    width_p = max(len(row.prompt) for row in rows) + extra_p
    width_t = max(len(row.response) for row in rows) + extra_t

    def right(values: list[list[float]], fill: float) -> Tensor:
        return torch.tensor([value + [fill] * (width_t - len(value)) for value in values])

    ids = [[0] * (width_p - len(r.prompt)) + r.prompt + r.response + [0] * (width_t - len(r.response)) for r in rows]
    attention = [
        [False] * (width_p - len(r.prompt)) + [True] * (len(r.prompt) + len(r.response))
        + [False] * (width_t - len(r.response)) for r in rows
    ]  # fmt: skip
    mask = torch.tensor([r.trained + [False] * (width_t - len(r.response)) for r in rows])
    attention_mask = torch.tensor(attention)
    tokens = TokenBatch(
        torch.tensor(ids), attention_mask, position_ids(attention_mask), mask,
        torch.tensor([row.temperature for row in rows]),
    )  # fmt: skip
    columns = {
        "old_logprobs": right([row.old for row in rows], poison).masked_fill(~mask, poison),
        "ref_logprobs": right([row.ref for row in rows], poison).masked_fill(~mask, poison),
        "advantages": right([row.advantage for row in rows], poison).masked_fill(~mask, poison),
        "response_mask": mask,
    }
    return tokens, LossColumns(columns)


def update_plan(loss: LossTerms = LOSS, **changes: object) -> UpdatePlan:
    plan = UpdatePlan(
        loss=loss,
        loss_agg_mode="token-mean",
        norm_length=None,
        mini_batch_size=0,
        micro_batch_size=0,
        epochs=1,
        aliases={},
        step=1,
    )
    return replace(plan, **changes)


def run_update(
    model: PreTrainedModel, tokens: TokenBatch, columns: LossColumns, plan: UpdatePlan, **trainer: object
) -> tuple[dict[str, float], dict[str, Tensor], Trainer]:
    """Metrics and the gradient of the last optimizer step."""
    scorer = Scorer(model, precision="fp32", micro_batch_tokens=10**6)
    spec = trainer.pop("optimizer", adamw(lr=1e-4, max_grad_norm=None))
    made = Trainer(scorer, spec, total_steps=10, dropout=False, **trainer)
    metrics: Metrics = made.update(tokens, columns, torch.arange(len(tokens.input_ids)), plan, None)
    return metrics.numbers(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, made


def reference_loss(model: PreTrainedModel, rows: list[Row], mode: str, norm_length: int) -> Tensor:
    """The loss row by row and token by token, each row alone and unpadded."""
    per_row: list[list[Tensor]] = []
    for row in rows:
        logits = model(input_ids=torch.tensor([row.prompt + row.response])).logits[0]
        losses = []
        for place, token in enumerate(row.response):
            if not row.trained[place]:
                continue
            log_p = (logits[len(row.prompt) + place - 1].float() / row.temperature).log_softmax(-1)
            ratio = (log_p[token] - row.old[place]).exp()
            advantage = row.advantage[place]
            surrogate = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            delta = row.ref[place] - log_p[token]
            entropy = -(log_p.exp() * log_p).sum()
            losses.append(surrogate + 0.1 * (delta.exp() - delta - 1) - 0.05 * entropy)
        if losses:
            per_row.append(losses)
    sums = [torch.stack(losses).sum() for losses in per_row]
    num_tokens, num_rows = sum(len(losses) for losses in per_row), len(per_row)
    match mode:
        case "token-mean":
            return torch.stack(sums).sum() / num_tokens
        case "token-sum":
            return torch.stack(sums).sum()
        case "seq-mean-token-sum":
            return torch.stack(sums).sum() / num_rows
        case "seq-mean-token-mean":
            return torch.stack([total / len(row) for total, row in zip(sums, per_row, strict=True)]).sum() / num_rows
        case _:
            return torch.stack(sums).sum() / num_rows / norm_length


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", [llama, gpt2])
def test_loss_and_gradient_equal_a_plain_reference(family, mode: str) -> None:
    rows = make_rows()
    model = family().eval()
    expected = reference_loss(model, rows, mode, norm_length=7)
    expected.backward()
    gradient = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    plan = update_plan(loss_agg_mode=mode, norm_length=7 if mode.endswith("norm") else None)
    metrics, found, _ = run_update(model, *lay_out(rows), plan)
    assert metrics["actor/loss"] == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
    for name, grad in gradient.items():
        assert torch.allclose(found[name], grad, rtol=1e-4, atol=2e-6), name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", [llama, gpt2])
@pytest.mark.parametrize(
    ("micro_batch_size", "extra_p", "extra_t", "shuffle", "poison"),
    [
        (4, 0, 0, False, 0.0),
        (2, 0, 0, False, 0.0),
        (3, 0, 0, True, 0.0),
        (0, 3, 4, False, 0.0),
        (2, 2, 1, True, float("nan")),
        (0, 0, 2, True, float("inf")),
    ],
)
def test_layout_changes_no_number(
    family, mode: str, micro_batch_size: int, extra_p: int, extra_t: int, shuffle: bool, poison: float
) -> None:
    """Micro-batches, wider padding, another row order, NaN and inf at masked places: same loss, gradient, metrics."""
    rows = make_rows()
    plan = update_plan(loss_agg_mode=mode, norm_length=7 if mode.endswith("norm") else None)
    metrics, gradient, _ = run_update(family(), *lay_out(rows), plan)
    if shuffle:
        rows = [rows[place] for place in (5, 2, 7, 0, 1, 6, 3, 4)]
    changed = replace(plan, micro_batch_size=micro_batch_size)
    others, other_gradient, _ = run_update(family(), *lay_out(rows, extra_p, extra_t, poison), changed)
    assert metrics.keys() == others.keys()
    # A sum of tokens has the rounding of each; every other number is a mean.
    scale = sum(sum(row.trained) for row in rows) if mode == "token-sum" else 1
    for name, value in metrics.items():
        assert others[name] == pytest.approx(value, rel=1e-6, abs=1e-6 * scale), name
    for name, grad in gradient.items():
        assert (grad - other_gradient[name]).abs().max() <= 1e-6 * max(1.0, float(grad.abs().max())), name


def test_a_row_does_not_depend_on_its_mates() -> None:
    rows = make_rows()
    scorer = Scorer(gpt2(), precision="fp32", micro_batch_tokens=10**6)
    together = scorer.compute(lay_out(rows)[0])
    for number, row in enumerate(rows):
        alone = scorer.compute(lay_out([row], extra_p=2)[0])
        assert torch.allclose(together.logprobs[number, : len(row.response)], alone.logprobs[0], atol=1e-5)
        assert torch.allclose(together.entropy[number, : len(row.response)], alone.entropy[0], atol=1e-5)


def test_chunked_head_equals_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows()
    metrics, gradient, _ = run_update(llama(), *lay_out(rows), update_plan())
    monkeypatch.setattr("dagrl.engines.scoring.MAX_LOGITS", 3 * VOCABULARY)
    others, other_gradient, _ = run_update(llama(), *lay_out(rows), update_plan())
    assert others == pytest.approx(metrics, rel=1e-6, abs=1e-6)
    for name, grad in gradient.items():
        assert torch.allclose(grad, other_gradient[name], atol=1e-6), name


def test_a_model_that_caps_its_logits_is_scored_with_the_cap() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=8, final_logit_softcapping=0.05, max_position_embeddings=64,
    )  # fmt: skip
    config._attn_implementation = "eager"
    model = Gemma2ForCausalLM(config)
    row = make_rows()[0]
    scored = Scorer(model, precision="fp32", micro_batch_tokens=10**6).compute(lay_out([row])[0])
    logits = model(input_ids=torch.tensor([row.prompt + row.response])).logits[0]
    for place, token in enumerate(row.response):
        if row.trained[place]:
            expected = (logits[len(row.prompt) + place - 1] / row.temperature).log_softmax(-1)[token]
            assert float(scored.logprobs[0, place]) == pytest.approx(expected.item(), abs=1e-5)


def test_mini_batches_cover_all_rows_once_an_epoch_and_do_not_depend_on_row_order() -> None:
    rows = make_rows()
    tokens, columns = lay_out(rows)
    plan = update_plan(mini_batch_size=3, epochs=2)
    metrics, _, trainer = run_update(llama(), tokens, columns, plan)
    assert metrics["actor/optimizer_steps"] == 6
    order = torch.tensor([5, 2, 7, 0, 1, 6, 3, 4])
    shuffled = TokenBatch(*(column[order] for column in tokens))
    scorer = Scorer(llama(), precision="fp32", micro_batch_tokens=10**6)
    other = Trainer(scorer, adamw(lr=1e-4, max_grad_norm=None), total_steps=10, dropout=False)
    mixed = LossColumns({name: column[order] for name, column in columns.items()})
    others = other.update(shuffled, mixed, torch.arange(8)[order], plan, None).numbers()
    assert others == pytest.approx(metrics, rel=1e-5, abs=1e-6)
    pairs = zip(trainer.scorer.model.parameters(), other.scorer.model.parameters(), strict=True)
    assert all(torch.allclose(mine, theirs, atol=1e-5) for mine, theirs in pairs)


def test_alias_uses_the_updates_own_logprobs() -> None:
    tokens, columns = lay_out(make_rows())
    old = Scorer(llama(), precision="fp32", micro_batch_tokens=10**6).compute(tokens).logprobs
    given = LossColumns({**columns, "old_logprobs": old})
    without = LossColumns({name: column for name, column in columns.items() if name != "old_logprobs"})
    metrics, gradient, _ = run_update(llama(), tokens, given, update_plan())
    aliased = update_plan(aliases={"old_logprobs": "new_logprobs"})
    others, other_gradient, _ = run_update(llama(), tokens, without, aliased)
    assert others == pytest.approx(metrics, rel=1e-6, abs=1e-6)
    assert others["actor/clip_fraction"] == 0
    for name, grad in gradient.items():
        assert torch.allclose(grad, other_gradient[name], atol=1e-6), name


def test_gap_to_the_rollout_is_that_before_the_first_step() -> None:
    tokens, columns = lay_out(make_rows())
    scorer = Scorer(llama(), precision="fp32", micro_batch_tokens=10**6)
    rollout = scorer.compute(tokens).logprobs + 0.25
    trainer = Trainer(scorer, adamw(lr=0.1), total_steps=10, dropout=False)
    metrics = trainer.update(tokens, columns, torch.arange(8), update_plan(epochs=3), rollout).numbers()
    assert metrics["rollout/logprob_gap"] == pytest.approx(0.25, abs=1e-5)
    assert metrics["rollout/logprob_gap_max"] == pytest.approx(0.25, abs=1e-5)


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_first_mini_batch_with_a_token_measures_the_gap(epochs: int) -> None:
    """The one that would be first has none; those after it are of weights that the rollout has not seen."""
    rows = make_rows()
    plan = update_plan(mini_batch_size=3, epochs=epochs)
    first, second = (index.tolist() for index in islice(_walk(torch.arange(8), plan, SINGLE), 2))
    for place in first:
        rows[place] = replace(rows[place], trained=[False] * len(rows[place].response))
    tokens, columns = lay_out(rows)
    scorer = Scorer(llama(), precision="fp32", micro_batch_tokens=10**6)
    off = 0.25 + 0.5 * torch.arange(8.0)[:, None]
    rollout = scorer.compute(tokens).logprobs + off
    counts = [sum(rows[place].trained) for place in second]
    mean = sum(float(off[place]) * count for place, count in zip(second, counts, strict=True)) / sum(counts)
    largest = max(float(off[place]) for place, count in zip(second, counts, strict=True) if count)
    trainer = Trainer(scorer, adamw(lr=0.1), total_steps=10, dropout=False)
    before = [parameter.detach().clone() for parameter in scorer.model.parameters()]
    tight = replace(plan, canary=Canary(group="actor", rollout="actor", tolerance=mean - 0.01))
    with pytest.raises(TrainingError, match=rf"{sum(counts)} tokens are {mean:.4g} nats"):
        trainer.update(tokens, columns, torch.arange(8), tight, rollout)
    assert all(map(torch.equal, before, scorer.model.parameters()))
    wide = replace(plan, canary=Canary(group="actor", rollout="actor", tolerance=mean + 0.01))
    metrics = trainer.update(tokens, columns, torch.arange(8), wide, rollout).numbers()
    assert metrics["actor/empty_mini_batches"] == epochs
    assert metrics["rollout/logprob_gap"] == pytest.approx(mean, abs=1e-4)
    assert metrics["rollout/logprob_gap_max"] == pytest.approx(largest, abs=1e-4)


def test_gradient_clipping_scales_to_the_norm() -> None:
    tokens, columns = lay_out(make_rows())
    metrics, gradient, _ = run_update(
        llama(), tokens, columns, update_plan(), optimizer=adamw(lr=1e-4, max_grad_norm=0.01)
    )
    norm = sum(float(grad.double().square().sum()) for grad in gradient.values()) ** 0.5
    assert metrics["actor/grad_norm"] > 0.01
    assert norm == pytest.approx(0.01, rel=1e-3)


def test_nothing_to_train_changes_no_weight() -> None:
    row = replace(make_rows()[0], trained=[False] * len(make_rows()[0].response))
    model = llama()
    before = {name: p.clone() for name, p in model.named_parameters()}
    metrics, _, _ = run_update(model, *lay_out([row]), update_plan())
    assert metrics["actor/empty_mini_batches"] == 1
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_nan_at_a_trained_place_stops_the_run_and_keeps_the_weights() -> None:
    rows = make_rows()
    rows[0] = replace(rows[0], advantage=[float("nan")] * len(rows[0].response))
    model = llama()
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(TrainingError, match="gradient norm is nan"):
        run_update(model, *lay_out(rows), update_plan())
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_bf16_computes_close_to_fp32_over_fp32_weights() -> None:
    tokens, _ = lay_out(make_rows())
    exact = Scorer(llama(), precision="fp32", micro_batch_tokens=10**6).compute(tokens).logprobs
    scorer = Scorer(llama(), precision="bf16", micro_batch_tokens=10**6)
    assert (scorer.compute(tokens).logprobs - exact).abs().max() < 0.05
    assert all(p.dtype == torch.float32 for p in scorer.model.parameters())


@pytest.mark.parametrize(
    ("decay", "update", "expected"),
    [
        ("constant", 0, 0.1),
        ("constant", 9, 1.0),
        ("constant", 99, 1.0),
        ("linear", 0, 0.1),
        ("linear", 50, 0.1 + 0.9 * 0.5),
        ("linear", 100, 0.1),
        ("cosine", 50, 0.1 + 0.9 * 0.5),
        ("cosine", 100, 0.1),
    ],
)
def test_learning_rate_schedule(decay: str, update: int, expected: float) -> None:
    spec = adamw(lr=1.0, warmup=10, decay=decay, min_lr_ratio=0.1)
    assert lr_factor(spec, update, 100) == pytest.approx(expected)


def test_the_optimizer_step_is_adamw() -> None:
    """One step from zero moments moves every weight by lr x sign(gradient), decayed weights aside."""
    tokens, columns = lay_out(make_rows())
    model = llama()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    spec = adamw(lr=1e-3, max_grad_norm=None, eps=1e-12)
    _, gradient, _ = run_update(model, tokens, columns, update_plan(), optimizer=spec)
    for name, parameter in model.named_parameters():
        moved = before[name] - 1e-3 * gradient[name].sign()
        large = gradient[name].abs() > 1e-6
        assert torch.allclose(parameter[large], moved[large], atol=1e-6), name


@loss()
def by_prompt(
    new_logprobs: Float32[Tensor, "B T"],
    prompt_values: Float32[Tensor, "B P"],
    input_ids: Int64[Tensor, "B S"],
    weights: Float32[Tensor, " B"],
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Reads a column of every width: each response token by its own id, its row's prompt sum and its row's weight."""
    ids = input_ids[:, input_ids.shape[1] - new_logprobs.shape[1] :].float()
    factor = prompt_values.sum(1) * weights
    return new_logprobs * ids * factor[:, None], Metrics()


@pytest.mark.parametrize("micro_batch_size", [0, 1, 2, 3])
@pytest.mark.parametrize("extra", [0, 2])
def test_loss_columns_of_every_width_are_cut_like_the_tokens(micro_batch_size: int, extra: int) -> None:
    """Also where P and T are equal by chance, so that shapes alone cannot tell them apart."""
    rows = make_rows()
    width_p, width_t = max(len(row.prompt) for row in rows), max(len(row.response) for row in rows)

    def run(micro: int, extra_p: int, extra_t: int) -> dict[str, float]:
        tokens, _ = lay_out(rows, extra_p, extra_t)
        width = tokens.input_ids.shape[1] - tokens.response_mask.shape[1]
        values = torch.tensor([[0.0] * (width - len(row.prompt)) + [0.5] * len(row.prompt) for row in rows])
        columns = {"prompt_values": values, "input_ids": tokens.input_ids, "weights": torch.arange(8.0) + 1}
        return run_update(llama(), tokens, LossColumns(columns), update_plan(by_prompt(), micro_batch_size=micro))[0]

    expected = run(0, 0, 0)
    equal = max(0, width_t - width_p), max(0, width_p - width_t)
    found = run(micro_batch_size, equal[0] + extra, equal[1] + extra)
    assert found == pytest.approx(expected, rel=1e-5)


@loss()
def multiplied_by_the_mask(
    new_logprobs: Float32[Tensor, "B T"], advantages: Float32[Tensor, "B T"], response_mask: Bool[Tensor, "B T"]
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """A loss that takes masked places for zeros."""
    weighed = advantages * response_mask
    return -new_logprobs * weighed, Metrics({"weighed": Mean(float(weighed.sum()), 1.0)})


def test_a_loss_that_multiplies_by_the_mask_meets_no_nan_there() -> None:
    plan = update_plan(loss=multiplied_by_the_mask())
    poisoned, clean = (run_update(llama(), *lay_out(make_rows(), poison=poison), plan)[0] for poison in (math.nan, 0.0))
    assert poisoned == clean


def returning(kind: str) -> LossTerms:
    @loss()
    def odd(
        new_logprobs: Float32[Tensor, "B T"], response_mask: Bool[Tensor, "B T"]
    ) -> tuple[Float32[Tensor, "B T"], Metrics]:
        return {
            "scalar": (new_logprobs.mean(), Metrics()),
            "one row": (new_logprobs[:1], Metrics()),
            "one column": (new_logprobs[:, :1], Metrics()),
            "detached": (new_logprobs.detach(), Metrics()),
            "tensor": new_logprobs,
            "none": None,
            "integers": (response_mask.long(), Metrics()),
            "floats": (new_logprobs, {"a": 1.0}),
        }[kind]

    return odd()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("scalar", r"loss `odd` returned float32\[\]: per-token losses here are float\[8, 5\]"),
        ("one row", r"loss `odd` returned float32\[1, 5\]"),
        ("one column", r"loss `odd` returned float32\[8, 1\]"),
        ("detached", "loss `odd` returned losses without a gradient"),
        ("tensor", "loss `odd` returned Tensor, not a pair"),
        ("none", "loss `odd` returned NoneType, not a pair"),
        ("integers", r"loss `odd` returned int64\[8, 5\]"),
        ("floats", "loss `odd` returned tuple, not a pair"),
    ],
)
def test_a_loss_that_returns_something_else_is_named(kind: str, said: str) -> None:
    with pytest.raises(NodeError, match=said):
        run_update(llama(), *lay_out(make_rows()), update_plan(returning(kind)))


def test_the_same_loss_twice_keeps_its_metrics_apart() -> None:
    columns = lay_out(make_rows())
    alone = {kind: run_update(llama(), *columns, update_plan(kl_loss(kind=kind)))[0] for kind in ("k1", "k2")}
    both, _, _ = run_update(llama(), *columns, update_plan(kl_loss(kind="k1") + kl_loss(kind="k2")))
    assert both["actor/ref_kl"] == pytest.approx(alone["k1"]["actor/ref_kl"])
    assert both["kl_loss#2/actor/ref_kl"] == pytest.approx(alone["k2"]["actor/ref_kl"])


def test_two_losses_that_report_one_metric_keep_it_apart() -> None:
    columns = lay_out(make_rows())
    alone = [run_update(llama(), *columns, update_plan(term))[0] for term in (ppo_clip(eps=1e-3), gspo())]
    both, _, _ = run_update(llama(), *columns, update_plan(ppo_clip(eps=1e-3) + gspo()))
    assert both["actor/clip_fraction"] == pytest.approx(alone[0]["actor/clip_fraction"])
    assert both["gspo/actor/clip_fraction"] == pytest.approx(alone[1]["actor/clip_fraction"])


def test_a_loss_cannot_report_the_engines_metrics() -> None:
    @loss()
    def greedy(new_logprobs: Float32[Tensor, "B T"]) -> tuple[Float32[Tensor, "B T"], Metrics]:
        return new_logprobs, Metrics({"actor/entropy": Mean(1.0, 1.0)})

    with pytest.raises(NodeError, match="report the metric `actor/entropy`"):
        run_update(llama(), *lay_out(make_rows()), update_plan(greedy()))


def test_the_learning_rate_follows_the_runs_step_not_the_number_of_updates() -> None:
    tokens, columns = lay_out(make_rows())
    scorer = Scorer(llama(), precision="fp32", micro_batch_tokens=10**6)
    trainer = Trainer(scorer, adamw(lr=1.0, warmup=4, decay="linear"), total_steps=10, dropout=False)
    rates = [
        trainer.update(tokens, columns, torch.arange(8), update_plan(step=step), None)["actor/lr"].value
        for step in (1, 1, 3, 6, 10)
    ]
    assert rates == pytest.approx([0.25, 0.25, 0.75 * 0.8, 0.5, 0.1])


def test_clip_fraction_and_old_kl_are_those_of_the_rows() -> None:
    rows = make_rows()
    metrics, _, _ = run_update(llama(), *lay_out(rows), update_plan(ppo_clip(eps=0.2)))
    model = llama().eval()
    clipped, drift, surrogate = [], [], []
    for row in rows:
        logits = model(input_ids=torch.tensor([row.prompt + row.response])).logits[0].detach()
        for place, token in enumerate(row.response):
            if row.trained[place]:
                log_p = float((logits[len(row.prompt) + place - 1] / row.temperature).log_softmax(-1)[token])
                ratio, advantage = math.exp(log_p - row.old[place]), row.advantage[place]
                clipped.append((advantage > 0 and ratio > 1.2) or (advantage < 0 and ratio < 0.8))
                drift.append(row.old[place] - log_p)
                surrogate.append(-min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage))
    assert 0 < sum(clipped) < len(clipped)
    assert metrics["actor/clip_fraction"] == pytest.approx(sum(clipped) / len(clipped))
    assert metrics["actor/old_kl"] == pytest.approx(sum(drift) / len(drift), rel=1e-4)
    assert metrics["actor/pg_loss"] == pytest.approx(sum(surrogate) / len(surrogate), rel=1e-4)


def test_every_epoch_of_one_mini_batch_is_a_step() -> None:
    tokens, columns = lay_out(make_rows())
    metrics, _, _ = run_update(llama(), tokens, columns, update_plan(epochs=3))
    assert metrics["actor/optimizer_steps"] == 3
