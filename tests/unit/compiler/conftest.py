"""Toy nodes for graphs of every shape, and short ways to compile and look at them."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import pytest
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import (
    LossColumns,
    LossTerms,
    Metrics,
    Objects,
    Pipeline,
    Policy,
    ResourcePool,
    WorkerGroup,
    adamw,
    loss,
    node,
    policy,
)
from dagrl.compiler import LOCAL, Plan, RunOp, compile_pipelines
from dagrl.errors import CompileError

Rows = Float32[Tensor, " B"]
Tokens = Float32[Tensor, "B T"]


@node(rows="source", writes="messages")
def source(
    positions: Int64[Tensor, " B"], *, data: str = "toy", split: str = "train", batch_size: int = 8, n: int = 2
) -> Objects[str]: ...


@node(needs="rollout", writes="tokens")
def draw(actor: Policy, messages: Objects[str]) -> Tokens: ...


@node(writes="rewards")
def judge(tokens: Tokens) -> Rows: ...


@node(writes="advantages")
def center(rewards: Rows) -> Rows: ...


@node(writes="old_logprobs", alias_of="new_logprobs")
def old(actor: Policy, tokens: Tokens) -> Tokens: ...


@node(writes="ref_logprobs")
def reference(ref: Policy, tokens: Tokens) -> Tokens: ...


@node(rows="filter")
def keep(rewards: Rows) -> Bool[Tensor, " B"]: ...


@node(mutates=True, split="minibatch")
def learn(
    actor: Policy,
    tokens: Tokens,
    columns: LossColumns,
    values: Tokens | None = None,
    *,
    loss: LossTerms,
    mini_batch_size: int = 0,
    epochs: int = 1,
    aliases: Mapping[str, str],
) -> Metrics: ...


@node(mutates=True)
def nudge(actor: Policy, tokens: Tokens) -> None: ...


@node()
def report(rewards: Rows, advantages: Rows | None = None) -> Metrics: ...


@node()
def watch(old_logprobs: Tokens) -> Metrics: ...


@loss()
def ratio(new_logprobs: Tokens, old_logprobs: Tokens, advantages: Rows) -> tuple[Tokens, Metrics]: ...


@loss()
def distance(new_logprobs: Tokens, ref_logprobs: Tokens) -> tuple[Tokens, Metrics]: ...


@loss()
def twice(new_logprobs: Tokens, older_logprobs: Tokens) -> tuple[Tokens, Metrics]: ...


POOL = ResourcePool("main")


def group(name: str, *, trains: bool = True, dropout: bool = False) -> WorkerGroup:
    optimizer = adamw(lr=0.1) if trains else None
    return WorkerGroup(name, policy("zoo:tiny", optimizer=optimizer, dropout=dropout), pool=POOL)


def plan_of(pipeline: Pipeline, *others: Pipeline) -> Plan:
    return compile_pipelines([pipeline, *others], LOCAL)[0]


def problems_of(*pipelines: Pipeline, machine=LOCAL) -> list[str]:
    with pytest.raises(CompileError) as error:
        compile_pipelines(pipelines, machine)
    assert all(problem.at is not None for problem in error.value.problems)
    return [problem.what for problem in error.value.problems]


def run_of(plan: Plan, call: str) -> RunOp:
    return next(op for op in plan.runs if op.call == call)


def ids(plan: Plan) -> list[str]:
    return [op.id for op in plan.ops]


def update(
    *, between: Callable[..., None] | None = None, dropout: bool = False, other_actor: bool = False, **options
) -> Pipeline:
    """An RL step of toys with an alias candidate; ``between`` adds calls between it and the update."""
    actor = group("actor", dropout=dropout)
    with Pipeline("toy") as step:
        batch = source()
        tokens = draw(actor, batch)
        advantages = center(judge(tokens))
        before = old(group("second") if other_actor else actor, tokens)
        if between is not None:
            between(actor, tokens, before)
        learn(actor, tokens, before, advantages, loss=ratio(), **options)
    return step


@pytest.fixture(scope="session")
def toy() -> SimpleNamespace:
    names = {name: value for name, value in globals().items() if not name.startswith("_")}
    return SimpleNamespace(**names)
