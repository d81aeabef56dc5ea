"""Models on disk that number tokens alike, and those that do not."""

import json
from pathlib import Path
from typing import Any

import pytest
from packaged_gguf import NAME, install, prepare_site

from dagrl.graph.vocabularies import vocabulary_fault

WORDS = {"a": 0, "b": 1, "c": 2}


def folder(path: Path, vocabulary: Any = None, *, added: dict[str, int] | None = None, **config: Any) -> str:
    """A model's folder with a tokenizer, if it has words, and a config."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    if vocabulary is not None:
        tokens = [{"id": number, "content": token} for token, number in (added or {}).items()]
        text = json.dumps({"model": {"vocab": vocabulary}, "added_tokens": tokens})
        (path / "tokenizer.json").write_text(text, encoding="utf-8")
    return str(path)


def fault(tmp_path: Path, writer: dict[str, Any], reader: dict[str, Any]) -> str | None:
    return vocabulary_fault(folder(tmp_path / "writer", **writer), folder(tmp_path / "reader", **reader))


SOUND: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "equal": ({"vocabulary": WORDS, "vocab_size": 3}, {"vocabulary": WORDS, "vocab_size": 3}),
    "padded reader": ({"vocabulary": WORDS, "vocab_size": 3}, {"vocabulary": WORDS, "vocab_size": 64}),
    "padded writer": ({"vocabulary": WORDS, "vocab_size": 64}, {"vocabulary": WORDS, "vocab_size": 3}),
    "padded writer, reader without a tokenizer": ({"vocabulary": WORDS, "vocab_size": 64}, {"vocab_size": 3}),
    "more tokens in the reader": ({"vocabulary": WORDS}, {"vocabulary": WORDS, "added": {"d": 3}}),
    "unigram": ({"vocabulary": [["a", -1.5], ["b", -2.0], ["c", -3.0]]}, {"vocabulary": WORDS}),
    "added or not": ({"vocabulary": {"a": 0, "b": 1}, "added": {"c": 2}}, {"vocabulary": WORDS}),
    "a token that the reader only has a row for": (
        {"vocabulary": WORDS, "added": {"<tool>": 3}},
        {"vocabulary": WORDS, "vocab_size": 64},
    ),
    "two tokens of one id": ({"vocabulary": {"a": 0, "b": 0}}, {"vocabulary": {"a": 0, "b": 0}}),
    "no tokenizer": ({"vocab_size": 3}, {"vocab_size": 4}),
    "a part of several": ({"text_config": {"vocab_size": 3}}, {"vocab_size": 3}),
    "nothing said": ({}, {"vocab_size": 3}),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound(name: str, tmp_path: Path) -> None:
    assert fault(tmp_path, *SOUND[name]) is None


FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another id": ({"vocabulary": WORDS}, {"vocabulary": {"a": 0, "c": 1, "b": 2}}, "the token 'b' has the id 1 in"),
    "of as many tokens": (
        {"vocabulary": WORDS},
        {"vocabulary": {"a": 0, "x": 1, "c": 2}},
        "the id 1 is the token 'b' in",
    ),
    "a token without a row": (
        {"vocabulary": WORDS, "added": {"<tool>": 3}},
        {"vocabulary": WORDS, "vocab_size": 3},
        "has 4 token ids",
    ),
    "an added token": (
        {"vocabulary": WORDS, "added": {"<s>": 3}},
        {"vocabulary": WORDS, "added": {"<s>": 4}},
        "the token '<s>' has the id 3 in",
    ),
    "embedding too small": (
        {"vocabulary": WORDS, "vocab_size": 64},
        {"vocabulary": WORDS, "vocab_size": 2},
        "has 3 token ids, the embedding of",
    ),
    "embedding too small, no tokenizer there": ({"vocabulary": WORDS}, {"vocab_size": 2}, "has 3 token ids"),
    "embedding too small, by configs": ({"vocab_size": 64}, {"vocab_size": 63}, "has 64 token ids"),
    "of a part": ({"vocab_size": 64}, {"text_config": {"vocab_size": 63}}, "has 63 rows"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str, tmp_path: Path) -> None:
    writer, reader, said = FAULTS[name]
    assert said in str(fault(tmp_path, writer, reader))


def test_a_name_is_compared_only_if_it_is_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    writer = folder(tmp_path / "writer", WORDS)
    assert vocabulary_fault(writer, "owner/name") is None
    assert vocabulary_fault("owner/name", writer) is None
    assert vocabulary_fault(writer, "zoo:none") is None
    cached_model(tmp_path / "home" / "hub")
    assert "the token 'a' has the id 0 in" in str(vocabulary_fault(writer, "owner/name"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "elsewhere"))
    assert vocabulary_fault(writer, "owner/name") is None


def cached_model(hub: Path) -> None:
    """A model that numbers tokens otherwise, as Hugging Face caches it."""
    cache = hub / "models--owner--name"
    folder(cache / "snapshots" / "abc", {"b": 0, "a": 1})
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc\n")


@pytest.mark.parametrize(
    ("variable", "value", "hub"),
    [
        ("HF_HOME", "~/mine", "mine/hub"),
        ("XDG_CACHE_HOME", "{home}/caches", "caches/huggingface/hub"),
        ("HF_HUB_CACHE", "~/other", "other"),
        ("HUGGINGFACE_HUB_CACHE", "~/older", "older"),
        (None, "", ".cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_hugging_face_puts_it(
    variable: str | None, value: str, hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HOME", "XDG_CACHE_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    if variable is not None:
        monkeypatch.setenv(variable, value.format(home=tmp_path))
    cached_model(tmp_path / hub)
    assert vocabulary_fault(folder(tmp_path / "writer", WORDS), "owner/name") is not None


def test_a_tokenizer_that_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    reader = folder(tmp_path / "reader", WORDS)
    (tmp_path / "reader" / "tokenizer.json").write_text("{")
    assert vocabulary_fault(folder(tmp_path / "writer", {"z": 0}), reader) is None


@pytest.mark.parametrize(
    "text",
    [
        '{"model": "x"}',
        '{"model": {"vocab": "x"}}',
        '{"model": {"vocab": [1, [], [2, 3]]}}',
        '{"model": {"vocab": {"a": "x"}}}',
        '{"added_tokens": ["a", null]}',
        '{"added_tokens": "a"}',
        '{"added_tokens": [{"id": "x", "content": "a"}, {"id": 1}]}',
        "[]",
    ],
)
def test_a_tokenizer_of_another_kind_tells_nothing(text: str, tmp_path: Path) -> None:
    writer, reader = folder(tmp_path / "writer", {"z": 0}), folder(tmp_path / "reader", WORDS)
    (tmp_path / "reader" / "tokenizer.json").write_text(text)
    assert vocabulary_fault(writer, reader) is None
    assert vocabulary_fault(reader, writer) is None


def test_a_name_that_no_path_can_have_tells_nothing(tmp_path: Path) -> None:
    assert vocabulary_fault(folder(tmp_path / "writer", WORDS), "owner/na\0me") is None


def test_a_packaged_model_is_compared_before_it_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    model, site = f"pypi:{NAME}", prepare_site(tmp_path, monkeypatch)
    assert vocabulary_fault(model, "zoo:tiny") is None  # not installed, which is said of the model itself
    install(site)
    prepare_site(tmp_path, monkeypatch)
    assert vocabulary_fault(model, model) is None
    assert "the token '!' has the id 3 in" in str(vocabulary_fault(model, "zoo:tiny"))
    assert "the token '0' has the id 4 in" in str(vocabulary_fault("zoo:tiny", model))
    small, large = (folder(tmp_path / str(rows), vocab_size=rows) for rows in (260, 262))
    assert "has 261 token ids, the embedding of" in str(vocabulary_fault(model, small))
    assert vocabulary_fault(model, large) is None
    assert "has 261 rows" in str(vocabulary_fault(large, model))
    assert not (tmp_path / "cache").exists()
