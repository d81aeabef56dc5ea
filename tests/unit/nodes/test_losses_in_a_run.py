"""Losses that read other columns than PPO's, as the one changed line of the shipped pipeline."""

from pathlib import Path

import pytest
from support import edited_pipeline, metrics_lines, run_grpo

LOSS = "loss=ppo_clip(eps=cfg.clip)"
NO_KL = ("    kl: float = 0.02", "    kl: float = 0.0")


@pytest.mark.parametrize(
    ("name", "ratio"), [("decoupled_ppo", True), ("dppo_tv", True), ("topr", True), ("reinforce", False)]
)
def test_it_trains(tmp_path: Path, name: str, ratio: bool) -> None:
    file = edited_pipeline(tmp_path, ("    ppo_clip,\n", f"    {name},\n"), (LOSS, f"loss={name}()"), NO_KL)
    run_grpo(tmp_path / "run", file=file, steps=2, batch_size=4, n=4, precision="fp32", seed=3)
    for line in metrics_lines(tmp_path / "run"):
        assert line["actor/grad_norm"] > 0
        assert ("actor/old_kl" in line) == ratio
        assert line.get("actor/clip_fraction", 0.0) == pytest.approx(0.0, abs=1e-6)
        assert line.get("actor/behaviour_weight", 1.0) == pytest.approx(1.0, abs=1e-4)
