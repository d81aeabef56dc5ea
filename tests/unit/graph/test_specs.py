"""Specs and calls know the user's line, however they are written."""

import inspect
from typing import Any

import pytest
from jaxtyping import Float32
from torch import Tensor

from dagrl import Edge, Metrics, Pipeline, ResourcePool, WorkerGroup, adamw, node, policy
from dagrl.errors import Location, PipelineFileError
from dagrl.graph.models import locate_model, model_fault
from dagrl.graph.options import nearest, type_fault
from dagrl.graph.specs import ModelSpec
from dagrl.nodes import ppo_clip, prompts

SPEC = policy("zoo:tiny")
POOL = ResourcePool("main")


def here(offset: int = 0) -> Location:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return Location(__file__, frame.f_back.f_lineno + offset)


def test_specs_keep_their_line() -> None:
    pool, line = ResourcePool("main", [1]), here()
    assert pool.at == line
    spec, line = policy("zoo:tiny"), here()
    assert spec.at == line
    group, line = WorkerGroup("actor", spec, pool=pool), here()
    assert group.at == line
    pipeline, line = Pipeline("p"), here()
    assert pipeline.at == line


def test_a_call_over_several_lines_is_at_its_first() -> None:
    with Pipeline("p") as p:
        line = here(1)
        prompts(
            data="zoo:larger",
            batch_size=4,
        )
    assert p.call("prompts").at == line


def helper() -> tuple[Edge, Location]:
    return prompts(data="zoo:larger", batch_size=4), here()


def test_a_call_in_a_helper_is_at_the_helpers_line() -> None:
    with Pipeline("p") as p:
        edge, line = helper()
    assert p.call(edge.call).at == line


def test_a_declaration_and_a_bound_loss_know_their_line() -> None:
    line = here(2)

    @node()
    def watch(rewards: Float32[Tensor, " B"]) -> Metrics: ...

    assert watch.contract.at == line
    term, line = ppo_clip().terms[0], here()
    assert term.at == line


def test_where_something_stands_does_not_make_it_different() -> None:
    first = ResourcePool("main", [1])
    second = ResourcePool("main", (1,))
    assert first == second
    assert hash(first) == hash(second)
    assert policy("zoo:tiny") == policy("zoo:tiny")
    assert policy("zoo:tiny") != policy("zoo:tiny", precision="fp32")


def test_pools_count_processes() -> None:
    assert ResourcePool("main").num_processes == 0
    assert ResourcePool("main", [8, 4]).num_processes == 12
    with pytest.raises(PipelineFileError, match="process_on_nodes=8"):
        ResourcePool("main", 8)


def test_a_group_takes_a_policy_and_a_pool() -> None:
    with pytest.raises(PipelineFileError, match=r"model='zoo:tiny', which is no ModelSpec") as error:
        WorkerGroup("actor", "zoo:tiny", pool=ResourcePool("main"))
    assert "test_specs.py" in str(error.value)
    with pytest.raises(PipelineFileError, match="pool='main', which is no ResourcePool"):
        WorkerGroup("actor", policy("zoo:tiny"), pool="main")


def test_policy_and_adamw_are_plain_data() -> None:
    spec = policy("m", optimizer=adamw(lr=0.1, warmup=3), precision="fp32", micro_batch_tokens=5, dropout=True)
    assert isinstance(spec, ModelSpec)
    assert (spec.model, spec.precision, spec.micro_batch_tokens, spec.dropout) == ("m", "fp32", 5, True)
    assert spec.optimizer is not None
    assert (spec.optimizer.lr, spec.optimizer.warmup, spec.optimizer.decay) == (0.1, 3, "constant")
    assert policy("m").optimizer is None


def test_a_location_is_relative_to_the_working_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(Location(str(tmp_path / "a" / "b.py"), 3)) == "a/b.py:3"
    assert str(Location("/elsewhere/b.py", 3)) == "/elsewhere/b.py:3"


class Own: ...


@pytest.mark.parametrize(
    ("value", "annotation", "fine"),
    [
        (1, int, True), (True, int, False), ("1", int, False), (1, float, True), (True, float, False),
        (1.5, int, False), (None, float | None, True), (None, float, False), (Own(), Own, True),
        (Own(), Own | None, True),
        (1, Own | None, False), (None, Own | None, True), ([Own()], list[Own], True), ([1], list[Own], False),
        ((1, 2.0), tuple[float, float], True), ([1, 2.0], tuple[float, float], False), ("x", object, True),
        (float("nan"), float, False), (float("nan"), Any, False), (float("inf"), float, True),
        (1e39, float, False), (-1e39, float, False), (3e38, float, True), (2**63, int, False), (-(2**63), int, True),
        ((1.0, float("inf")), tuple[float, ...], False), ((1.0, float("nan")), tuple[float, ...], False),
        ([2**63], list[int], False), ({"a": 1e39}, Any, False), ((1.0, 2.0), tuple[float, ...], True),
    ],
)  # fmt: skip
def test_option_types_are_checked_strictly(value: object, annotation: object, fine: bool) -> None:
    assert (type_fault(value, annotation) is None) == fine


def test_nearest() -> None:
    assert nearest("temprature", ["temperature", "top_p"]) == "temperature"
    assert nearest("zzz", ["temperature", "top_p"]) is None


def test_model_references(tmp_path) -> None:
    assert model_fault("zoo:tiny") is None
    assert model_fault("owner/name") is None
    assert model_fault("name") is None
    assert "empty" in model_fault("")[0]
    assert "no model named `tiyn`" in model_fault("zoo:tiyn")[0]
    assert "no model folder" in model_fault(str(tmp_path / "gone"))[0]
    assert "no config.json" in model_fault(str(tmp_path))[0]
    (tmp_path / "config.json").write_text("{}")
    assert "no weights" in model_fault(str(tmp_path))[0]
    (tmp_path / "model.safetensors").touch()
    assert model_fault(str(tmp_path)) is None
    assert locate_model(str(tmp_path)) == str(tmp_path)
    assert locate_model("owner/name") == "owner/name"


@pytest.mark.parametrize("name", ["/abs/path", "../out", "a,b", "", ".hidden", "-dash", None, 3, ["a"], "a b"])
def test_names_that_could_be_paths_or_break_messages_are_refused(name) -> None:
    for make in (lambda: ResourcePool(name), lambda: Pipeline(name), lambda: WorkerGroup(name, SPEC, pool=POOL)):
        with pytest.raises(PipelineFileError, match="is named"):
            make()


def test_betas_may_be_a_list() -> None:
    assert adamw(lr=1.0, betas=[0.9, 0.99]).betas == (0.9, 0.99)  # type: ignore[arg-type]
