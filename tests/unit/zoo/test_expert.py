"""The packaged teacher: the start model after GRPO, with the same tokenizer and config; how each model is made."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

import dagrl.zoo
from dagrl.zoo import make_expert, make_tiny, model_folder, open_task
from dagrl.zoo.larger import HARD


def test_it_answers_nearly_all_held_out_hard_pairs() -> None:
    folder = model_folder("expert")
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = [row for row in open_task("larger", "test") if row.data_source == HARD]
    ids = make_tiny.encode(AutoTokenizer.from_pretrained(folder), rows)
    assert make_tiny.greedy_accuracy(model, ids) > 0.98


def test_it_differs_from_the_start_model_in_its_weights_alone() -> None:
    tiny, expert = (model_folder(name) for name in ("tiny", "expert"))
    assert {path.name for path in tiny.iterdir()} == {path.name for path in expert.iterdir()}
    for path in tiny.iterdir():
        same = path.read_bytes() == (expert / path.name).read_bytes()
        assert same == (path.name != "model.safetensors"), path.name


def test_the_script_writes_the_packaged_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a run whose model has the packaged weights."""
    shutil.copytree(model_folder("expert"), tmp_path / "run" / "model")
    make_expert.make(tmp_path / "run", tmp_path / "made")
    for path in model_folder("expert").iterdir():
        assert (tmp_path / "made" / path.name).read_bytes() == path.read_bytes(), path.name
    assert "larger/hard: held-out greedy accuracy 0.99" in capsys.readouterr().out


def test_a_run_without_a_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["make_expert", "--run", str(tmp_path), "--out", str(tmp_path / "made")])
    with pytest.raises(SystemExit) as ended:
        make_expert.main()
    assert ended.value.code == 2
    assert f"{tmp_path} holds no model" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_every_packaged_model_has_a_command_that_makes_it() -> None:
    folders = {path.parent.name for path in Path(dagrl.zoo.__file__).parent.glob("*/config.json")}
    assert folders == {"expert", "tiny"}
    for name in folders:
        assert find_spec(f"dagrl.zoo.make_{name}") is not None
        assert f"``python -m dagrl.zoo.make_{name} " in (dagrl.zoo.__doc__ or "")
