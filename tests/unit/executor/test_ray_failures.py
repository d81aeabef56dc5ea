"""What becomes of a run on Ray when a node raises, dies or hangs on one rank: a clear end, in seconds, nobody left."""

import logging
import os
import signal
import time
from collections.abc import Iterator

import psutil
import pytest
import torch
from jaxtyping import Int64
from torch import Tensor

from dagrl import Metrics, Objects, Pipeline, Progress, Sum, WorkerGroup, node, policy
from dagrl.compiler import compile_pipelines
from dagrl.errors import NodeError, WorkerError, WorkerLostError
from dagrl.executor.events import Event, MemoryUsed, OpPrinted, OpProgressed
from dagrl.executor.layout import SourceRows
from dagrl.executor.ray import RayExecutor, RayRuntime
from dagrl.graph.specs import ResourcePool
from dagrl.nodes import generate, prompts
from dagrl.workers.deployment import Planned

#: Seconds within which the driver knows.
LIMIT = 10.0


class Stubborn(Exception):
    """An exception that cannot be pickled, and whose message can be read."""

    def __init__(self) -> None:
        super().__init__("the lock is stuck")
        self.lock = open(os.devnull)  # noqa: SIM115

    def __reduce__(self):
        raise TypeError("no way")


def read_a_book() -> None:
    progress = Progress(8, "chapters")
    for _ in range(8):
        time.sleep(0.25)
        progress.advance()


@node()
def misbehave(response_text: Objects[str], group_ids: Int64[Tensor, " B"], *, how: str) -> Metrics:
    """Does it on the rank that holds group 3."""
    if 3 in group_ids.tolist():
        match how:
            case "raise":
                print("about to raise")
                raise ValueError("group 3 is broken")
            case "chat":
                print("group 3 says hello")
                logging.getLogger("chatty").warning("and warns")
                read_a_book()
            case "refuse":
                raise NodeError("group 3 is refused")
            case "unpicklable":
                raise Stubborn
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(7)
            case "leave":
                raise SystemExit(3)
            case "sleep":
                time.sleep(600)
            case _:
                pass
    return Metrics({"rows": Sum(float(len(group_ids)))})


@pytest.fixture
def runtime(ray_session: object) -> RayRuntime:
    return RayRuntime(deadline=5.0)


@pytest.fixture
def started(runtime: RayRuntime) -> Iterator[list[RayExecutor]]:
    executors: list[RayExecutor] = []
    yield executors
    for executor in executors:
        executor.close()


def start(runtime: RayRuntime, how: str, started: list[RayExecutor]) -> tuple[RayExecutor, Planned]:
    """Two ranks, groups 0 and 1 on the first, 2 and 3 on the second."""
    group = WorkerGroup("actor", policy("zoo:tiny"), pool=ResourcePool("main", [2]))
    with Pipeline("p") as pipeline:
        batch = prompts(data="zoo:larger", batch_size=4, n=2)
        misbehave(generate(group, batch, max_new_tokens=2), how=how)
    planned = Planned(pipeline, compile_pipelines([pipeline], runtime.machine)[0])
    executor = runtime.start([planned], seed=0, total_steps=1)
    started.append(executor)
    return executor, planned


def run(executor: RayExecutor, planned: Planned) -> Metrics:
    return executor.run(planned, 1, {"prompts": SourceRows(torch.arange(4), torch.arange(4))})


def pids(executor: RayExecutor) -> list[int]:
    return [seat.pid for on in executor.site.sets for seat in on.group.seats]


def test_a_node_that_behaves_runs_on_both_ranks(runtime: RayRuntime, started: list[RayExecutor]) -> None:
    assert run(*start(runtime, "behave", started))["rows"] == Sum(8.0)


def test_what_a_node_tells_while_it_runs_reaches_the_driver(runtime: RayRuntime, started: list[RayExecutor]) -> None:
    executor, planned = start(runtime, "chat", started)
    events: list[Event] = []
    executor.subscribe(events.append)
    run(executor, planned)
    told = [event for event in events if isinstance(event, OpProgressed) and event.op == "misbehave"]
    assert len(told) >= 2
    assert {(event.step, event.rank, event.total, event.unit) for event in told} == {(1, 1, 8, "chapters")}
    assert [event.done for event in told] == sorted({event.done for event in told})
    (memory,) = [event for event in events if isinstance(event, MemoryUsed)]
    assert [(rank.weights > 0, rank.optimizer, rank.used > rank.weights) for rank in memory.ranks] == [
        (True, 0, True)
    ] * 2
    printed = [(event.op, event.rank, event.text) for event in events if isinstance(event, OpPrinted)]
    assert printed == [("misbehave", 1, "group 3 says hello\nand warns\n")]


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("raise", WorkerError, "ValueError: group 3 is broken"),
        pytest.param("refuse", NodeError, "group 3 is refused", marks=pytest.mark.long),
        ("unpicklable", WorkerError, "Stubborn: the lock is stuck"),
        ("kill", WorkerLostError, "killed by signal 9"),
        pytest.param("exit", WorkerLostError, "exit code 7", marks=pytest.mark.long),
        pytest.param("leave", NodeError, r"sys.exit\(3\) was called", marks=pytest.mark.long),
        ("sleep", NodeError, "it has run for 5 s"),
    ],
)
def test_one_rank_that_misbehaves_ends_the_run_in_seconds_and_leaves_no_process(
    runtime: RayRuntime, started: list[RayExecutor], how: str, kind: type[Exception], said: str
) -> None:
    executor, planned = start(runtime, how, started)
    ranks = pids(executor)
    began = time.monotonic()
    with pytest.raises(kind, match=said) as caught:
        run(executor, planned)
    assert time.monotonic() - began < LIMIT + (5.0 if how == "sleep" else 0.0)
    told = "\n".join([str(caught.value), *caught.value.__notes__])
    assert "in node `misbehave` (test_ray_failures.py:" in told
    assert "of pipeline `p`, step 1" in told
    assert "rank 1" in told
    assert "main" in told
    assert "127.0.0.1" in told
    assert ("before that it printed:\nabout to raise" in told) == (how == "raise")
    executor.close()
    end = time.monotonic() + LIMIT
    while time.monotonic() < end and any(map(psutil.pid_exists, ranks)):
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, ranks))


@pytest.mark.long
def test_the_session_goes_on_after_a_failure(runtime: RayRuntime, started: list[RayExecutor]) -> None:
    for _ in range(2):
        executor, planned = start(runtime, "raise", started)
        with pytest.raises(WorkerError):
            run(executor, planned)
        executor.close()
    assert run(*start(runtime, "behave", started))["rows"] == Sum(8.0)
