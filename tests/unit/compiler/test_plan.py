"""The plan is frozen data: its JSON is canonical and gives the same plan back; compiling is pure."""

import json
from dataclasses import FrozenInstanceError, replace

import pytest
from support import load_grpo

from dagrl.compiler import LOCAL, compile_pipelines, plan_from_dict


@pytest.mark.parametrize("values", [{}, {"kl": 0}, {"mini_batch_size": 8}], ids=["default", "no kl", "mini-batches"])
def test_json_round_trip(values: dict[str, object]) -> None:
    for plan in compile_pipelines(load_grpo(**values).pipelines):
        assert plan_from_dict(json.loads(plan.to_json())) == plan
        assert plan_from_dict(plan.to_dict()) == plan
        assert plan_from_dict(json.loads(plan.to_json())).to_json() == plan.to_json()


def test_json_is_canonical() -> None:
    plan = compile_pipelines(load_grpo().pipelines)[0]
    text = plan.to_json()
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False)
    assert json.loads(text)["format"] == 1
    assert {op["kind"] for op in json.loads(text)["ops"]} == {"run", "sync", "free"}


def test_compiling_twice_gives_the_same_plan_and_leaves_the_graph_alone(toy) -> None:
    step = toy.update()
    before = [(call.name, call.inputs, dict(call.given)) for call in step.calls]
    first, second = toy.plan_of(step), toy.plan_of(step)
    assert first == second
    assert first.to_json() == second.to_json()
    assert step.problems == []
    assert [(call.name, call.inputs, dict(call.given)) for call in step.calls] == before


def test_loading_a_file_twice_gives_the_same_plans() -> None:
    first, second = (compile_pipelines(load_grpo().pipelines) for _ in range(2))
    assert first == second


def test_a_plan_is_frozen(toy) -> None:
    plan = toy.plan_of(toy.update())
    with pytest.raises(FrozenInstanceError):
        plan.pipeline = "other"
    with pytest.raises(FrozenInstanceError):
        plan.ops[0].id = "other"
    assert replace(plan, pipeline="other") != plan


def test_groups_and_machine(toy) -> None:
    plan = toy.plan_of(toy.update(other_actor=True))
    assert plan.machine == LOCAL
    assert [(group.name, group.model, group.pool, group.trains, group.precision) for group in plan.groups] == [
        ("actor", "zoo:tiny", "main", True, "bf16"),
        ("second", "zoo:tiny", "main", True, "bf16"),
    ]
