"""Whether two models number tokens alike, as far as files on this machine tell; nothing is loaded or fetched."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagrl.errors import UserError
from dagrl.graph.models import locate_model


def vocabulary_fault(writer: str, reader: str) -> str | None:
    """Why a model cannot read the token ids that another has written; None where it can, or nothing tells.

    Each token of the writer's tokenizer.json must have the same id in the reader's, if both are there; and the
    reader's embedding (`vocab_size` of config.json) must have a row for each. One with more rows is no fault: these
    are often padded. Without the writer's tokenizer.json its own `vocab_size` says how many ids there are.
    """
    written, read = _folder(writer), _folder(reader)
    if written is None or read is None or written == read:
        return None
    ids, other = token_ids(written), token_ids(read)
    if ids and other:
        for token, number in ids.items():
            if other.get(token) != number:
                there = f"the id {other[token]}" if token in other else "no id"
                return f"the token {token!r} has the id {number} in `{writer}` and {there} in `{reader}`"
    needed = max(ids.values()) + 1 if ids else _embedding_rows(written)
    rows = _embedding_rows(read)
    if needed is not None and rows is not None and rows < needed:
        return f"`{writer}` has {needed} token ids, the embedding of `{reader}` has {rows} rows"
    return None


def token_ids(folder: Path) -> Mapping[str, int]:
    """The ids of the tokens in a folder's tokenizer.json; empty where there is none that can be read."""
    file = _json(folder / "tokenizer.json")
    vocabulary = (file.get("model") or {}).get("vocab")
    if isinstance(vocabulary, list):  # unigram: [token, score] pairs in the order of their ids
        vocabulary = {str(entry[0]): number for number, entry in enumerate(vocabulary)}
    added = {str(token["content"]): int(token["id"]) for token in file.get("added_tokens") or ()}
    return {**(vocabulary or {}), **added}


def _embedding_rows(folder: Path) -> int | None:
    """The `vocab_size` of a folder's config.json, that of its language model where it has several parts."""
    config = _json(folder / "config.json")
    for part in (config, config.get("text_config")):
        if isinstance(part, dict) and isinstance(part.get("vocab_size"), int):
            return part["vocab_size"]
    return None


def _folder(reference: str) -> Path | None:
    """Where a model's files are on this machine, a Hugging Face name's cached ones too."""
    try:
        folder = Path(locate_model(reference)).expanduser()
    except UserError:
        return None
    return folder.resolve() if folder.is_dir() else _cached(reference)


def _cached(name: str) -> Path | None:
    """The folder of a name's main revision in the cache of Hugging Face."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"
    try:
        revision = (cache / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    folder = cache / "snapshots" / revision
    return folder if folder.is_dir() else None


def _json(file: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing where there is none that can be read."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
