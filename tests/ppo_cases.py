"""The shipped PPO pipeline with a small GAE of the tests' own, which knows nothing but the paper's recursion."""

from pathlib import Path
from typing import Any

from support import GRPO, ROOT

from dagrl.cli.pipeline_file import LoadedPipelines, load_pipelines

PPO = ROOT / "pipelines" / "ppo.py"
SMALL = {"batch_size": "8", "eval_every": "1000"}
GAE = '''"""GAE of an outcome reward, token by token."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl import node


class Gae(NamedTuple):
    """What it writes."""

    advantages: Float32[Tensor, "B T"]
    returns: Float32[Tensor, "B T"]


@node()
def gae_advantage(
    rewards: Float32[Tensor, " B"],
    values: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> Gae:
    """The recursion over trained tokens, from the last."""
    advantages = torch.zeros(values.shape)
    for row, mask in enumerate(response_mask):
        places = mask.nonzero().flatten().tolist()
        following, advantage = 0.0, 0.0
        for number, place in enumerate(reversed(places)):
            reward = float(rewards[row]) if number == 0 else 0.0
            value = float(values[row, place])
            advantage = reward + gamma * following - value + gamma * lam * advantage
            following = value
            advantages[row, place] = advantage
    return Gae(advantages, (advantages + values).masked_fill(~response_mask, 0.0))
'''


def ppo_file(folder: Path, *edits: tuple[str, str], name: str = "own_ppo.py") -> Path:
    """A copy of pipelines/ppo.py beside GRPO's and the tests' GAE, each first text replaced by the second."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / GRPO.name).write_text(GRPO.read_text())
    (folder / "own_gae.py").write_text(GAE)
    text = PPO.read_text()
    head = "from dagrl.nodes import ("
    imported = (f"{head}\n    gae_advantage,", f"from own_gae import gae_advantage\n{head}")
    for old, new in (imported, *edits):
        assert text.count(old) >= 1, f"pipelines/ppo.py has no {old!r}"
        text = text.replace(old, new)
    file = folder / name
    file.write_text(text)
    return file


def scored_by(folder: str) -> tuple[tuple[str, str], ...]:
    """Edits by which a reward model in fp32 gives the rewards."""
    group = f"    scorer = WorkerGroup('scorer', reward_model({folder!r}, precision='fp32'), pool=actor.pool)"
    return (
        ("import Pipeline, WorkerGroup", "import Pipeline, reward_model, WorkerGroup"),
        ("    ref_logprob,\n", "    ref_logprob,\n    reward_model_score,\n"),
        ("        reward = verify(batch, rollout)\n", "        reward = reward_model_score(scorer, batch, rollout)\n"),
        ("    value_model = ", f"{group}\n    value_model = "),
    )


def load_ppo(folder: Path, *edits: tuple[str, str], **values: Any) -> LoadedPipelines:
    """The pipeline with fields set as on the command line."""
    given = {**SMALL, **{key: str(value) for key, value in values.items()}}
    return load_pipelines(str(ppo_file(folder, *edits)), given)
