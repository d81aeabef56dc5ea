"""The tokens of GGUF files as tokenizer.json spells them, and the fewest that a text takes."""

import random
from collections.abc import Sequence

import pytest
from transformers.convert_slow_tokenizer import bytes_to_unicode

from dagrl.graph.gguf_header import GgufHeader
from dagrl.graph.packaged_vocabulary import fewest_tokens, spelled_tokens

LETTERS = bytes_to_unicode()


def header(kind: str, tokens: Sequence[str]) -> GgufHeader:
    return GgufHeader({"tokenizer.ggml.model": kind}, 0, tuple(tokens))


def test_a_byte_level_vocabulary_has_gpt2s_letters() -> None:
    characters = [chr(code) for code in range(0x180)]
    spelled = spelled_tokens(header("gpt2", [f"{one} " for one in characters]))
    assert spelled == ["".join(LETTERS[byte] for byte in f"{one} ".encode()) for one in characters]


def test_what_is_spelled_in_letters_stays() -> None:
    tokens = [*LETTERS.values(), "<|im_end|>", "\u0120the"]
    assert spelled_tokens(header("gpt2", tokens)) == tokens


def test_sentencepiece_has_a_letter_for_spaces_alone() -> None:
    assert spelled_tokens(header("llama", ["  ", "\u2581a", "<0x0A>", "<a b>"])) == [
        "\u2581\u2581", "\u2581a", "<0x0A>", "<a b>",
    ]  # fmt: skip


@pytest.mark.parametrize("one", [header("t5", ["a"]), header("gpt2", []), GgufHeader({}, 0, ("a",))])
def test_of_another_kind_nothing_is_known(one: GgufHeader) -> None:
    assert not spelled_tokens(one)
    assert fewest_tokens(one) is None


def fewest(text: str, tokens: Sequence[str]) -> int:
    """The fewest tokens that a text is put together of, place by place."""
    least = [0.0]
    for end in range(1, len(text) + 1):
        starts = [(end - len(token)) for token in tokens if text[:end].endswith(token)]
        least.append(min((least[start] + 1 for start in starts), default=float("inf")))
    return int(least[-1])


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_count_is_the_fewest(kind: str) -> None:
    space = LETTERS[ord(" ")] if kind == "gpt2" else "\u2581"
    tokens = ["unused", "a", "b", "1", space, "ab", "ba", "aba", f"{space}a", f"b{space}", "1ab", "bb1ab"]
    tokenizer = fewest_tokens(header(kind, tokens))
    assert tokenizer is not None
    draw = random.Random(0)
    for _ in range(200):
        text = "".join(draw.choice("ab1 ") for _ in range(draw.randint(1, 40)))
        count = len(tokenizer.encode(text, add_special_tokens=False).ids)
        assert count == fewest(text.replace(" ", space), tokens)
