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

    No id of the writer's tokenizer.json may be that of another token in the reader's, if both are there; and the
    reader's embedding (`vocab_size` of config.json) must have a row for each. One with more rows is no fault: these
    are often padded, and the reader may have no name for a token that it has a row for. Without the writer's
    tokenizer.json, as where there is only a sentencepiece file, its own `vocab_size` says how many ids there are.
    A Hugging Face name is compared only if its files are in the cache.
    """
    written, read = _folder(writer), _folder(reader)
    if written is None or read is None or written == read:
        return None
    ids, other = token_ids(written), token_ids(read)
    for token, number in ids.items():
        if token in other and other[token] != number:
            return f"the token {token!r} has the id {number} in `{writer}` and the id {other[token]} in `{reader}`"
    names = {number: token for token, number in other.items()}
    for token, number in ids.items():
        if token not in other and number in names:
            return f"the id {number} is the token {token!r} in `{writer}` and {names[number]!r} in `{reader}`"
    needed = max(ids.values()) + 1 if ids else _embedding_rows(written)
    rows = _embedding_rows(read)
    if needed is not None and rows is not None and rows < needed:
        return f"`{writer}` has {needed} token ids, the embedding of `{reader}` has {rows} rows"
    return None


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


def _folder(reference: str) -> Path | None:
    """Where a model's files are on this machine, a Hugging Face name's cached ones too."""
    try:
        folder = Path(locate_model(reference)).expanduser()
        return folder.resolve() if folder.is_dir() else _cached(reference)
    except (UserError, ValueError):  # a ValueError: a name that no path can have
        return None


def _cached(name: str) -> Path | None:
    """The folder of a name's main revision in the cache of Hugging Face."""
    cache = _hub_cache() / f"models--{name.replace('/', '--')}"
    try:
        revision = (cache / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    folder = cache / "snapshots" / revision
    return folder if folder.is_dir() else None


def _hub_cache() -> Path:
    """Where Hugging Face keeps what it has fetched, by its own environment variables."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{caches}/huggingface"
    return Path(os.path.expandvars(os.environ.get("HF_HUB_CACHE") or f"{home}/hub")).expanduser()


def _json(file: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing where there is none that can be read."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
