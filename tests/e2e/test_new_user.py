"""A new user's path: `dagrl new`, edit, `dagrl check`, swap one line of a pipeline, run; and the plugins."""

import json
import shutil
from pathlib import Path

import pytest
from support import ROOT, edited_pipeline, metrics_lines, run_grpo

from dagrl.cli.main import _exit_code

IMPORTS = "from dagrl import Edge"


def dagrl(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["dagrl", *arguments])
    return _exit_code()


def test_a_node_of_ones_own_from_nothing_to_a_step(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert dagrl(monkeypatch, "new", "node", "users_advantage") == 0
    file = tmp_path / "users_advantage.py"

    own = file.read_text()
    file.write_text(own.replace("- rewards[rows].median()", "- rewards.median()"))  # a slip: of all groups
    assert dagrl(monkeypatch, "check", "users_advantage.py") == 2
    assert "a group alone gives another result than among others" in capsys.readouterr().err

    file.write_text(own.replace(".median()", ".mean()"))
    assert dagrl(monkeypatch, "check", "users_advantage.py") == 0
    edited_pipeline(
        tmp_path,
        (IMPORTS, f"from users_advantage import users_advantage\n\n{IMPORTS}"),
        ("loss=ppo_clip(eps=cfg.clip)", "loss=ppo_clip(eps=cfg.clip), advantage=users_advantage"),
        name="mine.py",
    )
    assert dagrl(monkeypatch, "check", "mine.py") == 0
    assert "node users_advantage" in capsys.readouterr().out
    arguments = ["run", "mine.py", "--steps", "1", "--set", "batch_size=4", "--set", "eval_every=1000", "--out", "r"]
    assert dagrl(monkeypatch, *arguments) == 0
    plan = json.loads((tmp_path / "r" / "plan.json").read_text())
    assert "users_advantage" in json.dumps(plan)


def metrics_of(folder: Path, out: Path, *edits: tuple[str, str], **values) -> dict[str, float]:
    file = edited_pipeline(folder, *edits)
    run_grpo(out, steps=1, file=file, **values)
    return metrics_lines(out)[0]


@pytest.mark.parametrize(
    ("plugin", "edits", "metric"),
    [
        (
            "rank_advantage",
            [("loss=ppo_clip(eps=cfg.clip)", "loss=ppo_clip(eps=cfg.clip), advantage=rank_advantage")],
            "actor/pg_loss",
        ),
        (
            "reward_weighted_loss",
            [
                ("rollout, old, reference, advantages,", "rollout, reference, reward,"),
                ("ppo_clip(eps=cfg.clip)", "reward_weighted_loss(baseline=0.5)"),
                ("advantages = advantage(rollout, reward)\n", "\n"),
                ("old = old_logprob(actor, rollout)\n", "\n"),
            ],
            "actor/rw_loss",
        ),
        (
            "ref_entropy",
            [
                ("ref_entropy\n", "plain_reward, ref_entropy\n"),
                (
                    "advantage(rollout, reward)",
                    "advantage(rollout, plain_reward(rollout, reward, ref_entropy(ref, rollout)))",
                ),
            ],
            "reward/mean",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "/" not in value else "",
)
def test_plugins_run(tmp_path: Path, plugin: str, edits, metric: str) -> None:
    shutil.copy(ROOT / "plugins" / f"{plugin}.py", tmp_path)
    imported = (IMPORTS, f"from {plugin} import {plugin}\n\n{IMPORTS}")
    assert metric in metrics_of(tmp_path, tmp_path / "run", imported, *edits)


def test_gspo_with_rloo_is_a_change_of_one_line(tmp_path: Path) -> None:
    edits = [
        ("    grpo_advantage,\n", "    grpo_advantage,\n    gspo,\n    rloo_advantage,\n"),
        ("loss=ppo_clip(eps=cfg.clip)", "loss=gspo(), advantage=rloo_advantage"),
    ]
    metrics = metrics_of(tmp_path, tmp_path / "run", *edits)
    assert metrics["actor/clip_fraction"] == metrics["actor/clipped_rows"] == 0
    assert metrics["actor/grad_norm"] > 0
    again = metrics_of(tmp_path, tmp_path / "again", *edits, mini_batch_size=16)
    assert again["actor/clipped_rows"] > 0
