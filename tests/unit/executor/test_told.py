"""What the executor tells of a walk beyond the start and end of ops: progress, samples, memory, tokens."""

import gc
import json
import time
import weakref

import pytest
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from dagrl import Objects, Pipeline, Policy, Progress, ResourcePool, WorkerGroup, adamw, node, policy
from dagrl.compiler import compile_pipelines
from dagrl.controller import ClassWithInitArgs, NaiveWorkerGroup
from dagrl.controller.resource_pool import ResourcePool as RuntimePool
from dagrl.executor.base import Executor
from dagrl.executor.events import (
    EVENTS,
    Event,
    MemoryUsed,
    OpFinished,
    OpProgressed,
    OpStarted,
    RowsSampled,
    event_from_dict,
)
from dagrl.executor.local import LocalExecutor, Planned, SourceRows
from dagrl.executor.process_sets import InProcessSet
from dagrl.nodes import generate, grpo_advantage, old_logprob, ppo_clip, prompts, report, update_policy, verify
from dagrl.storage.json_lines import json_line
from dagrl.workers.deployment import Deployment
from dagrl.workers.host import NodeHost


@node(writes="rewards")
def slow_score(group_ids: Int64[Tensor, " B"], response_text: Objects[str]) -> Float32[Tensor, " B"]:
    """Scores a row each quarter of a second, and says so."""
    progress = Progress(len(response_text))
    for _ in response_text:
        time.sleep(0.25)
        progress.advance()
    return group_ids.float()


@node(writes="rewards")
def scored_elsewhere(
    ref: Policy, messages: Objects[list[dict[str, str]]], response_text: Objects[str]
) -> Float32[Tensor, " B"]:
    """A score by another model."""
    return torch.arange(len(response_text)).float()


def events_of(pipeline: Pipeline, num_prompts: int) -> list[Event]:
    planned = Planned(pipeline, compile_pipelines([pipeline])[0])
    executor = LocalExecutor([planned], seed=0, total_steps=1)
    events: list[Event] = []
    executor.subscribe(events.append)
    executor.run(planned, 1, {"prompts": SourceRows(torch.arange(num_prompts), torch.arange(num_prompts))})
    executor.close()
    return events


def group(**options: object) -> WorkerGroup:
    return WorkerGroup("actor", policy("zoo:tiny", **options), pool=ResourcePool("main", [1]))


@pytest.fixture(scope="module")
def slow_walk() -> list[Event]:
    with Pipeline("p") as pipeline:
        batch = prompts(data="zoo:larger", batch_size=2, n=2)
        report(slow_score(generate(group(), batch, max_new_tokens=2)))
    return events_of(pipeline, 2)


def test_a_slow_op_tells_how_far_it_is_between_its_start_and_end(slow_walk: list[Event]) -> None:
    of_op = [event for event in slow_walk if isinstance(event, OpStarted | OpProgressed | OpFinished)]
    kinds = [type(event).__name__ for event in of_op if event.op == "slow_score"]
    assert kinds == ["OpStarted", "OpProgressed", "OpProgressed", "OpFinished"]
    told = [(each.rank, each.done, each.total, each.unit) for each in of_op if isinstance(each, OpProgressed)]
    assert told == [(0, 2, 4, "rows"), (0, 4, 4, "rows")]


def test_a_quick_op_tells_nothing_in_between(slow_walk: list[Event]) -> None:
    assert {event.op for event in slow_walk if isinstance(event, OpProgressed)} == {"slow_score"}


def test_scored_rows_are_sampled_with_their_prompts(slow_walk: list[Event]) -> None:
    (sampled,) = [event for event in slow_walk if isinstance(event, RowsSampled)]
    assert (sampled.op, sampled.step) == ("slow_score", 1)
    assert sorted(each.reward for each in sampled.samples if each.reward is not None) == [0.0, 0.0, 1.0, 1.0]
    assert all(each.prompt.split() and each.response for each in sampled.samples)
    assert len({each.prompt for each in sampled.samples}) == 2


