"""One safetensors file at any URL, with a few words of its own in the header; it is there complete or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress

from fsspec.implementations.local import LocalFileSystem
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dagrl.errors import DataError
from dagrl.storage.local_copy import file_system


def write_tensor_file(url: str, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write tensors of dtypes that safetensors has, in place of what was there.

    Raises:
        DataError: when it cannot be written.
    """
    fs, path = file_system(url)
    try:
        if isinstance(fs, LocalFileSystem):
            _write_local(path, tensors, header)
            return
        with tempfile.TemporaryDirectory() as aside:
            made = os.path.join(aside, "file")
            save_file(apart(tensors), made, metadata=dict(header))
            fs.put_file(made, path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"`{url}` cannot be written: {error}") from error


def read_tensor_file(url: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, on the CPU, and the header.

    Raises:
        DataError: when there is no such file, or it is no safetensors file.
    """
    fs, path = file_system(url)
    try:
        if isinstance(fs, LocalFileSystem):
            return _read_local(path)
        with tempfile.TemporaryDirectory() as aside:
            copy = os.path.join(aside, "file")
            fs.get_file(path, copy)
            return _read_local(copy)
    except FileNotFoundError as error:
        raise DataError(f"there is no file `{url}`; check the path") from error
    except (OSError, SafetensorError) as error:
        raise DataError(f"`{url}` cannot be read as safetensors: {error}") from error


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU; those that share memory, which safetensors refuses, copied."""
    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        place = plain.untyped_storage().data_ptr()
        separate[name] = plain.clone() if place in seen else plain
        seen.add(place)
    return separate


def _write_local(path: str, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    aside = f"{path}.{os.getpid()}.part"
    try:
        save_file(apart(tensors), aside, metadata=dict(header))
        with open(aside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        with suppress(FileNotFoundError):
            os.remove(aside)


def _read_local(path: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
