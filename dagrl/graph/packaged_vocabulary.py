"""The vocabulary of a GGUF file as the tokenizer.json of the converted model spells it, and what it tells of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagrl.graph.gguf_header import GgufHeader

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

#: What `tokenizer.ggml.model` calls the two kinds of tokenizer whose spelling is known here.
_BYTE_LEVEL, _SENTENCEPIECE = "gpt2", "llama"
#: What sentencepiece writes for a space.
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def spelled_tokens(header: GgufHeader) -> Sequence[str] | None:
    """The tokens in the order of their ids; None of a kind of tokenizer whose spelling is not known.

    A byte-level tokenizer has a letter for each byte, which some files leave out of special tokens; sentencepiece
    has one for a space, which some leave out of tokens of spaces alone.
    """
    match header.fields.get("tokenizer.ggml.model"):
        case kind if kind == _BYTE_LEVEL:
            letters = _byte_letters()
            alphabet = frozenset(letters)
            return [token if alphabet.issuperset(token) else _spelled(token, letters) for token in header.tokens]
        case kind if kind == _SENTENCEPIECE:
            return [token if token.strip(" ") else _SPACE * len(token) for token in header.tokens]
        case _:
            return None


def fewest_tokens(header: GgufHeader) -> Tokenizer | None:
    """A tokenizer that spells a text with as few tokens of the vocabulary as do; None where that cannot be told.

    No tokenizer of that vocabulary takes fewer, whatever its merges and wherever it splits: each token costs 1, and
    the Viterbi search of a unigram model finds the cheapest spelling.
    """
    tokens = spelled_tokens(header)
    if not tokens:
        return None
    from tokenizers import Tokenizer
    from tokenizers.models import Unigram

    tokenizer = Tokenizer(Unigram([(token, -1.0) for token in tokens], 0, byte_fallback=False))
    tokenizer.pre_tokenizer = _unsplit(header.fields["tokenizer.ggml.model"])
    return tokenizer


def _unsplit(kind: str) -> PreTokenizer:
    """What spells a text as the vocabulary does, and leaves it whole."""
    from tokenizers.pre_tokenizers import ByteLevel, Metaspace

    if kind == _BYTE_LEVEL:
        return ByteLevel(add_prefix_space=False, use_regex=False)
    return Metaspace(prepend_scheme="never", split=False)


def _spelled(token: str, letters: Sequence[str]) -> str:
    return "".join(letters[byte] for byte in token.encode())


def _byte_letters() -> Sequence[str]:
    """GPT-2's letter for each of the 256 bytes: itself where Latin-1 prints it, else the next from U+0100 on."""
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printed else next(others)) for byte in range(256)]
