"""Texts that end a response, found while its tokens are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Int64
from tokenizers.decoders import DecodeStream
from torch import Tensor

from dagrl.errors import ConfigError, Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: How tokenizers begins the message about bytes that are no UTF-8.
_NO_BEGINNING = "Invalid prefix encountered"


class StopTexts:
    """The growing texts of some rows, special tokens left out, and whether one holds a text that ends it.

    A text grows as vLLM's does: a token adds what it makes of the prompt and the tokens before it, so a text is
    found where it ends, even inside a token, and characters of several tokens come with the last of these.
    """

    def __init__(
        self, stop: Sequence[str], prompts: Sequence[Sequence[int]], tokenizer: PreTrainedTokenizerBase | None
    ) -> None:
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        if not self._stop:
            return
        self._backend = _backend(tokenizer)
        self._streams = [DecodeStream(ids=list(prompt), skip_special_tokens=True) for prompt in prompts]
        self._tails = [""] * len(prompts)

    def end_with(
        self, rows: Int64[Tensor, " K"], tokens: Int64[Tensor, " K"], done: Bool[Tensor, " K"]
    ) -> Bool[Tensor, " K"]:
        """Add a token to each of the rows that are not done; whether its text then holds a stop text."""
        found = torch.zeros_like(done)
        if not self._stop:
            return found
        columns = (column.tolist() for column in (rows, tokens, done))
        ends = [not over and self._grow(row, token) for row, token, over in zip(*columns, strict=True)]
        return torch.tensor(ends, device=done.device)

    def _grow(self, row: int, token: int) -> bool:
        new = self._step(row, token)
        text = self._tails[row] + new
        # What came before the last characters cannot begin a stop text that is not yet complete.
        self._tails[row] = text[max(0, len(text) - self._longest) :]
        return bool(new) and any(stop in text for stop in self._stop)

    def _step(self, row: int, token: int) -> str:
        """What the token adds; where the tokens before it are no beginning of a text, it begins one."""
        try:
            return self._streams[row].step(self._backend, token) or ""
        except Exception as error:  # tokenizers has no other class for it
            if not str(error).startswith(_NO_BEGINNING):
                raise
            self._streams[row] = DecodeStream(skip_special_tokens=True)
            return self._streams[row].step(self._backend, token) or ""


def _backend(tokenizer: PreTrainedTokenizerBase | None) -> Any:
    from transformers import PreTrainedTokenizerFast

    if isinstance(tokenizer, PreTrainedTokenizerFast):
        return tokenizer.backend_tokenizer
    what = "`stop` texts need a fast tokenizer (one with a tokenizer.json), which the model does not have"
    raise ConfigError(
        [Problem(what, fix="leave `stop` out, or end responses by `stop_tokens` of the policy")], "rollout"
    )
