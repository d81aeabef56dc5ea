"""Rollout engines in a pipeline: what a policy takes, what planning refuses, and what the plan says."""

import sys

import pytest

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy, server, vllm
from dagrl.compiler import Machine, compile_pipelines
from dagrl.compiler.before_run import check_before_run
from dagrl.compiler.machine import LOCAL
from dagrl.errors import CompileError, PipelineFileError
from dagrl.nodes import (
    generate,
    grpo_advantage,
    old_logprob,
    ppo_clip,
    prompts,
    report,
    update_policy,
    verify,
)  # fmt: skip


def judged(rollout, **options) -> list[Pipeline]:
    """An actor answers and is judged; a second group only scores."""
    actor = WorkerGroup("actor", policy("zoo:tiny", rollout=rollout), pool=ResourcePool("main", [0]))
    with Pipeline("judged") as step:
        batch = prompts(data="zoo:larger", batch_size=4, n=2)
        report(verify(batch, generate(actor, batch, max_new_tokens=4, **options)))
    return [step]


def refused(pipelines, machine=LOCAL) -> list[tuple[str, str | None]]:
    with pytest.raises(CompileError) as caught:
        compile_pipelines(pipelines, machine)
    return [(problem.what, problem.fix) for problem in caught.value.problems]


@pytest.mark.parametrize(("rollout", "engine"), [("vllm", "vllm"), (vllm(), "vllm"), ("hf", "hf")])
def test_the_plan_says_by_what_each_group_generates(rollout, engine):
    (plan,) = compile_pipelines(judged(rollout))
    assert [group.rollout for group in plan.groups] == [engine]


def test_what_a_policy_takes():
    assert policy("zoo:tiny").rollout.engine == "hf"
    assert policy("zoo:tiny", rollout=vllm(tensor_parallel=2)).rollout.tensor_parallel == 2
    assert policy("zoo:tiny", rollout=server(["http://a/v1"])).rollout.urls == ("http://a/v1",)
    assert "secret" not in repr(server(["http://a/v1"], api_key="secret"))


@pytest.mark.parametrize(("value", "message"), [("sglang", "rollout='sglang'"), (3, "rollout=3"), ("server", "which")])
def test_what_is_no_engine_is_refused_where_it_stands(value, message):
    with pytest.raises(PipelineFileError, match=message):
        policy("zoo:tiny", rollout=value)


@pytest.mark.parametrize(
    ("rollout", "what"),
    [
        (vllm(tensor_parallel=0), "`vllm` got tensor_parallel=0."),
        (vllm(kv_cache_gib=-1.0), "`vllm` got kv_cache_gib=-1.0."),
        (vllm(kv_cache_gib=float("nan")), "`vllm` got `kv_cache_gib=nan`: it is not a number."),
        (vllm(max_model_len=1), "`vllm` got max_model_len=1."),
        (vllm(max_model_len=2.5), "`vllm` got `max_model_len=2.5`: it should be a valid integer."),
        (server([]), "`server` got no urls."),
        (server(["host:8000"]), "`server` got the url 'host:8000'."),
        (server(["http://a/v1", "http://a/v1"]), "`server` got the url 'http://a/v1' twice."),
        (server(["http://:8000/v1"]), "`server` got the url 'http://:8000/v1'."),
        (server(["http://a:port/v1"]), "`server` got the url 'http://a:port/v1'."),
        (server(["http://" + 64 * "a"]), f"`server` got the url 'http://{64 * 'a'}'."),
        (server(["http://a/v1"], api_key="a\nb"), "`server` got an `api_key` that no HTTP header can carry."),
        (vllm(max_model_len=2**63), f"`vllm` got `max_model_len={2**63}`: it is beyond the range of int64."),
        (server(["http://a/v1"], concurrency=0), "`server` got concurrency=0."),
        (server(["http://a/v1"], timeout_s=0.0), "`server` got timeout_s=0.0."),
    ],
)
def test_options_that_no_engine_has_are_refused(rollout, what):
    ((found, fix),) = refused(judged(rollout))
    assert found == what
    assert fix


def test_weights_that_change_need_a_way_to_the_servers():
    def learning(**options) -> list[Pipeline]:
        spec = policy("zoo:tiny", optimizer=adamw(lr=1e-4), rollout=server(["http://a/v1"], **options))
        actor = WorkerGroup("actor", spec, pool=ResourcePool("main", [1]))
        with Pipeline("learning") as step:
            batch = prompts(data="zoo:larger", batch_size=4, n=2)
            rows = generate(actor, batch, max_new_tokens=4)
            advantages = grpo_advantage(rows, verify(batch, rows))
            update_policy(actor, rows, advantages, old_logprob(actor, rows), loss=ppo_clip(eps=0.2))
        return [step]

    ((what, fix),) = refused(learning())
    assert "the weights of worker group `actor` change" in what
    assert fix is not None
    assert "weights_folder=" in fix
    assert compile_pipelines(learning(weights_folder="/shared"))
    assert compile_pipelines(judged(server(["http://a/v1"])))


@pytest.mark.parametrize(
    ("wanted", "processes", "what"),
    [
        (2, (1,), "`vllm` got tensor_parallel=2, but worker group `actor` has 1 process."),
        (4, (2,), "`vllm` got tensor_parallel=4, but worker group `actor` has 2 processes."),
        (2, (3,), "`vllm` got tensor_parallel=2, but worker group `actor` has 3 processes."),
        (4, (2, 2), "`vllm` got tensor_parallel=4, but worker group `actor` has 4 processes (2 + 2 by node)."),
        (2, (4, 2), None),
        (1, (3,), None),
    ],
)
def test_engines_over_more_processes_than_there_are(wanted, processes, what):
    pipelines = judged(vllm(tensor_parallel=wanted))
    machine = Machine("ray", processes)
    if what is None:
        assert compile_pipelines(pipelines, machine)
    else:
        assert [found for found, _ in refused(pipelines, machine)] == [what]


@pytest.mark.parametrize(("temperature", "fine"), [(2.0, True), (0.01, True), (2.1, False), (0.001, False)])
def test_temperatures_that_vllm_does_not_draw_at(temperature, fine):
    pipelines = judged("vllm", temperature=temperature)
    if fine:
        assert compile_pipelines(pipelines)
    else:
        ((what, fix),) = refused(pipelines)
        assert f"`temperature` is {temperature}, and vllm draws at 0 or from 0.01 to 2.0" in what
        assert fix is not None
        assert 'rollout="hf"' in fix
    assert compile_pipelines(judged("hf", temperature=temperature))


def test_servers_draw_at_the_temperatures_of_vllm():
    ((what, _),) = refused(judged(server(["http://a/v1"]), temperature=2.1))
    assert "vllm draws at 0 or from 0.01 to 2.0" in what


def test_an_empty_stop_text_is_refused():
    ((what, _),) = refused(judged("hf", stop=("", "x")))
    assert "`stop` holds an empty text" in what


def test_vllm_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    pipelines = judged("vllm")
    plans = compile_pipelines(pipelines)
    check_before_run(pipelines, plans)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(CompileError) as caught:
        check_before_run(pipelines, plans)
    (problem, *others) = caught.value.problems
    assert not others
    assert problem.what == "worker group `actor` generates with vllm, which is not installed."
    assert problem.fix is not None
    assert "dagrl[vllm]" in problem.fix
    assert problem.at is not None
    assert problem.at.file == __file__
