"""Loading, saving and what a model's configs say of its tokens."""

import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from families import write_family
from safetensors import safe_open
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from dagrl.engines.model_saving import save_model
from dagrl.engines.model_tokens import context_length, pad_token_id, stop_token_ids
from dagrl.engines.models import keep_score_cap, load_model, load_tokenizer
from dagrl.errors import ConfigError
from dagrl.zoo import model_folder

WORDS = ["<pad>", "<bos>", "<eos>", "<unk>", *(f"w{number}" for number in range(46))]
VOCAB = len(WORDS)


def build_tokenizer(**special):
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = special or {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **special)


def build_llama(**changes):
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "max_position_embeddings": 40}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **heads, **changes}))


def build_gpt2(**changes):
    sizes = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24}
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**{**sizes, "bos_token_id": 1, "eos_token_id": 2, **changes}))


def load(folder, dtype=torch.float32, attention="eager"):
    return load_model(str(folder), dtype=dtype, attn_implementation=attention)


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "models" / "tiny"
    save_model(build_llama(), build_tokenizer(), folder, dtype=torch.float32)
    return folder


@pytest.mark.parametrize("build", [build_llama, build_gpt2, lambda: build_llama(tie_word_embeddings=True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_model_comes_back(tmp_path, build, dtype):
    model = build()
    save_model(model, build_tokenizer(), tmp_path / "m", dtype=dtype)
    again = load(tmp_path / "m", dtype=torch.float32)
    assert not again.training
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value.to(dtype).float()), name
    assert json.loads((tmp_path / "m" / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    with safe_open(tmp_path / "m" / "model.safetensors", "pt") as file:
        names = list(file.keys())
        assert {file.get_tensor(name).dtype for name in names} == {dtype}
    assert ("lm_head.weight" in names) == (not model.config.tie_word_embeddings)
    tokenizer = load_tokenizer(str(tmp_path / "m"))
    assert tokenizer.encode("w3 w5", add_special_tokens=False) == [7, 9]
    assert tokenizer.eos_token_id == 2


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_loading_takes_dtype_and_attention(saved, attention):
    model = load(saved, dtype=torch.bfloat16, attention=attention)
    assert model.dtype == torch.bfloat16
    assert model.config._attn_implementation == attention


def test_saving_leaves_the_model_as_it_is(tmp_path):
    model = build_gpt2()
    config, generation = model.config.to_dict(), model.generation_config.to_dict()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = [id(parameter) for parameter in model.parameters()]
    save_model(model, build_tokenizer(), tmp_path / "m", dtype=torch.bfloat16)
    assert model.config.to_dict() == config
    assert model.generation_config.to_dict() == generation
    assert [id(parameter) for parameter in model.parameters()] == parameters
    for name, value in model.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, weights[name])


def test_generation_config_survives_as_it_was(tmp_path):
    model = build_llama()
    model.generation_config.eos_token_id = [2, 5]
    model.generation_config.temperature = 0.6  # transformers loads this without do_sample, but does not save it
    save_model(model, build_tokenizer(), tmp_path / "m", dtype=torch.float32)
    generation = load(tmp_path / "m").generation_config
    assert generation.eos_token_id == [2, 5]
    assert generation.temperature == 0.6


def test_saving_replaces_a_folder_and_leaves_nothing_else(saved):
    (saved / "stale.txt").write_text("old")
    model = build_gpt2()
    save_model(model, build_tokenizer(), saved, dtype=torch.float32)
    assert not (saved / "stale.txt").exists()
    assert load(saved).config.model_type == "gpt2"
    assert [path.name for path in saved.parent.iterdir()] == ["tiny"]


def test_a_save_that_fails_leaves_the_old_folder(saved, monkeypatch):
    tokenizer = build_tokenizer()

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(tokenizer, "save_pretrained", fail)
    with pytest.raises(OSError, match="disk full"):
        save_model(build_gpt2(), tokenizer, saved, dtype=torch.float32)
    assert load(saved).config.model_type == "llama"
    with pytest.raises(OSError, match="disk full"):
        save_model(build_gpt2(), tokenizer, saved.parent / "new", dtype=torch.float32)
    assert [path.name for path in saved.parent.iterdir()] == ["tiny"]


def test_loading_and_saving_say_nothing(saved, capfd):
    logging.set_verbosity_warning()
    logging.enable_progress_bar()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, tokenizer = load(saved), load_tokenizer(str(saved))
        save_model(model, tokenizer, saved.parent / "copy", dtype=torch.bfloat16)
        with pytest.raises(ConfigError):
            load(without_weights(saved, "layers.1"))
    assert capfd.readouterr() == ("", "")
    assert not caught
    assert logging.get_verbosity() == logging.WARNING
    assert logging.is_progress_bar_enabled()


def without_weights(folder, part):
    """The folder with the weights whose names hold ``part`` taken out."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    save_file({name: value for name, value in weights.items() if part not in name}, folder / "model.safetensors")
    return folder


def refusal(call):
    with pytest.raises(ConfigError) as caught:
        call()
    assert len(caught.value.problems) == 1
    problem = caught.value.problems[0]
    assert problem.fix
    return problem.what, dict(problem.facts), problem.fix


@pytest.mark.parametrize("reference", ["/nowhere/at/all", "./nowhere", "a/b/c", ""])
def test_a_missing_folder(reference):
    for kind, loader in (("model", load), ("tokenizer", load_tokenizer)):
        what, facts, fix = refusal(lambda loader=loader: loader(reference))
        assert what == f"there is no {kind} folder"
        assert facts[kind] == repr(reference)
        assert "check the path" in fix


def test_a_folder_without_config(tmp_path):
    what, facts, _ = refusal(lambda: load(tmp_path))
    assert what == "the model folder has no config.json"
    assert facts["model"] == repr(str(tmp_path))


def test_a_file_instead_of_a_folder(saved):
    what, _, fix = refusal(lambda: load(saved / "config.json"))
    assert what == "the model must be a folder, not a file"
    assert "folder that holds the file" in fix


@pytest.mark.parametrize("keep", [0, 5, 1000])
def test_corrupt_weights(saved, keep):
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    what, facts, fix = refusal(lambda: load(saved))
    assert what == "the model cannot be loaded"
    assert facts["model"] == repr(str(saved))
    assert "Safetensor" in facts["cause"]
    assert "complete copy" in fix


@pytest.mark.parametrize("text", ["{", '{"model_type": "no-such-type"}', "{}"])
def test_a_config_that_cannot_be_read(saved, text):
    (saved / "config.json").write_text(text)
    what, facts, _ = refusal(lambda: load(saved))
    assert what == "the model cannot be loaded"
    assert facts["cause"]


def test_absent_weights(saved):
    (saved / "model.safetensors").unlink()
    assert refusal(lambda: load(saved))[0] == "the model cannot be loaded"


def test_weights_that_would_be_filled_in_at_random(saved):
    what, facts, _ = refusal(lambda: load(without_weights(saved, "layers.1")))
    assert what == "the weights do not fill the model that config.json describes"
    assert "model.layers.1.input_layernorm.weight" in facts["missing"]
    assert "6 more" in facts["missing"]


def test_weights_of_another_shape(saved):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "vocab_size": VOCAB + 8}))
    _, facts, _ = refusal(lambda: load(saved))
    assert f"model.embed_tokens.weight: ({VOCAB}, 32) for ({VOCAB + 8}, 32)" in facts["shapes"]


@pytest.mark.parametrize("attention", ["no-such-attention"])
def test_an_attention_that_is_not_there(saved, attention):
    _, _, fix = refusal(lambda: load(saved, attention=attention))
    assert "attn_implementation" in fix


def test_an_unknown_hub_name_offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for kind, loader in (("model", load), ("tokenizer", load_tokenizer)):
        what, facts, fix = refusal(lambda loader=loader: loader("nobody/no-such-model"))
        assert what == f"the {kind} cannot be loaded"
        assert facts[kind] == "'nobody/no-such-model'"
        assert "connection" in fix


def test_a_folder_without_tokenizer(saved, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (saved / name).unlink()
    assert refusal(lambda: load_tokenizer(str(saved)))[0] == "the tokenizer cannot be loaded"
    (tmp_path / "shell").mkdir()
    (tmp_path / "shell" / "config.json").write_text('{"model_type": "gpt2"}')
    assert "no vocabulary" in refusal(lambda: load_tokenizer(str(tmp_path / "shell")))[1]["cause"]


def test_stop_tokens_come_from_the_generation_config_first():
    model, tokenizer = build_llama(eos_token_id=4), build_tokenizer()
    model.generation_config.eos_token_id = 5
    assert stop_token_ids(model, tokenizer) == {5}
    model.generation_config.eos_token_id = [5, 6]
    assert stop_token_ids(model, tokenizer) == {5, 6}
    model.generation_config.eos_token_id = None
    assert stop_token_ids(model, tokenizer) == {4, 2}
    model.config.eos_token_id = None
    assert stop_token_ids(model, tokenizer) == {2}
    model.config.eos_token_id = [8, 9]
    assert stop_token_ids(model, build_tokenizer(unk_token="<unk>")) == {8, 9}


def test_stop_tokens_outside_the_vocabulary_do_not_count():
    model = build_gpt2(eos_token_id=50256)
    assert stop_token_ids(model, build_tokenizer()) == {2}
    what, facts, fix = refusal(lambda: stop_token_ids(model, build_tokenizer(unk_token="<unk>")))
    assert what == "no token of the model's vocabulary ends a response"
    assert facts["vocabulary"] == f"{VOCAB} tokens"
    assert "eos_token" in fix


def test_pad_tokens_in_their_order():
    bare = build_tokenizer(unk_token="<unk>")
    model = build_llama(eos_token_id=4, pad_token_id=7)
    model.generation_config.pad_token_id = 6
    assert pad_token_id(model, build_tokenizer()) == 0
    assert pad_token_id(model, bare) == 6
    model.generation_config.pad_token_id = None
    assert pad_token_id(model, bare) == 7
    model.config.pad_token_id = -1
    assert pad_token_id(model, build_tokenizer(eos_token="<eos>")) == 2
    model.generation_config.eos_token_id = [8, 9]
    assert pad_token_id(model, bare) == 8
    model.generation_config.eos_token_id = None
    assert pad_token_id(model, bare) == 4
    model.config.eos_token_id = None
    assert "can fill padding" in refusal(lambda: pad_token_id(model, bare))[0]


def test_context_length():
    assert context_length(build_llama()) == 40
    assert context_length(build_gpt2()) == 24


def test_no_bound_where_the_model_has_no_positions():
    from transformers import BloomConfig, BloomForCausalLM

    config = BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=1, n_head=4)
    assert context_length(BloomForCausalLM(config)) is None


def test_weights_of_more_layers_than_the_config_says_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder("tiny"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2, "layer_types": None}))
    with pytest.raises(ConfigError, match="more layers"):
        load_model(str(folder), dtype=torch.float32, attn_implementation="eager")


def test_token_ids_that_are_no_numbers_are_a_mistake(tmp_path: Path) -> None:
    model = load_model(str(model_folder("tiny")), dtype=torch.float32, attn_implementation="eager")
    tokenizer = load_tokenizer(str(model_folder("tiny")))
    model.generation_config.eos_token_id = ["x"]
    with pytest.raises(ConfigError, match="token ids are"):
        stop_token_ids(model, tokenizer)


def test_saved_files_are_as_open_as_other_new_files(tmp_path: Path) -> None:
    model = load_model(str(model_folder("tiny")), dtype=torch.float32, attn_implementation="eager")
    save_model(model, load_tokenizer(str(model_folder("tiny"))), tmp_path / "out", dtype=torch.bfloat16)
    (tmp_path / "plain").write_text("")
    usual = (tmp_path / "plain").stat().st_mode
    assert {file.stat().st_mode for file in (tmp_path / "out").iterdir()} == {usual}


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_attention_that_caps_its_scores_is_computed_with_the_cap(tmp_path: Path, name: str) -> None:
    folder = write_family(name, tmp_path / "model")
    written, fused = (
        load_model(folder, dtype=torch.float32, attn_implementation=kind).requires_grad_(False)
        for kind in ("eager", "sdpa")
    )
    keep_score_cap(fused)
    ids = torch.arange(3, 33)[None]
    torch.testing.assert_close(fused(input_ids=ids).logits, written(input_ids=ids).logits, atol=1e-4, rtol=0)
    assert fused.config._attn_implementation == ("eager" if name == "gemma2" else "sdpa")
