"""GRPO in this process with a stand-in for SGLang's server that is given the new weights each step."""

from pathlib import Path

from sglang_server import sglang_server
from support import metrics_lines

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy, server
from dagrl.nodes import generate, grpo_advantage, old_logprob, ppo_clip, prompts, update_policy, verify
from dagrl.trainer.loop import run


def test_every_step_generates_from_the_weights_of_the_step_before(tmp_path: Path) -> None:
    with sglang_server() as (url, served):
        rollout = server([url], weights_folder=str(tmp_path / "weights"))
        spec = policy("zoo:tiny", optimizer=adamw(lr=5e-3), precision="fp32", rollout=rollout)
        actor = WorkerGroup("actor", spec, pool=ResourcePool("main", [1]))
        with Pipeline("grpo") as step:
            batch = prompts(data="zoo:larger", batch_size=4, n=4)
            rows = generate(actor, batch, max_new_tokens=6)
            advantages = grpo_advantage(rows, verify(batch, rows))
            update_policy(actor, rows, old_logprob(actor, rows), advantages, loss=ppo_clip(eps=0.2))
        run([step], out=str(tmp_path / "run"), seed=0, steps=3)
    gaps = [line["rollout/logprob_gap"] for line in metrics_lines(tmp_path / "run")]
    assert len(gaps) == 3
    assert max(gaps) < 1e-4
    assert len({update["weight_version"] for update in served.updates}) == 4
