"""What the files of a model folder say against it, told before anything is loaded."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from packaged_gguf import CONTEXT, NAME, install, prepare_site

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy, reward_model, vllm
from dagrl.compiler import compile_pipelines
from dagrl.data.rows import open_rows
from dagrl.errors import CompileError, ConfigError
from dagrl.graph.model_files import context_length
from dagrl.graph.models import head_fault, local_folder
from dagrl.nodes import generate, prompts, report, short_prompts, verify
from dagrl.nodes.reward_model import reward_model_score
from dagrl.workers.policy import PolicyWorker
from dagrl.zoo import model_folder

POOL = ResourcePool("main", [1])
HUB_NAME = "owner/name"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the packaged model to spoil."""
    return Path(shutil.copytree(model_folder("tiny"), tmp_path / "model"))


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of `owner/name`, to spoil, as Hugging Face caches them: links to blobs, one revision named `main`."""
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HUGGINGFACE_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    cache = tmp_path / "home" / "hub" / "models--owner--name"
    files = Path(shutil.copytree(model_folder("tiny"), cache / "snapshots" / "abc"))
    (cache / "blobs").mkdir()
    for file in list(files.iterdir()):
        file.symlink_to(file.rename(cache / "blobs" / file.name))
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    return files


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A packaged model that has not been converted."""
    pytest.importorskip("gguf")
    install(prepare_site(tmp_path, monkeypatch))
    return f"pypi:{NAME}"


def edit(file: Path, change: Callable[[dict], object]) -> None:
    held = json.loads(file.read_text())
    change(held)
    file.write_text(json.dumps(held))


def problems(folder: Path | str, *, data: str = "zoo:larger", filtered: bool = False, **options) -> str:
    """What is said against generating from the model, its own line aside."""
    with Pipeline("p") as pipeline:
        actor = WorkerGroup("actor", policy(str(folder), **options), pool=POOL)
        batch = prompts(data=data, batch_size=1)
        kept = [short_prompts(actor, batch, max_prompt_tokens=100)] if filtered else []
        report(batch, verify(batch, generate(actor, batch, *kept, max_new_tokens=4)))
    try:
        compile_pipelines([pipeline])
    except CompileError as error:
        return str(error)
    return ""


def test_a_sound_folder_is_fine(folder: Path) -> None:
    assert problems(folder) == ""


