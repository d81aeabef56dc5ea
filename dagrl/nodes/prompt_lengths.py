"""Prompts that no response fits behind, found before a model is loaded."""

from collections.abc import Mapping, Sequence
from typing import Any

from dagrl.data.rows import PromptRows, rows_in_use
from dagrl.errors import UserError
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.graph.model_files import context_length, open_tokenizer
from dagrl.graph.options import type_fault
from dagrl.graph.roles import Message

_LIMIT = "max_prompt_tokens"


def beyond_context(call: CallView) -> list[Refusal]:
    """Refuse data whose longest prompt fills the context by itself, where nobody cuts or drops it.

    The context is the model's, or what `vllm(max_model_len=)` leaves of it. Counts the tokens of the text alone,
    without the chat template's, of the row with the most text: what is refused would fail in the run, and what is not
    may still. Of data whose rows are made as they are asked for (`gym:`, `zoo:`) only the first few are looked at, so
    that planning takes no longer; a longer one of the others, and a model without files here, are for `generate`.
    """
    if call.group is None or type_fault(call.group.model.model, str) is not None:
        return []
    if call.options[_LIMIT] is not None or any(call.upstream_option(_LIMIT)):
        return []
    try:
        own = context_length(call.group.model.model)
    except UserError:
        return []  # said of the model itself
    rollout = call.group.model.rollout
    asked: Any = rollout.max_model_len  # what is no number of tokens, at least 2, is refused with the spec
    given = asked if rollout.engine == "vllm" and isinstance(asked, int) and asked > 1 else None
    context = min((limit for limit in (own, given) if limit is not None), default=None)
    sources = [one.options for one in call.upstream() if {"data", "split"} <= set(one.options)]
    return [] if context is None else [refusal for one in sources for refusal in _refused(call, one, context)]


def _refused(call: CallView, source: Mapping[str, Any], context: int) -> list[Refusal]:
    rows = _rows(source)
    if call.group is None or rows is None or rows.longest is None:
        return []
    num_tokens = _num_tokens(call.group.model.model, rows[rows.longest].messages, context)
    if num_tokens < context:
        return []
    what = (
        f"a prompt of `{source['data']}`, row {rows.longest} of the split `{source['split']}`, has at least "
        f"{num_tokens} tokens, which leaves no room for a response in a context of {context}"
    )
    return [(what, "leave such rows out with `short_prompts`, cut them with `max_prompt_tokens`, or shorten the data")]


def _rows(source: Mapping[str, Any]) -> PromptRows | None:
    try:
        return rows_in_use(source["data"], source["split"], source.get("test_share", 0.0))
    except UserError:
        return None  # said of the source itself


def _num_tokens(model: str, messages: Sequence[Message], least: int) -> int:
    """The tokens of the texts, 0 where they are surely fewer than ``least``: no token is less than a byte."""
    texts = [str(message["content"]).strip() for message in messages]
    if sum(len(text.encode()) for text in texts) < least:
        return 0
    tokenizer = open_tokenizer(model)
    if tokenizer is None:
        return 0
    return sum(len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts)
