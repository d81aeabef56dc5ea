"""Log-probs of the actor with sums of squared probabilities: in a graph, and as `otb_advantage` reads them."""

from pathlib import Path

import pytest
import torch
from recorded_rows import recorded
from support import metrics_lines

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy
from dagrl.compiler import LOCAL, compile_pipelines
from dagrl.nodes import (
    generate,
    old_logprob,
    old_logprob_squares,
    otb_advantage,
    ppo_clip,
    prompts,
    rollout_correction,
    update_policy,
    verify,
)
from dagrl.trainer.loop import run
from dagrl.workers.policy import PolicyWorker

POOL = ResourcePool("main")
ACTOR = WorkerGroup("actor", policy("zoo:tiny", optimizer=adamw(lr=1e-3), precision="fp32"), pool=POOL)


def step(*, reads_squares: bool = True) -> Pipeline:
    with Pipeline("otb", steps=2) as made:
        batch = prompts(data="zoo:larger", batch_size=2, n=4)
        rollout = generate(ACTOR, batch, max_new_tokens=4)
        old = old_logprob_squares(ACTOR, rollout)
        weights = rollout_correction(rollout, old)
        read = old if reads_squares else old.only("old_logprobs")
        advantage = otb_advantage(rollout, verify(batch, rollout), read, weights)
        update_policy(ACTOR, rollout, old, weights, advantage, loss=ppo_clip())
    return made


@pytest.mark.parametrize("reads", [True, False])
def test_the_sum_is_computed_only_where_it_is_read(reads: bool) -> None:
    (plan,) = compile_pipelines([step(reads_squares=reads)], LOCAL)
    (op,) = [op for op in plan.runs if op.call == "old_logprob_squares"]
    assert set(op.writes) == {"old_logprobs"} | ({"sum_pi_squared"} if reads else set())


def test_it_trains(tmp_path: Path) -> None:
    run([step()], out=str(tmp_path / "run"), steps=2)
    assert all(line["actor/optimizer_steps"] == 1 for line in metrics_lines(tmp_path / "run"))


def test_its_log_probs_are_those_of_old_logprob() -> None:
    worker = PolicyWorker(ACTOR, total_steps=1, rollout=False)
    tokens, _, _ = recorded()
    plain = old_logprob(worker, *tokens)
    for wanted in (frozenset({"sum_pi_squared", "old_logprobs"}), frozenset({"old_logprobs"})):
        found = old_logprob_squares(worker, *tokens, wanted=wanted)
        assert torch.allclose(found.old_logprobs, plain, atol=1e-6)
        assert (found.sum_pi_squared is not None) == ("sum_pi_squared" in wanted)
    squares = old_logprob_squares(worker, *tokens, wanted=frozenset({"sum_pi_squared"})).sum_pi_squared
    assert squares is not None
    mask = tokens.response_mask
    assert bool((squares[mask] >= plain[mask].exp().square() - 1e-6).all())
    assert bool((squares[mask] <= 1 + 1e-6).all())
