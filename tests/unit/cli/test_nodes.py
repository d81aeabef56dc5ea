"""`dagrl nodes`: what there is, with columns, options, first lines and places."""

from pathlib import Path

import pytest

from dagrl.cli.main import _exit_code
from dagrl.graph.losses import Loss
from dagrl.graph.node import Node

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def listed(monkeypatch: pytest.MonkeyPatch, capsys, *arguments: str) -> str:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.argv", ["dagrl", "nodes", *arguments])
    assert _exit_code() == 0
    return capsys.readouterr().out


def test_a_plugin(monkeypatch, capsys) -> None:
    assert listed(monkeypatch, capsys, "plugins/reward_weighted_loss.py") == (
        "reward_weighted_loss  loss, plugins/reward_weighted_loss.py:10\n"
        "    -(reward - baseline) * log-prob: the policy imitates its own answers as far as they were good.\n"
        "    reads    new_logprobs, rewards: f32[B], response_mask: bool[B T]\n"
        "    options  baseline=0.0\n"
    )


def test_every_built_in_node_and_loss(monkeypatch, capsys) -> None:
    import dagrl.nodes

    shown = listed(monkeypatch, capsys)
    for name in dagrl.nodes.__all__:
        declared = getattr(dagrl.nodes, name)
        if isinstance(declared, Node | Loss):
            kind = "node" if isinstance(declared, Node) else "loss"
            assert f"{name}  {kind}, {declared.function.__module__}\n    {declared.contract.doc}\n" in shown
    assert "    runs on actor: Policy, train weights, which it changes\n" in shown
    assert "    runs on actor: Policy, rollout weights\n" in shown
    assert "max_new_tokens (required), temperature=1.0" in shown
    assert "truncated: bool[B] (optional)" in shown
    assert "the columns of its loss" in shown


def test_a_filter_and_a_file_without_any(monkeypatch, capsys, tmp_path) -> None:
    (tmp_path / "my_filter.py").write_text(
        "from jaxtyping import Bool, Float32\nfrom torch import Tensor\nfrom dagrl import node\n"
        '@node(rows="filter")\n'
        'def positive(rewards: Float32[Tensor, " B"]) -> Bool[Tensor, " B"]:\n    return rewards > 0\n'
    )
    assert "    filters rows\n" in listed(monkeypatch, capsys, str(tmp_path / "my_filter.py"))
    (tmp_path / "no_nodes.py").write_text("")
    assert "no node or loss of its own" in listed(monkeypatch, capsys, str(tmp_path / "no_nodes.py"))


def test_what_functions_beside_a_loss_read_and_give(monkeypatch, capsys) -> None:
    shown = listed(monkeypatch, capsys)
    reads = (
        "    reads    new_logprobs, old_logprobs: f32[B T], advantages: f32[B T], response_mask: bool[B T], "
        "rollout_weights: f32[B T] (optional)\n"
    )
    prepares = "    prepares covariance: f32[B T], selected: bool[B T]  by select_clip_cov, over each mini-batch\n"
    assert reads + prepares in shown
    reads = "    reads    response_mask: bool[B T], teacher_topk_ids: i64[B T K], teacher_topk_logprobs: f32[B T K]\n"
    assert f"{reads}    projects logits to one number a token by teacher_kl\n" in shown
