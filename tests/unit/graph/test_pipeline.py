"""Recording: names, edges, groups and options become a graph; faults are kept, each at its line."""

from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

from dagrl import Edge, Metrics, Pipeline, ResourcePool, WorkerGroup, node, policy
from dagrl.errors import PipelineFileError, Problem
from dagrl.graph.pipeline import Origin, active_pipeline, recorded_pipelines
from dagrl.nodes import generate, old_logprob, prompts, verify


@dataclass(frozen=True)
class Running:
    mean: float = 0.0


@node(split="batch")
def follow(rewards: Float32[Tensor, " B"], *, state: Running) -> Running: ...


@node()
def watch(rewards: Float32[Tensor, " B"], baseline: Float32[Tensor, " B"] | None = None) -> Metrics: ...


POOL = ResourcePool("main")
ACTOR = WorkerGroup("actor", policy("zoo:tiny"), pool=POOL)
OTHER = WorkerGroup("other", policy("zoo:tiny"), pool=POOL)


def batch_of(**options) -> Edge:
    return prompts(data="zoo:larger", batch_size=4, **options)


def problem_of(pipeline: Pipeline) -> Problem:
    (problem,) = pipeline.problems
    assert problem.at is not None
    assert problem.at.file == __file__
    assert problem.fix
    return problem


def test_calls_edges_and_groups_are_recorded_in_order() -> None:
    with Pipeline("p") as p:
        assert active_pipeline() is p
        batch = batch_of()
        rollout = generate(ACTOR, batch, max_new_tokens=4)
        rewards = verify(batch, rollout)
        watch(rewards)
    assert active_pipeline() is None
    assert [call.name for call in p.calls] == ["prompts", "generate", "verify", "watch"]
    assert [call.index for call in p.calls] == [0, 1, 2, 3]
    assert set(p.graph.edges) == {
        ("prompts", "generate"), ("prompts", "verify"), ("generate", "verify"), ("verify", "watch"),
    }  # fmt: skip
    assert p.call("generate").group == ACTOR
    assert p.call("generate").options == {
        "max_new_tokens": 4, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_prompt_tokens": None,
        "overlong_prompts": "error", "stop": (),
    }  # fmt: skip
    assert p.call("verify").origins("response_text") == (Origin("generate", "response_text"),)
    assert p.call("verify").origins("nothing") == ()
    assert p.problems == []
    assert set(rewards.columns) == {"rewards"}


def test_names_default_to_the_function_and_count_up() -> None:
    with Pipeline("p") as p:
        batch = batch_of()
        names = [generate(ACTOR, batch, max_new_tokens=1).call for _ in range(3)]
        named = generate(ACTOR, batch, max_new_tokens=1, name="greedy")
    assert names == ["generate", "generate#2", "generate#3"]
    assert named.call == "greedy"
    assert p.problems == []


def test_equal_explicit_names_are_reported_with_the_other_place() -> None:
    with Pipeline("p") as p:
        batch = batch_of(name="data")
        first = p.call("data").at
        again = batch_of(name="data")
    assert "two calls are named `data`" in problem_of(p).what
    assert str(first) in problem_of(p).what
    assert batch.call != again.call


@pytest.mark.parametrize("name", ["", 3, "two words", "a/b", "free:x", "a#2"])
def test_what_is_no_name(name: object) -> None:
    with Pipeline("p") as p:
        assert batch_of(name=name).call == "prompts"
    assert "which is no name" in problem_of(p).what


def test_only_and_rename() -> None:
    with Pipeline("p") as p:
        batch = batch_of()
        rewards = verify(batch, generate(ACTOR, batch, max_new_tokens=1))
        assert dict(batch.only("answers").columns) == {"answers": "answers"}
        renamed = rewards.rename(rewards="baseline")
        assert dict(renamed.columns) == {"baseline": "rewards"}
        assert dict(batch.rename(answers="messages", messages="answers").columns) == {
            "messages": "answers", "answers": "messages", "data_source": "data_source", "row_fields": "row_fields",
        }  # fmt: skip
        watch(rewards, renamed)
    assert p.problems == []
    assert p.call("watch").origins("baseline") == (Origin("verify", "rewards"),)
    assert dict(rewards.columns) == {"rewards": "rewards"}


def test_unknown_columns_of_an_edge_name_the_nearest() -> None:
    with Pipeline("p") as p:
        batch = batch_of()
        assert dict(batch.only("answer").columns) == {}
        batch.rename(mesages="text")
    only, rename = p.problems
    assert "`only` names `answer`" in only.what
    assert only.fix == "did you mean `answers`?"
    assert "`rename` names `mesages`" in rename.what
    assert rename.fix == "did you mean `messages`?"
    assert only.at != rename.at


def test_rename_onto_a_column_of_the_edge() -> None:
    with Pipeline("p") as p:
        batch_of().rename(answers="messages")
    assert "two columns of `prompts` one name: `messages`" in problem_of(p).what


def test_an_edge_of_another_pipeline() -> None:
    with Pipeline("p"):
        batch = batch_of()
    with Pipeline("q") as q:
        generate(ACTOR, batch, max_new_tokens=1)
    assert problem_of(q).what == "`generate` was passed an edge of pipeline `p`."
    assert q.call("generate").inputs == ()


