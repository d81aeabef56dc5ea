"""What installed packages publish by entry points: listed, run by name, and named where it is broken."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent.parent
NODES = '''
from jaxtyping import Float32
from torch import Tensor
from dagrl import node
from dagrl.nodes import grpo_advantage  # not this package's own


@node(writes="rewards")
def halved(rewards: Float32[Tensor, " B"]) -> Float32[Tensor, " B"]:
    """Half of each reward."""
    return rewards / 2
'''
LOSSES = '''
from jaxtyping import Bool, Float32
from torch import Tensor
from dagrl import Metrics, loss


@loss()
def pull(
    new_logprobs: Float32[Tensor, "B T"], old_logprobs: Float32[Tensor, "B T"], response_mask: Bool[Tensor, "B T"],
    *, power: int = 2,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """How far each log-prob has moved."""
    return (new_logprobs - old_logprobs).abs() ** power, Metrics()
'''
PIPELINE = """
from dataclasses import dataclass
from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy
from dagrl.nodes import generate, ppo_clip, grpo_advantage, prompts, old_logprob, update_policy, verify
from .losses import pull
from .nodes import halved


@dataclass(frozen=True, kw_only=True)
class Config:
    n: int = 2


def build(cfg: Config) -> Pipeline:
    actor = WorkerGroup("actor", policy("zoo:tiny", optimizer=adamw(lr=1e-4)), pool=ResourcePool("main"))
    with Pipeline("halves", steps=1) as step:
        batch = prompts(data="zoo:larger", batch_size=4, n=cfg.n)
        rollout = generate(actor, batch, max_new_tokens=4)
        advantage = grpo_advantage(rollout, halved(verify(batch, rollout)))
        update_policy(actor, rollout, old_logprob(actor, rollout), advantage, loss=ppo_clip() + 0.5 * pull())
    return step
"""
ENTRIES = """[dagrl.plugins]
halves = acme_rl.pipeline
one = acme_rl.nodes:halved
losses = acme_rl.losses
gone = acme_rl.gone
number = acme_rl.pipeline:NUMBER
empty = acme_rl.empty
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH in which a package is installed."""
    package = tmp_path / "site" / "acme_rl"
    package.mkdir(parents=True)
    texts = {"__init__": "", "nodes": NODES, "losses": LOSSES, "pipeline": PIPELINE + "\nNUMBER = 3\n", "empty": ""}
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    info = tmp_path / "site" / "acme_rl-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-rl\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    return tmp_path / "site"


def dagrl(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), str(ROOT)])}
    return subprocess.run(
        [sys.executable, "-m", "dagrl.cli", *arguments],
        cwd=installed.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_nodes_losses_and_pipelines_are_listed_with_their_origin_and_broken_ones_are_named(installed: Path) -> None:
    done = dagrl(installed, "nodes")
    assert done.returncode == 0, done.stderr
    assert "\nhalved  node, from acme-rl 1.2\n    Half of each reward.\n" in done.stdout
    pull = "\npull  loss, from acme-rl 1.2\n    How far each log-prob has moved.\n    reads    new_logprobs, "
    assert pull in done.stdout
    assert "    options  power=2\n" in done.stdout.partition("\npull  loss")[2]
    assert done.stdout.count("\npull  loss") == 1
    assert "\nhalves  pipeline, from acme-rl 1.2\n    dagrl run halves  (pipeline.py)\n" in done.stdout
    gone = "gone  skipped, from acme-rl 1.2\n    `acme_rl.gone` does not load: ModuleNotFoundError: No module named"
    assert gone in done.stdout
    assert "number  skipped, from acme-rl 1.2\n    `acme_rl.pipeline:NUMBER` is a int, no module" in done.stdout
    assert "empty  skipped, from acme-rl 1.2\n    `acme_rl.empty` has no node, loss or `build`" in done.stdout
    assert done.stdout.count("\nhalved  node") == 1
    assert done.stdout.count("\ngrpo_advantage  node, dagrl.nodes") == 1
    assert "grpo_advantage  node, from" not in done.stdout


def test_a_published_pipeline_is_planned_and_run_by_its_name(installed: Path) -> None:
    planned = dagrl(installed, "plan", "halves", "--set", "n=4")
    assert planned.returncode == 0, planned.stderr
    assert "halved  (pipeline.py:" in planned.stdout
    done = dagrl(installed, "run", "halves", "--executor", "local", "--ui", "lines", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert (installed.parent / "run" / "model").is_dir()


def test_a_name_that_is_not_there_or_broken(installed: Path) -> None:
    missing = dagrl(installed, "plan", "halfes")
    assert missing.returncode == 2
    names = "`empty`, `gone`, `halves`, `losses`, `number`, `one`"
    assert f"e.g. pipelines/grpo.py, or the name of a published one: {names}" in missing.stderr
    broken = dagrl(installed, "plan", "gone")
    assert broken.returncode == 2
    assert "`gone`, published by acme-rl 1.2, is broken: `acme_rl.gone` does not load" in broken.stderr


def test_a_name_that_two_packages_publish_is_no_pipeline(installed: Path) -> None:
    other = installed / "other-3.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 3.0\n")
    (other / "entry_points.txt").write_text("[dagrl.plugins]\nhalves = acme_rl.pipeline\n")
    done = dagrl(installed, "plan", "halves")
    assert done.returncode == 2
    assert "`halves`, published by acme-rl 1.2, other 3.0, is broken: several packages publish this name" in done.stderr


def one_node(name: str, imports: str = "") -> str:
    """The text of a module with a node, and what else it imports."""
    return NODES.replace("halved", name).replace("from dagrl.nodes import grpo_advantage", imports or "import os")


def test_packages_that_share_a_namespace_are_told_apart(tmp_path: Path) -> None:
    """What a module imports from another distribution of its namespace, or from beside it, is told with its origin."""
    site = tmp_path / "site"
    imports = "from shared.second.nodes import of_second\nfrom shared.loose import loose"
    modules = {
        "first/nodes": one_node("of_first", imports),
        "second/nodes": one_node("of_second"),
        "loose": one_node("loose"),
    }
    for path, text in modules.items():
        (site / "shared" / path).parent.mkdir(parents=True, exist_ok=True)
        (site / "shared" / f"{path}.py").write_text(text)
    for name in ("first", "second"):
        (site / "shared" / name / "__init__.py").touch()
        info = site / f"shared_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: shared-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[dagrl.plugins]\n{name} = shared.{name}.nodes\n")
    (site / "shared_first-1.0.dist-info" / "RECORD").write_text("shared/first/nodes.py,,\nshared/loose.py,,\n")
    done = dagrl(site, "nodes")
    assert done.returncode == 0, done.stderr
    assert "\nof_first  node, from shared-first 1.0\n" in done.stdout
    assert "\nof_second  node, from shared-second 1.0\n" in done.stdout
    assert "\nloose  node, from shared-first 1.0\n" in done.stdout
    assert done.stdout.count("of_second  node") == 1
