"""What a GGUF file says of its model before its weights: read here so that a plan needs no package for it.

The layout is that of the GGUF specification, versions 2 and 3, little-endian.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
#: The field that names the tokens in the order of their ids.
TOKENS = "tokenizer.ggml.tokens"
#: struct formats of the scalar types by their number.
_SCALARS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip


@dataclass(frozen=True)
class GgufHeader:
    """``fields`` are the metadata, of an array only its length; ``num_parameters`` counts all weights.

    ``tokens`` are the texts of the vocabulary in the order of their ids, spelled as the file does.
    """

    fields: Mapping[str, Any]
    num_parameters: int
    tokens: Sequence[str] = ()

    def of_architecture(self, name: str) -> Any:
        """A field that the format keeps under the architecture's name; None where there is none."""
        return self.fields.get(f"{self.fields.get('general.architecture')}.{name}")


@lru_cache(maxsize=8)
def read_gguf_header(file: Path) -> GgufHeader:
    """The header of a GGUF file.

    Raises:
        OSError: when it cannot be read.
        ValueError: when it is no GGUF file of a known version, or cut short.
    """
    with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as data:
        try:
            return _Reader(data).header()
        except (struct.error, UnicodeDecodeError, KeyError, OverflowError, RecursionError) as error:
            raise ValueError(f"{file} is no sound GGUF file: {error}") from error


class _Reader:
    """A place in the file that moves on as values are read."""

    def __init__(self, data: mmap) -> None:
        self._data = data
        self._at = 0
        self._tokens: Sequence[str] = ()

    def header(self) -> GgufHeader:
        magic, version = self._data[:4], 0
        self._at = 4
        if magic == _MAGIC:
            version = self._scalar("I")
        if version not in _VERSIONS:
            raise ValueError(f"it begins with {magic!r}, version {version}: no GGUF of version 2 or 3")
        num_tensors, num_fields = self._scalar("Q"), self._scalar("Q")
        fields = {name: self._field(name) for name in (self._string() for _ in range(num_fields))}
        return GgufHeader(fields, sum(self._tensor_size() for _ in range(num_tensors)), self._tokens)

    def _field(self, name: str) -> Any:
        kind, start = self._scalar("I"), self._at
        if name == TOKENS and kind == _ARRAY and self._scalar("I") == _STRING:
            self._tokens = tuple(self._string() for _ in range(self._scalar("Q")))
            return len(self._tokens)
        self._at = start
        return self._value(kind)

    def _tensor_size(self) -> int:
        self._string()
        shape = [self._scalar("Q") for _ in range(self._scalar("I"))]
        self._scalar("I")
        self._scalar("Q")
        return prod(shape)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        return self._array() if kind == _ARRAY else self._scalar(_SCALARS[kind])

    def _array(self) -> int:
        """The length of an array, whose values are passed over."""
        kind, length = self._scalar("I"), self._scalar("Q")
        if kind in _SCALARS:
            self._at += length * struct.calcsize("<" + _SCALARS[kind])
            return length
        skip: Callable[[], Any] = self._skip_string if kind == _STRING else self._array
        for _ in range(length):
            skip()
        return length

    def _skip_string(self) -> None:
        length = self._scalar("Q")
        self._at += length

    def _string(self) -> str:
        length = self._scalar("Q")
        text = self._data[self._at : self._at + length]
        self._at += length
        return text.decode("utf-8")

    def _scalar(self, kind: str) -> Any:
        (value,) = struct.unpack_from("<" + kind, self._data, self._at)
        self._at += struct.calcsize("<" + kind)
        return value