def test_a_model_without_chat_template_cannot_read_messages(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    said = problems(folder)
    assert "has no chat template" in said
    assert "`policy(..., chat_template=)`" in said
    assert problems(folder, chat_template="{{ messages[0]['content'] }}=") == ""
    edit(folder / "tokenizer_config.json", lambda held: held.update(chat_template="{{ messages }}"))
    assert problems(folder) == ""


def test_a_reward_model_needs_a_template_too(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    edit(folder / "config.json", lambda held: held.update(
        architectures=["LlamaForSequenceClassification"], id2label={"0": "score"}))  # fmt: skip
    with Pipeline("p") as pipeline:
        judge = WorkerGroup("judge", reward_model(str(folder)), pool=POOL)
        batch = prompts(data="zoo:larger", batch_size=1)
        report(reward_model_score(judge, batch, batch.rename(answers="response_text").only("response_text")))
    with pytest.raises(CompileError, match=r"`reward_model\(..., chat_template=\)`"):
        compile_pipelines([pipeline])


def drop_token(folder: Path, *names: str) -> None:
    for file in ("config.json", "generation_config.json", "tokenizer_config.json"):
        edit(folder / file, lambda held: [held.pop(key, None) for name in names for key in (name, f"{name}_id")])


def test_a_tokenizer_without_pad_token_pads_with_the_end_token(folder: Path) -> None:
    drop_token(folder, "pad_token")
    assert problems(folder) == ""
    worker = PolicyWorker(WorkerGroup("actor", policy(str(folder)), pool=POOL), total_steps=1, rollout=False)
    assert worker.pad_token_id == worker.tokenizer.eos_token_id


def test_without_a_token_that_ends_a_response_it_is_refused(folder: Path) -> None:
    drop_token(folder, "pad_token", "eos_token")
    assert "names a token that ends a response" in problems(folder)
    assert problems(folder, stop_tokens=["5"]) == ""


def test_pickled_weights_are_refused_unless_allowed(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    weights = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert "holds its weights as pickles (pytorch_model.bin)" in problems(folder)
    assert problems(folder, allow_pickle=True) == ""
    assert problems(folder, from_scratch=True, parallel="replicate") == ""
    group = WorkerGroup("actor", policy(str(folder)), pool=POOL)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        PolicyWorker(group, total_steps=1, rollout=False)
    allowed = WorkerGroup("actor", policy(str(folder), allow_pickle=True), pool=POOL)
    assert PolicyWorker(allowed, total_steps=1, rollout=False).weight_bytes > 0


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_of_the_folders_own_is_refused_unless_allowed(folder: Path, file: str) -> None:
    edit(folder / file, lambda held: held.update(auto_map={"AutoConfig": "configuration_own.OwnConfig"}))
    assert f"brings Python code of its own (`auto_map` in {file})" in problems(folder)
    assert problems(folder, trust_remote_code=True) == ""


def test_code_of_the_folders_own_runs_when_it_is_trusted(folder: Path) -> None:
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    edit(folder / "config.json", lambda held: held.update(model_type="own", auto_map=own))
    (folder / "own.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
        "class OwnForCausalLM(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    spec = policy(str(folder), trust_remote_code=True)
    worker = PolicyWorker(WorkerGroup("actor", spec, pool=POOL), total_steps=1, rollout=False)
    assert type(worker.model).__name__ == "OwnForCausalLM"
    trained = WorkerGroup("actor", replace(spec, optimizer=adamw(lr=1e-4)), pool=POOL)
    hollow = PolicyWorker(WorkerGroup("sampler", spec, pool=POOL, follows=trained), total_steps=1, rollout=False)
    assert type(hollow.model).__name__ == "OwnForCausalLM"
    assert hollow.weight_bytes == 0
    refused = WorkerGroup("sampler", policy(str(folder)), pool=POOL, follows=trained)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        PolicyWorker(refused, total_steps=1, rollout=False)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        PolicyWorker(WorkerGroup("actor", policy(str(folder)), pool=POOL), total_steps=1, rollout=False)


def rows(folder: Path, *prompts_: str) -> str:
    file = folder.parent / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": text, "answer": "1"}) + "\n" for text in prompts_))
    return str(file)


def test_a_prompt_beyond_what_vllm_may_hold_is_found_before_the_run(folder: Path) -> None:
    data = rows(folder, "1 2", "7" * 60, "3")
    said = problems(folder, data=data, rollout=vllm(max_model_len=50))
    assert "no room for a response in a context of 50" in said
    assert problems(folder, data=data, rollout=vllm(max_model_len=100)) == ""
    assert problems(folder, data=data) == ""


def test_a_prompt_beyond_the_context_is_found_before_the_run(folder: Path) -> None:
    assert context_length(str(folder)) == 128
    data = rows(folder, "1 2", "7" * 128, "3")
    said = problems(folder, data=data)
    assert "row 1 of the split `train`, has at least 128 tokens" in said
    assert "context of 128" in said
    assert problems(folder, data=rows(folder, "1 2", "7" * 127)) == ""


def test_prompts_that_are_dropped_do_not_count(folder: Path) -> None:
    assert problems(folder, data=rows(folder, "1 2", "7" * 128), filtered=True) == ""


def test_what_hugging_face_has_cached_is_read_like_a_folder(cached: Path) -> None:
    assert problems(HUB_NAME) == ""
    assert local_folder(HUB_NAME) == cached.resolve()
    assert local_folder("owner/other") is None
    (cached / "chat_template.jinja").unlink()
    assert "has no chat template" in problems(HUB_NAME)
    assert problems("owner/other") == ""


def test_cached_code_and_pickles_are_refused_unless_allowed(cached: Path) -> None:
    edit(cached / "config.json", lambda held: held.update(auto_map={"AutoConfig": "own.OwnConfig"}))
    (cached / "model.safetensors").rename(cached / "pytorch_model.bin")
    assert "brings Python code of its own" in problems(HUB_NAME)
    assert "holds its weights as pickles" in problems(HUB_NAME, trust_remote_code=True)
    assert problems(HUB_NAME, trust_remote_code=True, allow_pickle=True) == ""


def test_cached_tokens_and_context_are_read(cached: Path, folder: Path) -> None:
    assert "context of 128" in problems(HUB_NAME, data=rows(folder, "1 2", "7" * 128))
    drop_token(cached, "pad_token", "eos_token")
    assert "names a token that ends a response" in problems(HUB_NAME)


def test_a_cached_model_without_a_head_gives_no_score(cached: Path) -> None:
    assert "which has no head" in str(head_fault(HUB_NAME, new_head=False))
    assert head_fault("owner/other", new_head=False) is None


def test_a_packaged_model_without_a_head_gives_no_score(packaged: str) -> None:
    assert "is a causal language model, which has no head" in str(head_fault(packaged, new_head=False))
    assert head_fault(packaged, new_head=True) is None


def test_a_prompt_beyond_the_context_of_a_packaged_model_is_found_before_it_is_converted(
    packaged: str, folder: Path
) -> None:
    said = problems(packaged, data=rows(folder, "1 2", "7" * CONTEXT, "3"))
    assert f"row 1 of the split `train`, has at least {CONTEXT} tokens" in said
    assert problems(packaged, data=rows(folder, "1 2", "7" * (CONTEXT - 1))) == ""
    assert problems(packaged, data=rows(folder, "12" * (CONTEXT - 1))) == ""


def test_prompts_that_are_made_are_looked_at_too(folder: Path) -> None:
    rollout = vllm(max_model_len=7)
    assert "a prompt of `zoo:larger`, row 0" in problems(folder, rollout=rollout)
    assert problems(folder, rollout=vllm(max_model_len=8)) == ""


def test_a_task_whose_prompts_are_beyond_the_context_is_found_before_the_run(packaged: str) -> None:
    pytest.importorskip("reasoning_gym", exc_type=ImportError)
    data = "gym:chain_sum?min_terms=20&max_terms=40"
    longest = open_rows(data, "train").longest
    assert f"a prompt of `{data}`, row {longest} of the split `train`" in problems(packaged, data=data)
    assert problems(packaged, data=data, filtered=True) == ""
    sizes = [len(open_rows(data, "train")[index].messages[0]["content"]) for index in range(8)]
    assert longest == sizes.index(max(sizes)) != 0
