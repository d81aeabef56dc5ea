"""Runs on a cluster of several machines: raylets on this one, each with an address of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from killing import ENVIRONMENT, assert_equal_runs, forty_rows, start, wait_for
from support import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
#: As text 127.0.0.10 comes before 127.0.0.9, as numbers after it.
IPS = ("127.0.0.8", "127.0.0.10", "127.0.0.9")

PIPELINE = '''
import time
from dataclasses import dataclass
from pathlib import Path

import ray
from jaxtyping import Float32
from torch import Tensor

from dagrl import Metrics, Objects, Pipeline, Policy, ResourcePool, Sum, WorkerGroup, adamw, node, policy
from dagrl.nodes import generate, grpo_advantage, old_logprob, ppo_clip, prompts, update_policy, verify

HOLD = Path(__file__).parent / "hold"


@node()
def where(actor: Policy, response_text: Objects[str]) -> Metrics:
    """Where each rank is, as a number: the last part of its address. While there is `HOLD`, the third step stays."""
    if HOLD.is_dir():
        calls = HOLD / str(actor.parallel.rank)
        with calls.open("a") as file:
            file.write(".")
        end = time.monotonic() + 60
        while calls.is_file() and calls.stat().st_size == 3 and time.monotonic() < end:
            time.sleep(0.01)
    last = int(ray.util.get_node_ip_address().rsplit(".", 1)[1])
    return Metrics({f"where/rank{actor.parallel.rank}": Sum(float(last))})


@dataclass(frozen=True, kw_only=True)
class Config:
    data: str = "zoo:larger"


def build(cfg: Config) -> Pipeline:
    pool = ResourcePool("main", process_on_nodes=[1, 1, 1])
    actor = WorkerGroup("actor", policy("zoo:tiny", optimizer=adamw(lr=1e-4), precision="fp32"), pool=pool)
    with Pipeline("spread", steps=4) as step:
        batch = prompts(data=cfg.data, batch_size=6, n=2)
        rollout = generate(actor, batch, max_new_tokens=4)
        where(actor, rollout)
        advantage = grpo_advantage(rollout, verify(batch, rollout))
        update_policy(actor, rollout, old_logprob(actor, rollout), advantage, loss=ppo_clip(eps=0.2))
    return step
'''


class ThreeMachines:
    """The cluster, in a process of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "cluster_host.py"), *IPS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "RAY_ENABLE_AUTO_CONNECT": "0"},
        )
        self.address = self._read()

    def order(self, what: str, ip: str) -> None:
        assert self._process.stdin is not None
        print(what, ip, file=self._process.stdin, flush=True)
        assert self._read() == "done"

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _read(self) -> str:
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline()) and not line.startswith(("127.", "done")):
            pass
        return line.strip()


@pytest.fixture
def machines() -> Iterator[ThreeMachines]:
    three = ThreeMachines()
    yield three
    three.close()


def line(folder: Path, machines: ThreeMachines, out: Path, *more: str) -> list[str]:
    (folder / "spread.py").write_text(PIPELINE)
    given = [
        "--executor",
        "ray",
        "--set",
        f"data={forty_rows(folder)}",
        "--address",
        machines.address,
        "--save-every",
        "1",
    ]
    return [sys.executable, "-m", "dagrl.cli", "run", str(folder / "spread.py"), *given, "--out", str(out), *more]


def ranks(out: Path) -> list[list[float]]:
    from dagrl.storage.segments import read_lines

    lines = read_lines(str(out), "metrics")
    return [[each[f"where/rank{rank}"] for rank in range(3)] for each in lines]


def test_a_run_spans_machines_and_outlives_the_loss_of_one(tmp_path: Path, machines: ThreeMachines) -> None:
    """Ranks are placed by address as a number, and on the same machines after a restart."""
    whole = subprocess.run(
        line(tmp_path, machines, tmp_path / "whole"), cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert whole.returncode == 0, whole.stderr
    assert ranks(tmp_path / "whole") == [[8.0, 9.0, 10.0]] * 4

    out, hold = tmp_path / "cut", tmp_path / "hold"
    hold.mkdir()
    process = start(line(tmp_path, machines, out))
    assert wait_for(process, out, lambda _: [file.stat().st_size for file in hold.iterdir()] == [3, 3, 3])
    machines.order("kill", "127.0.0.9")
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 1, errors
    shutil.rmtree(hold)
    assert "127.0.0.9" in errors
    assert "--resume auto" in errors

    machines.order("add", "127.0.0.9")
    again = subprocess.run(
        line(tmp_path, machines, out, "--resume", "auto"), cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    assert ranks(out) == [[8.0, 9.0, 10.0]] * 4
    assert_equal_runs(tmp_path / "whole", out)