@pytest.mark.parametrize(
    ("thing", "named"), [(torch.zeros(2), "a Tensor"), (3, "an int"), (None, "a NoneType"), ([1], "a list")]
)
def test_values_inside_a_pipeline(thing: object, named: str) -> None:
    with Pipeline("p") as p:
        watch(thing)
    assert f"was passed {named} inside pipeline `p`" in problem_of(p).what


def test_a_node_given_an_edge_outside_any_pipeline() -> None:
    with Pipeline("p"):
        batch = batch_of()
    with pytest.raises(PipelineFileError, match="no pipeline is open here"):
        verify(batch)
    with pytest.raises(PipelineFileError, match="no pipeline is open here"):
        verify(answers=batch)


def test_nesting_is_an_error_and_leaves_the_outer_closed_afterwards() -> None:
    with pytest.raises(PipelineFileError, match="`inner` is opened inside pipeline `outer`"), Pipeline("outer"):
        Pipeline("inner").__enter__()
    assert active_pipeline() is None


def test_an_exception_closes_the_pipeline() -> None:
    with pytest.raises(ZeroDivisionError), Pipeline("p"):
        1 / 0
    assert active_pipeline() is None


def test_missing_group_two_groups_and_a_group_too_many() -> None:
    with Pipeline("p") as p:
        batch = batch_of()
        generate(batch, max_new_tokens=1)
        old_logprob(ACTOR, OTHER)
        verify(ACTOR, batch)
    none, two, needless = p.problems
    assert none.what == "`generate` runs on one worker group (`actor: Policy`), got none."
    assert two.what.endswith("got `actor`, `other`.")
    assert needless.what == "`verify` runs on no model, but was passed worker group `actor`."
    assert needless.fix == "drop `actor` from the call"
    assert p.call("generate").group is None
    assert p.call("verify").group is None


def test_edges_and_groups_by_keyword() -> None:
    with Pipeline("p") as p:
        batch = batch_of()
        generate(ACTOR, messages=batch, max_new_tokens=1)
        watch(rewards=batch)
        verify(ACTOR, answers=5)
    assert "`generate` was passed `messages=` by keyword." in [problem.what for problem in p.problems]
    assert "`watch` was passed `rewards=` by keyword." in [problem.what for problem in p.problems]
    assert "`verify` was passed `answers=` by keyword." in [problem.what for problem in p.problems]
    assert all("by position" in (problem.fix or "") for problem in p.problems if "keyword" in problem.what)


def test_wrong_options_come_all_at_once() -> None:
    with Pipeline("p") as p:
        generate(ACTOR, batch_of(), temprature=0.5, temperature="hot", wanted={"x"})
    whats = [problem.what for problem in p.problems]
    assert whats == [
        "`generate` has no option `temprature`.",
        "`generate` got `temperature='hot'`: it should be a valid number.",
        "`generate` has no option `wanted`.",
        "`generate` needs the option `max_new_tokens`.",
    ]
    assert [problem.fix for problem in p.problems] == [
        "did you mean `temperature`?",
        "pass `temperature` as float",
        "known: `max_new_tokens`, `max_prompt_tokens`, `overlong_prompts`, `stop`, `temperature`, `top_k`, `top_p`",
        "pass `max_new_tokens=...` to `generate`",
    ]


def test_state_is_given_in_the_call() -> None:
    with Pipeline("p") as p:
        rewards = verify(batch_of())
        follow(rewards, state=Running(1.0))
    assert p.problems == []
    assert p.call("follow").state == Running(1.0)
    assert p.call("follow").options == {}


@pytest.mark.parametrize("state", [{}, {"state": 3}, {"state": Running}])
def test_state_that_is_missing_or_of_another_type(state: dict[str, object]) -> None:
    with Pipeline("p") as p:
        follow(verify(batch_of()), **state)
    assert "`follow` keeps state" in problem_of(p).what
    assert problem_of(p).fix == "pass its first value: `state=Running(...)`"


def test_an_edge_is_not_data() -> None:
    with Pipeline("p"):
        batch = batch_of()
    with pytest.raises(AttributeError, match="compute with them in a @node"):
        batch.messages
    with pytest.raises(TypeError, match="cannot be unpacked"):
        _, _ = batch
    assert len({batch, batch.only("answers"), batch.only("answers")}) == 2


def test_recorded_pipelines_survive_an_exception() -> None:
    def fail() -> None:
        with Pipeline("p"):
            batch_of(name="")
            raise ZeroDivisionError

    with recorded_pipelines() as opened, pytest.raises(ZeroDivisionError):
        fail()
    assert [pipeline.name for pipeline in opened] == ["p"]
    assert len(opened[0].problems) == 1


def test_a_call_for_a_pipeline_outside_of_one_says_so() -> None:
    with pytest.raises(TypeError, match=r"prompts\(\) missing a required argument: 'positions': no pipeline is open"):
        prompts(data="zoo:larger", batch_size=4)
    with pytest.raises(PipelineFileError, match="`generate` was given a worker group, but no pipeline is open here"):
        generate(ACTOR, max_new_tokens=4)
