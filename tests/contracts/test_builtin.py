"""Every built-in node and loss, and those in plugins/, through the contract suite."""

from pathlib import Path

import pytest

from dagrl.cli.declared import built_in
from dagrl.cli.declared_in_file import declared_in
from dagrl.contracts import check_loss, check_node
from dagrl.graph.node import Node
from dagrl.nodes import (
    cispo,
    clip_cov,
    decoupled_ppo,
    dppo_tv,
    gae_advantage,
    gdpo_advantage,
    gmpo,
    gpg_advantage,
    grpo_advantage,
    grpo_passk_advantage,
    gspo,
    kl_cov,
    kl_loss,
    kl_penalty,
    pass_at_k_advantage,
    ppo_clip,
    reinforce_advantage,
    reinforce_pp_advantage,
    report,
    rloo_advantage,
    rollout_correction,
    topk_distill,
    topr,
    update_policy,
    value_clip,
    verify,
    whiten_advantages,
)

ROOT = Path(__file__).resolve().parent.parent.parent
BUILT_IN = built_in()
PLUGINS = sorted((ROOT / "plugins").glob("*.py"))


def violations(declared, **options) -> list[str]:
    check = check_node if isinstance(declared, Node) else check_loss
    return [str(violation) for violation in check(declared, options)]


@pytest.mark.parametrize("declared", BUILT_IN, ids=lambda declared: declared.contract.name)
def test_built_in(declared) -> None:
    assert violations(declared) == []


@pytest.mark.parametrize(
    ("declared", "options"),
    [
        (grpo_advantage, {"normalize_by_std": False}),
        (rloo_advantage, {"allow_singletons": True}),
        (gae_advantage, {"gamma": 0.9, "lam": 0.8}),
        (reinforce_advantage, {"gamma": 0.5}),
        (reinforce_pp_advantage, {"gamma": 0.5}),
        (pass_at_k_advantage, {"k": 1}),
        (grpo_passk_advantage, {"normalize_by_std": False}),
        (gpg_advantage, {"normalize_by_std": True}),
        (gdpo_advantage, {"weights": (1.0, 0.5, 0.1)}),
        (whiten_advantages, {"normalize_by_std": False}),
        (verify, {"allow_truncated": True}),
        (ppo_clip, {"eps": 0.1, "eps_high": 0.28, "dual_clip": 1.5}),
        (kl_loss, {"kind": "k1"}),
        (kl_loss, {"kind": "k2"}),
        (kl_loss, {"kind": "abs"}),
        (kl_loss, {"kind": "k3+"}),
        (gspo, {"eps": 0.1, "eps_high": 0.2}),
        (gmpo, {"eps": 0.1, "eps_high": 0.2}),
        (cispo, {"eps": 0.1, "eps_high": 0.2}),
        (topr, {"length_normalized": True}),
        (decoupled_ppo, {"weight_cap": 1.1, "over_cap": "drop", "dual_clip": 2.0}),
        (dppo_tv, {"delta": 0.01, "ratio_cap": 1.2}),
        (value_clip, {"eps": None}),
        (kl_penalty, {"beta": 0.2, "kind": "k3"}),
        (rollout_correction, {"level": "sequence", "low": 0.5, "outside": "mask", "normalize": True}),
        (rollout_correction, {"reject_by": "k2", "reject_over": "row-max", "reject_above": 0.1}),
        (update_policy, {"loss": gspo(), "loss_agg_mode": "seq-mean-token-mean", "mini_batch_size": 5}),
        (update_policy, {"loss": ppo_clip(), "micro_batch_size": 2, "epochs": 2}),
        (update_policy, {"loss": clip_cov(cov_low=-1.0), "micro_batch_size": 5, "mini_batch_size": 9}),
        (update_policy, {"loss": kl_cov() + topk_distill(kind="reverse")}),
    ],
    ids=lambda value: getattr(getattr(value, "contract", None), "name", None) or " ".join(value),
)
def test_built_in_with_other_options(declared, options) -> None:
    assert violations(declared, **options) == []


@pytest.mark.parametrize("file", PLUGINS, ids=lambda file: file.stem)
def test_plugins(file: Path) -> None:
    declared = declared_in(str(file))
    assert declared
    assert [text for one in declared for text in violations(one)] == []


def test_all_of_dagrl_nodes_is_covered() -> None:
    import dagrl.nodes

    names = {one.contract.name for one in BUILT_IN}
    assert {report.contract.name, "update_policy", "gspo"} <= names
    assert names <= set(dagrl.nodes.__all__)
