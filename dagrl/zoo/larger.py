"""The task ``larger``: two three-digit numbers in, the larger one out, as text.

``347 352`` is answered ``352``. A pair is easy when its first digits differ; it is hard when it shares the first digit
and the second digits decide. Three of four rows are hard. The start model is supervised on easy pairs alone, so what
it gets right on hard ones beyond its first try is learned from the reward.
"""

import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, overload

EASY = "larger/easy"
HARD = "larger/hard"

_MIX = (EASY, HARD, HARD, HARD)


class Row(NamedTuple):
    """One example: the prompt's text without the ``=``, the exact answer, and the stratum it belongs to."""

    prompt: str
    answer: str
    data_source: str


@dataclass(frozen=True)
class Split:
    """How many rows a split has, whether they are the held-out prompts, and the strata its rows cycle through."""

    size: int
    held_out: bool
    mix: tuple[str, ...]


SPLITS: Mapping[str, Split] = MappingProxyType(
    {
        "train": Split(size=65_536, held_out=False, mix=_MIX),
        "test": Split(size=2_048, held_out=True, mix=_MIX),
        "sft": Split(size=65_536, held_out=False, mix=(EASY,)),
    }
)


def is_held_out(prompt: str) -> bool:
    """Whether a prompt is one of the fixed tenth that no training split contains."""
    return zlib.crc32(prompt.encode()) % 10 == 0


def _draw_pair(rng: random.Random, data_source: str) -> tuple[str, str]:
    shared = 0 if data_source == EASY else 1
    while True:
        a, b = str(rng.randint(100, 999)), str(rng.randint(100, 999))
        b = a[:shared] + b[shared:]
        if a[shared] != b[shared]:
            return a, b


class Larger(Sequence[Row]):
    """The rows of one split, made when they are asked for; row ``i`` depends on the split's name and ``i`` alone."""

    def __init__(self, split: str) -> None:
        self.split = split
        self._spec = SPLITS[split]

    def __len__(self) -> int:
        return self._spec.size

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        """Return the row, or the rows of a slice; an index outside the split raises ``IndexError``."""
        picked = range(len(self))[index]
        return self._row(picked) if isinstance(picked, int) else [self._row(i) for i in picked]

    def _row(self, index: int) -> Row:
        rng = random.Random(f"larger/{self.split}/{index}")
        data_source = self._spec.mix[index % len(self._spec.mix)]
        while True:
            a, b = _draw_pair(rng, data_source)
            prompt = f"{a} {b}"
            if is_held_out(prompt) == self._spec.held_out:
                return Row(prompt, max(a, b), data_source)
