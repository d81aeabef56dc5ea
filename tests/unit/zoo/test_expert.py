"""The packaged teacher: the start model after GRPO, with the same tokenizer and config."""

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from dagrl.zoo import make_tiny, model_folder, open_task
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
