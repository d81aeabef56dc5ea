"""What a model's configs say of its tokens: which end a response and fill padding, and for how many it has room."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from dagrl.errors import ConfigError, Problem


def stop_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokens that end a response: the generation config's, else those of model config and tokenizer.

    Ids outside the vocabulary do not count. Raises ConfigError if none is left.
    """
    size = _vocabulary_size(model)
    config = generation_config(model)
    generation = _inside(_ids(config.eos_token_id), size) if config else []
    others = _ids(_text_config(model).eos_token_id) + _ids(tokenizer.eos_token_id)
    stops = frozenset(generation or _inside(others, size))
    if not stops:
        raise ConfigError([_no_token("ends a response", "eos_token", model)])
    return stops


def pad_token_id(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that fills padding: the tokenizer's, else the generation config's, the model config's, an eos.

    Ids outside the vocabulary are passed over. Raises ConfigError if none is left.
    """
    generation = generation_config(model)
    candidates = _ids(tokenizer.pad_token_id)
    candidates += _ids(generation.pad_token_id) if generation else []
    candidates += _ids(_text_config(model).pad_token_id) + _ids(tokenizer.eos_token_id)
    candidates += _ids(generation.eos_token_id) if generation else []
    candidates += _ids(_text_config(model).eos_token_id)
    inside = _inside(candidates, _vocabulary_size(model))
    if not inside:
        raise ConfigError([_no_token("can fill padding", "pad_token", model)])
    return inside[0]


def context_length(model: PreTrainedModel) -> int | None:
    """The most tokens, prompt and response together, that the model has positions for; None is no bound."""
    # GPT-2's n_positions and its like answer to the same name.
    return getattr(_text_config(model), "max_position_embeddings", None)


def generation_config(model: PreTrainedModel) -> GenerationConfig | None:
    """None for a model that does not generate."""
    return model.generation_config if model.can_generate() else None


def _text_config(model: PreTrainedModel) -> Any:
    return model.config.get_text_config(decoder=True)


def _vocabulary_size(model: PreTrainedModel) -> int:
    return _text_config(model).vocab_size


def _ids(value: Any) -> list[int]:
    """A config's token ids as a list: they come as one, several or None."""
    if value is None:
        return []
    ids = [value] if isinstance(value, int) else list(value)
    if not all(isinstance(token, int) for token in ids):
        fix = "give a number or a list of numbers in config.json or generation_config.json"
        raise ConfigError([Problem(f"a model's token ids are {value!r}, which are no numbers.", fix=fix)])
    return ids


def _inside(ids: Iterable[int], vocabulary_size: int) -> list[int]:
    return [token for token in ids if 0 <= token < vocabulary_size]


def _no_token(purpose: str, name: str, model: PreTrainedModel) -> Problem:
    return Problem(
        f"no token of the model's vocabulary {purpose}",
        facts=(("model", str(model.config.name_or_path)), ("vocabulary", f"{_vocabulary_size(model)} tokens")),
        fix=f"set `{name}` in the tokenizer's config or `{name}_id` in generation_config.json",
    )
