"""Whether two models number tokens alike, as far as files on this machine tell; nothing is loaded or fetched."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagrl.errors import UserError
from dagrl.graph.models import local_folder
from dagrl.graph.packaged import PYPI, packaged_model
from dagrl.graph.packaged_vocabulary import spelled_tokens


@dataclass(frozen=True)
class _Vocabulary:
    """The ids of the tokens, where those are known, and how many rows the embedding has."""

    ids: Mapping[str, int]
    rows: int | None

    @property
    def needed(self) -> int | None:
        """How many ids there are."""
        return max(self.ids.values()) + 1 if self.ids else self.rows


def vocabulary_fault(writer: str, reader: str) -> str | None:
    """Why a model cannot read the token ids that another has written; None where it can, or nothing tells.

    No id of the writer's tokenizer.json may be that of another token in the reader's, if both are there; and the
    reader's embedding (`vocab_size` of config.json) must have a row for each. One with more rows is no fault: these
    are often padded, and the reader may have no name for a token that it has a row for. Without the writer's
    tokenizer.json, as where there is only a sentencepiece file, its own `vocab_size` says how many ids there are.
    Of a packaged model that is yet to be converted the GGUF file says the same. A Hugging Face name is compared only
    if its files are in the cache.
    """
    written = _vocabulary(writer)
    read = written if reader == writer else _vocabulary(reader)
    if written is None or read is None or written is read:
        return None
    ids, other = written.ids, read.ids
    for token, number in ids.items():
        if token in other and other[token] != number:
            return f"the token {token!r} has the id {number} in `{writer}` and the id {other[token]} in `{reader}`"
    names = {number: token for token, number in other.items()}
    for token, number in ids.items():
        if token not in other and number in names:
            return f"the id {number} is the token {token!r} in `{writer}` and {names[number]!r} in `{reader}`"
    needed, rows = written.needed, read.rows
    if needed is not None and rows is not None and rows < needed:
        return f"`{writer}` has {needed} token ids, the embedding of `{reader}` has {rows} rows"
    return None


def _vocabulary(reference: str) -> _Vocabulary | None:
    """What the files of a model say; None where it has none on this machine, or none that can be read."""
    try:
        folder = local_folder(reference)
        if folder is not None:
            return _Vocabulary(token_ids(folder), _embedding_rows(folder))
        return _packaged_vocabulary(reference) if reference.startswith(PYPI) else None
    except UserError:  # said of the model itself
        return None


def _packaged_vocabulary(reference: str) -> _Vocabulary:
    header = packaged_model(reference).header()
    tokens = spelled_tokens(header) or ()
    return _Vocabulary({token: number for number, token in enumerate(tokens)}, len(header.tokens) or None)


def token_ids(folder: Path) -> Mapping[str, int]:
    """The ids of the tokens in a folder's tokenizer.json; empty where there is none that can be read."""
    file = _json(folder / "tokenizer.json")
    model, added = file.get("model"), file.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list):  # unigram: [token, score] pairs in the order of their ids
        pairs = [entry[0] if isinstance(entry, list) and entry else None for entry in vocabulary]
        named: list[tuple[Any, Any]] = [(token, number) for number, token in enumerate(pairs)]
    else:
        named = [*vocabulary.items()] if isinstance(vocabulary, dict) else []
    tokens = [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    named += [(token.get("content"), token.get("id")) for token in tokens]
    return {token: number for token, number in named if isinstance(token, str) and type(number) is int}


def _embedding_rows(folder: Path) -> int | None:
    """The `vocab_size` of a folder's config.json, that of its language model where it has several parts."""
    config = _json(folder / "config.json")
    for part in (config, config.get("text_config")):
        if isinstance(part, dict) and isinstance(part.get("vocab_size"), int):
            return part["vocab_size"]
    return None


def _json(file: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing where there is none that can be read."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
