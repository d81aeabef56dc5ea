"""The packaged start model: it loads offline, speaks the task's format, and is what its script makes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from dagrl.zoo import make_tiny, model_folder, open_task
from dagrl.zoo.larger import EASY, HARD

TINY = model_folder("tiny")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(TINY)


def test_every_character_is_a_token_and_comes_back(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer(make_tiny.CHARACTERS, add_special_tokens=False)["input_ids"]
    assert ids == list(range(4, 82))
    assert tokenizer.decode(ids) == make_tiny.CHARACTERS


def test_special_tokens_and_padding_side(tokenizer: PreTrainedTokenizerFast) -> None:
    special = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    assert special == (0, 1, 2, 3)
    assert tokenizer.padding_side == "left"
    assert tokenizer("é#")["input_ids"] == [3, 3]


def test_chat_template_adds_bos_and_the_equals_sign(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [{"role": "user", "content": "347 352"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<bos>347 352="
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert len(ids) == 9
    assert tokenizer.decode(ids[1:]) == "347 352="


def test_prompts_are_padded_on_the_left(tokenizer: PreTrainedTokenizerFast) -> None:
    padded = tokenizer(["1=", "123="], padding=True)
    assert padded["input_ids"][0][:2] == [0, 0]
    assert padded["attention_mask"] == [[0, 0, 1, 1], [1, 1, 1, 1]]


def test_the_files_are_small_and_tidy() -> None:
    names = {path.name for path in TINY.iterdir()}
    assert names == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(path.stat().st_size for path in TINY.iterdir()) < 2_000_000
    for path in TINY.glob("*.json"):
        text = path.read_text()
        assert text == json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"


def test_the_model_loads_offline_in_bfloat16() -> None:
    code = (
        "from transformers import AutoModelForCausalLM as M; import sys;"
        "m = M.from_pretrained(sys.argv[1]);"
        "print(m.dtype, sum(p.numel() for p in m.parameters()), m.generation_config.eos_token_id)"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code, str(TINY)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert shown.stdout.split() == ["torch.bfloat16", "789888", "2"]


def test_greedy_accuracy_on_held_out_pairs_leaves_room_to_learn(tokenizer: PreTrainedTokenizerFast) -> None:
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    test = list(open_task("larger", "test"))
    accuracy = {
        stratum: make_tiny.greedy_accuracy(
            model, make_tiny.encode(tokenizer, [row for row in test if row.data_source == stratum])
        )
        for stratum in (EASY, HARD)
    }
    assert 0.8 < accuracy[EASY] < 0.95
    assert accuracy[HARD] < 0.45


def test_the_script_writes_the_packaged_files_and_the_same_weights_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_tiny, "STEPS", 2)
    for name in ("first", "second"):
        make_tiny.make(tmp_path / name, seed=1)
    first, second = (tmp_path / name / "model.safetensors" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    for path in TINY.glob("*.json"):
        assert (tmp_path / "first" / path.name).read_text() == path.read_text()
