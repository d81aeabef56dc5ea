"""KL in the reward, fixed and adaptive: called as plain functions, and inside short runs."""

import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from support import edited_pipeline, load_grpo, metrics_lines

from dagrl.data.metrics import Mean
from dagrl.nodes import KlCoefficient, adaptive_kl_penalty, kl_penalty
from dagrl.trainer.loop import run
from dagrl.trainer.records import Record
from dagrl.trainer.stopping import StopRequest


def rows(kls: list[float | None]) -> tuple[torch.Tensor, ...]:
    """Rewards of 1, log-probs whose k1 sums to each number over two tokens, and a mask; None: a row without tokens."""
    mask = torch.tensor([[kl is not None] * 2 for kl in kls], dtype=torch.bool).reshape(-1, 2)
    old = torch.tensor([[-1.0 if kl is not None else math.nan] * 2 for kl in kls]).reshape(-1, 2)
    ref = torch.tensor([[-1.0 - (kl or 0.0) / 2] * 2 for kl in kls]).reshape(-1, 2)
    return torch.ones(len(kls)), old, ref, mask


def test_tokens_pay_for_their_kl_and_the_reward_sits_on_the_last() -> None:
    (tokens, per_row), metrics = kl_penalty(*rows([0.4, None, 0.0]), beta=0.5)
    assert tokens.tolist() == [pytest.approx([-0.1, 0.9]), [0, 0], [0, 1]]
    assert per_row.tolist() == pytest.approx([0.8, 1.0, 1.0])
    assert metrics.numbers() == pytest.approx(
        {"kl_penalty/beta": 0.5, "kl_penalty/kl": 0.2, "kl_penalty/token_kl": 0.1}
    )


def test_a_policy_below_its_reference_is_paid_by_k1_and_pays_by_k3() -> None:
    for kind, sign in (("k1", 1), ("k3", -1), ("abs", -1), ("k2", -1)):
        (tokens, _), _ = kl_penalty(*rows([-0.4]), beta=0.5, kind=kind)
        assert math.copysign(1, tokens[0, 0].item()) == sign


def test_rows_without_a_token_do_not_lower_the_measured_kl() -> None:
    kls = [0.2] * 50 + [None] * 300 + [0.4] * 50
    (_, _), state, metrics = adaptive_kl_penalty(*rows(kls), target=0.1, horizon=10_000, state=KlCoefficient(0.2))
    assert metrics["kl_penalty/kl"].value == pytest.approx(0.3)
    assert metrics["kl_penalty/kl"].count == 100
    assert state.beta == pytest.approx(0.2004)


def test_a_step_is_charged_the_coefficient_it_began_with() -> None:
    given = rows([0.3] * 100)
    adaptive, state, metrics = adaptive_kl_penalty(*given, target=0.1, state=KlCoefficient(0.2))
    fixed, _ = kl_penalty(*given, beta=0.2)
    assert torch.equal(adaptive.token_rewards, fixed.token_rewards)
    assert metrics["kl_penalty/beta"] == Mean(pytest.approx(20.0), 100)
    assert state == KlCoefficient(pytest.approx(0.2004))


def test_nothing_measured_leaves_the_coefficient() -> None:
    for given in (rows([None, None]), rows([])):
        _, state, _ = adaptive_kl_penalty(*given, target=0.1, state=KlCoefficient(0.2))
        assert state == KlCoefficient(0.2)


def in_reward(tmp_path: Path) -> Path:
    """GRPO with an adaptive KL in the reward in place of the one in the loss."""
    tmp_path.mkdir(exist_ok=True)
    return edited_pipeline(
        tmp_path,
        ("    kl_loss,\n", "    KlCoefficient,\n    adaptive_kl_penalty,\n"),
        (' + cfg.kl * kl_loss(kind="k3")', ""),
        ("        advantages = advantage(rollout, reward)\n", ""),
        (
            "        reference = ref_logprob(ref, rollout)\n",
            "        reference = ref_logprob(ref, rollout)\n"
            "        penalty = adaptive_kl_penalty(rollout, reward, old, reference, target=1e-3, horizon=100,\n"
            "                                      state=KlCoefficient(beta=0.2))\n"
            '        advantages = advantage(rollout, penalty.rename(penalized_rewards="rewards"))\n',
        ),
        ("rollout, old, reference, advantage", "rollout, old, advantage"),
    )


def test_the_coefficient_goes_on_where_a_run_was_stopped(tmp_path: Path) -> None:
    file = in_reward(tmp_path / "pipeline")
    values: dict[str, Any] = {"batch_size": 4, "n": 4, "precision": "fp32", "lr": 5e-3}
    for out, cuts in (("whole", [None]), ("cut", [2, None])):
        for cut in cuts:
            loaded, stop = load_grpo(file, **values), StopRequest()

            def on_record(record: Record, cut: int | None = cut, stop: StopRequest = stop) -> None:
                if record.step == cut:
                    stop.signal = signal.SIGTERM

            run(
                loaded.pipelines[:1],
                out=str(tmp_path / out),
                steps=5,
                stop=stop,
                on_record=on_record,
                resume="auto",
                config={"batch_size": "4"},
            )
    whole, cut = metrics_lines(tmp_path / "whole"), metrics_lines(tmp_path / "cut")
    assert whole == cut
    betas = [line["kl_penalty/beta"] for line in whole]
    assert betas[0] == pytest.approx(0.2)
    assert len(set(betas)) == 5
    for line, following in zip(whole, betas[1:], strict=False):
        error = min(max(line["kl_penalty/kl"] / 1e-3 - 1, -0.2), 0.2)
        assert following == pytest.approx(line["kl_penalty/beta"] * (1 + error * 16 / 100), rel=1e-6)