def test_ops_that_write_tokens_say_how_many(slow_walk: list[Event]) -> None:
    tokens = {event.op: event.tokens for event in slow_walk if isinstance(event, OpFinished)}
    assert 4 <= tokens["generate"] <= 4 * 2  # four responses of at most two tokens, no prompts
    assert tokens["prompts"] == tokens["slow_score"] == 0


def test_what_is_held_is_told_once_for_each_pool(slow_walk: list[Event]) -> None:
    (memory,) = [event for event in slow_walk if isinstance(event, MemoryUsed)]
    (rank,) = memory.ranks
    assert memory.pool == "main"
    assert rank.optimizer == 0
    assert 0 < rank.columns < rank.weights < rank.used < rank.total


def test_memory_of_a_trained_model_counts_what_the_optimizer_keeps() -> None:
    with Pipeline("p") as pipeline:
        actor = group(optimizer=adamw(lr=1e-4), precision="fp32")
        batch = prompts(data="zoo:larger", batch_size=2, n=2)
        rollout = generate(actor, batch, max_new_tokens=2)
        advantage = grpo_advantage(rollout, verify(batch, rollout))
        update_policy(actor, rollout, old_logprob(actor, rollout), advantage, loss=ppo_clip(eps=0.2))
    planned = Planned(pipeline, compile_pipelines([pipeline])[0])
    executor = LocalExecutor([planned], seed=0, total_steps=2)
    events: list[Event] = []
    executor.subscribe(events.append)
    for step in (1, 2):
        executor.run(planned, step, {"prompts": SourceRows(torch.arange(2), torch.arange(2))})
    executor.close()
    ranks = [event.ranks[0] for event in events if isinstance(event, MemoryUsed)]
    parameters = sum(each.numel() for each in executor.host.models["actor"].model.parameters())
    assert ranks[-1].weights == 4 * parameters
    assert 8 * parameters <= ranks[-1].optimizer < 9 * parameters


def test_every_event_is_read_back_from_its_line(slow_walk: list[Event]) -> None:
    for event in slow_walk:
        assert event_from_dict(json.loads(json_line(event.to_dict()))) == event


def test_events_of_another_version_are_read_as_far_as_they_are_known() -> None:
    assert event_from_dict({"event": "Teleported", "at": 1.0}) is None
    line = {"event": "OpStarted", "at": 1.0, "pipeline": "p", "step": 2, "op": "verify", "mood": "good"}
    assert event_from_dict(line) == OpStarted(1.0, "p", 2, "verify")
    assert set(EVENTS) >= {"RunStarted", "RowsSampled", "RunFinished"}


def test_an_executor_that_nobody_holds_is_collected() -> None:
    with Pipeline("p") as pipeline:
        report(verify(batch := prompts(data="zoo:larger", batch_size=2), generate(group(), batch, max_new_tokens=1)))
    planned = Planned(pipeline, compile_pipelines([pipeline])[0])
    executor = LocalExecutor([planned], seed=0, total_steps=1)
    gone = weakref.ref(executor)
    del executor
    gc.collect()
    assert gone() is None


def test_texts_that_another_pool_has_written_are_shown_beside_the_score() -> None:
    with Pipeline("p") as pipeline:
        batch = prompts(data="zoo:larger", batch_size=2, n=2)
        writer, reader = (
            WorkerGroup(name, policy("zoo:tiny", precision="fp32"), pool=ResourcePool(name, [1]))
            for name in ("writer", "reader")
        )
        report(scored_elsewhere(reader, batch, generate(writer, batch, max_new_tokens=2)))
    planned = Planned(pipeline, compile_pipelines([pipeline])[0])
    deployment = Deployment((planned,), 0, 1)
    sets = {
        pool: InProcessSet(
            NaiveWorkerGroup(RuntimePool([1]), ClassWithInitArgs(NodeHost, deployment, pools=(pool,)), name_prefix=pool)
        )
        for pool in ("writer", "reader")
    }
    executor = Executor([planned], sets, seed=0, deadline=60.0)
    events: list[Event] = []
    executor.subscribe(events.append)
    executor.run(planned, 1, {"prompts": SourceRows(torch.arange(2), torch.arange(2))})
    executor.close()
    (sampled,) = [event for event in events if isinstance(event, RowsSampled)]
    assert all(sample.prompt and sample.reward is not None for sample in sampled.samples)
