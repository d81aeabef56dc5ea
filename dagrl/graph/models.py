"""Where a model reference points, looked up without loading anything."""

from pathlib import Path

from dagrl.errors import UserError
from dagrl.zoo import model_folder

ZOO = "zoo:"
_WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")


def locate_model(reference: str) -> str:
    """The folder or Hugging Face name that ``zoo:NAME``, a path or a name stands for.

    Raises:
        ConfigError: for a zoo model that does not exist.
    """
    if reference.startswith(ZOO):
        return str(model_folder(reference.removeprefix(ZOO)))
    path = Path(reference).expanduser()
    return str(path) if path.exists() or _looks_like_path(reference) else reference


def model_fault(reference: str) -> tuple[str, str] | None:
    """What is wrong with a model reference and how to mend it, as far as the file system tells."""
    if not reference:
        return "the model reference is empty.", "give `zoo:tiny`, a Hugging Face name or a local folder"
    try:
        located = locate_model(reference)
    except UserError as error:
        problem = error.problems[0]
        return f"{problem.what}.", problem.fix or "give a known name"
    folder = Path(located)
    if not folder.exists():
        if not _looks_like_path(reference):
            return None
        return f"there is no model folder `{reference}`.", "give `zoo:tiny`, a Hugging Face name or an existing folder"
    if not (folder / "config.json").is_file():
        return f"`{reference}` has no config.json.", "give a folder in Hugging Face format"
    if not any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
        return f"`{reference}` has no weights (*.safetensors).", "give a folder in Hugging Face format"
    return None


def weight_bytes(reference: str) -> int | None:
    """The size of a model's weight files on disk; None where they are not on this machine or not found."""
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
