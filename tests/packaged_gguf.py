"""A made-up installed package that holds a tiny GGUF model: what `pypi:NAME` leads to."""

from pathlib import Path

import numpy as np
import pytest

from dagrl.graph.packaged import _gguf_files

NAME = "tiny-gguf"
LAYERS, WIDTH, HEADS, KV_HEADS, HIDDEN = 2, 64, 4, 2, 96
CONTEXT = 64
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}="
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def vocabulary() -> list[str]:
    """The special tokens, all bytes as byte-level BPE spells them, and two merged tokens."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return [*SPECIAL, *bytes_to_unicode().values(), "12", "ab"]


def prepare_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on ``sys.path`` for packages, and a cache of the test's own that nothing has been converted to."""
    monkeypatch.setenv("DAGRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    _gguf_files.cache_clear()
    return tmp_path / "site"


def install(site: Path, *, template: bool = True, files: int = 1) -> None:
    """Write the package and what pip notes of it into a folder for ``sys.path``."""
    package = site / "tiny_gguf"
    package.mkdir(parents=True)
    names = [f"model-{number}.gguf" for number in range(files)]
    for name in names:
        write_gguf(package / name, template=template)
    notes = site / "tiny_gguf-1.5.dist-info"
    notes.mkdir()
    (notes / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.5\n")
    (notes / "RECORD").write_text("".join(f"tiny_gguf/{name},,\n" for name in names))


def write_gguf(file: Path, *, template: bool) -> None:
    """A Llama with random weights, tied to its embeddings."""
    from gguf import GGUFWriter

    tokens = vocabulary()
    writer = GGUFWriter(str(file), "llama")
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["1 2", "a b"])
    for add, token in ((writer.add_bos_token_id, 1), (writer.add_eos_token_id, 2), (writer.add_pad_token_id, 2)):
        add(token)
    if template:
        writer.add_chat_template(TEMPLATE)
    draw = np.random.default_rng(0)
    for name, shape in shapes(len(tokens)).items():
        writer.add_tensor(name, (draw.standard_normal(shape) * 0.1 + (len(shape) == 1)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def shapes(num_tokens: int) -> dict[str, tuple[int, ...]]:
    """The tensors by llama.cpp's names."""
    keys = WIDTH // HEADS * KV_HEADS
    of_layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "attn_q": (WIDTH, WIDTH), "attn_k": (keys, WIDTH),
        "attn_v": (keys, WIDTH), "attn_output": (WIDTH, WIDTH), "ffn_gate": (HIDDEN, WIDTH),
        "ffn_up": (HIDDEN, WIDTH), "ffn_down": (WIDTH, HIDDEN),
    }  # fmt: skip
    layers = {f"blk.{n}.{name}.weight": shape for n in range(LAYERS) for name, shape in of_layer.items()}
    return {"token_embd.weight": (num_tokens, WIDTH), "output_norm.weight": (WIDTH,), **layers}
