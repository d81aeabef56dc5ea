"""How several processes hold a model: as the policy says, or by the size of its weights."""

import json
from pathlib import Path

import pytest

from dagrl import ResourcePool, WorkerGroup, adamw, policy
from dagrl.cli.plan_text import plan_text
from dagrl.compiler import Machine, compile_pipelines
from dagrl.compiler.parallel import REPLICATE_BYTES, parallel_strategy

FOUR = Machine("some", (2, 2), 16)
#: The most bytes of weight files that a trained model may have to be held whole.
LARGEST = REPLICATE_BYTES // 8


def folder(path: Path, **sizes: int) -> str:
    """A model folder with weight files of these sizes; they hold no byte on disk."""
    path.mkdir()
    (path / "config.json").write_text("{}")
    for name, size in sizes.items():
        with (path / name.replace("_", ".", 1)).open("wb") as file:
            file.truncate(size)
    return str(path)


def strategy(model: str, *, trains: bool = True, pool: tuple[int, ...] = (0,), machine=FOUR, **options: str) -> str:
    spec = policy(model, optimizer=adamw(lr=1e-3) if trains else None, **options)
    return parallel_strategy(WorkerGroup("actor", spec, pool=ResourcePool("main", pool)), machine)


def test_one_process_needs_no_strategy() -> None:
    assert strategy("zoo:tiny", pool=(1,)) == "none"
    assert strategy("zoo:tiny", machine=Machine("local", (1,))) == "none"
    assert strategy("zoo:tiny", pool=(1,), parallel="fsdp") == "none"


def test_a_small_model_is_whole_in_each_process() -> None:
    assert strategy("zoo:tiny") == "replicate"
    assert strategy("zoo:tiny", pool=(2,), machine=Machine("some", (1,), 16)) == "replicate"


def test_a_model_that_is_not_here_counts_as_large() -> None:
    assert strategy("owner/name") == "fsdp"


@pytest.mark.parametrize(
    ("sizes", "trains", "expected"),
    [
        ({"a_safetensors": LARGEST}, True, "replicate"),
        ({"a_safetensors": LARGEST + 2}, True, "fsdp"),
        ({"a_safetensors": LARGEST, "b_safetensors": 2}, True, "fsdp"),
        ({"a_safetensors": 4 * LARGEST}, False, "replicate"),
        ({"a_safetensors": 4 * LARGEST + 2}, False, "fsdp"),
        ({"a_safetensors": LARGEST, "c_txt": LARGEST}, True, "replicate"),
    ],
)
def test_size_decides(tmp_path: Path, sizes: dict[str, int], trains: bool, expected: str) -> None:
    assert strategy(folder(tmp_path / "model", **sizes), trains=trains) == expected


def test_weights_of_torch_count_too(tmp_path: Path) -> None:
    path = Path(folder(tmp_path / "model"))
    with (path / "pytorch_model.bin").open("wb") as file:
        file.truncate(LARGEST + 2)
    assert strategy(str(path)) == "fsdp"


@pytest.mark.parametrize("chosen", ["replicate", "fsdp"])
def test_the_policys_word_goes_before_size(tmp_path: Path, chosen: str) -> None:
    assert strategy("zoo:tiny", parallel=chosen) == chosen
    assert strategy(folder(tmp_path / "model", a_safetensors=9 * LARGEST), parallel=chosen) == chosen


def test_the_plan_shows_it_as_json_and_text(toy) -> None:
    plans = {machine: compile_pipelines([toy.update()], machine)[0] for machine in (FOUR, Machine("local", (1,)))}
    assert [json.loads(plan.to_json())["groups"][0]["parallel"] for plan in plans.values()] == ["replicate", "none"]
    lines = [plan_text(plan).split("\n")[1] for plan in plans.values()]
    assert lines[0] == lines[1].replace(", rollout", ", whole in each process (replicate), rollout")
