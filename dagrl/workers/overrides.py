"""What a policy says in place of its model's files: the chat template and the tokens that end a response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from dagrl.errors import ConfigError, Problem
from dagrl.graph.specs import ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Conversation = list[dict[str, Any]]
_PROBE: Conversation = [{"role": "user", "content": "x"}]


def apply_overrides(spec: ModelSpec, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Put the spec's chat template and stop tokens into tokenizer and generation config, which are saved with both.

    Raises:
        ConfigError: for a template that cannot render a message, and for tokens outside the vocabulary.
    """
    if spec.chat_template is not None:
        tokenizer.chat_template = spec.chat_template
        render_prompts(spec, tokenizer, [_PROBE])
    if spec.stop_tokens is not None:
        model.generation_config.eos_token_id = _stop_ids(spec, spec.stop_tokens, model, tokenizer)


def render_prompts(
    spec: ModelSpec, tokenizer: PreTrainedTokenizerBase, conversations: Sequence[Conversation]
) -> list[list[int]]:
    """Token ids of each conversation, generation prompt included.

    Raises:
        ConfigError: when the chat template refuses one, e.g. because its roles do not alternate.
    """
    return _render(spec, tokenizer, conversations, "prompts", add_generation_prompt=True)


def render_conversations(
    spec: ModelSpec, tokenizer: PreTrainedTokenizerBase, conversations: Sequence[Conversation]
) -> list[list[int]]:
    """Token ids of each whole conversation, which the assistant's turn ends.

    Raises:
        ConfigError: as `render_prompts` does.
    """
    return _render(spec, tokenizer, conversations, "conversations", add_generation_prompt=False)


def _render(
    spec: ModelSpec,
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[Conversation],
    called: str,
    *,
    add_generation_prompt: bool,
) -> list[list[int]]:
    if not conversations:
        return []
    try:
        tokenised: Any = tokenizer.apply_chat_template(
            list(conversations), add_generation_prompt=add_generation_prompt, tokenize=True, return_dict=False
        )
    # A template is the user's code: beside its own errors it raises what its expressions do.
    except Exception as error:
        cause = error.message if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
        what = f"the chat template of `{spec.model}` cannot render the {called}: {cause}."
        fix = f"mend the messages of the data, or give `{spec.maker}` another `chat_template`"
        raise ConfigError([Problem(what, spec.at, fix=fix)]) from error
    return tokenised


def _stop_ids(
    spec: ModelSpec, tokens: Sequence[str | int], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> list[int]:
    size: int = model.config.get_text_config(decoder=True).vocab_size
    vocabulary = tokenizer.get_vocab()
    ids = [vocabulary.get(token, -1) if isinstance(token, str) else token for token in tokens]
    unknown = [token for token, found in zip(tokens, ids, strict=True) if not 0 <= found < size]
    if unknown or not ids:
        named = ", ".join(map(repr, unknown)) or "an empty list"
        what = f"`stop_tokens` has {named}, which is none of the {size} tokens of `{spec.model}`."
        fix = "give whole tokens of the vocabulary or their ids, or leave `stop_tokens` out"
        raise ConfigError([Problem(what, spec.at, fix=fix)])
    return ids
