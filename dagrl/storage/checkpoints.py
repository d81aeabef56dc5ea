"""Checkpoints: parts of tensors and JSON that become one complete whole when their manifest is written, last.

A part is a safetensors file; what is no tensor is JSON in its header. The manifest holds size and checksum of every
part, and its own, so that a truncated or damaged file of any kind is found. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dagrl.errors import CheckpointError
from dagrl.storage.folder import Folder
from dagrl.storage.tensor_file import apart

MANIFEST = "manifest.json"
FORMAT = 1
_LOG = logging.getLogger(__name__)
_STEP = re.compile(r"step_(\d+)")
_INFO = "info"
_CHUNK = 1 << 22


@dataclass(frozen=True)
class PartRecord:
    """A part as it was written: its name, its bytes and their checksum."""

    name: str
    bytes: int
    checksum: str


def write_part(folder_url: str, name: str, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> PartRecord:
    """Write tensors and JSON as one part; any process may.

    ``info`` is plain JSON: str keys, finite numbers, strings, bools, None, lists and dicts.

    Raises:
        CheckpointError: when it cannot be written, for want of room for one.
    """
    try:
        return _write(Folder(folder_url), name, tensors, {_INFO: json.dumps(info, allow_nan=False)})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"`{name}` cannot be written to `{folder_url}`: {error}") from error


def _write(folder: Folder, name: str, tensors: Mapping[str, Tensor], header: dict[str, str]) -> PartRecord:
    file_name = f"{name}.safetensors"
    if folder.is_local:
        return _write_local(folder.path(file_name), name, tensors, header)
    with tempfile.TemporaryDirectory() as aside:
        made = os.path.join(aside, file_name)
        record = _write_local(made, name, tensors, header)
        folder.fs.put_file(made, folder.path(file_name))
    return record


def _write_local(path: str, name: str, tensors: Mapping[str, Tensor], header: dict[str, str]) -> PartRecord:
    save_file(apart(tensors), path, metadata=header)
    with open(path, "rb") as file:
        checksum = _checksum(file)
        os.fsync(file.fileno())
        return PartRecord(name, os.fstat(file.fileno()).st_size, checksum)


class StatePart:
    """A part to read from: tensors are loaded one by one, when asked for."""

    def __init__(self, folder_url: str, name: str) -> None:
        self.name = name
        self._folder = Folder(folder_url)
        self._copy: tempfile.TemporaryDirectory[str] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors."""
        return tuple(self._file.keys())

    @property
    def info(self) -> dict[str, Any]:
        """What is no tensor."""
        return json.loads(self._file.metadata()[_INFO])

    def tensor(self, name: str) -> Tensor:
        """One tensor, on the CPU."""
        return self._file.get_tensor(name)

    @cached_property
    def _file(self) -> Any:
        path = self._folder.path(f"{self.name}.safetensors")
        if not self._folder.is_local:
            self._copy = tempfile.TemporaryDirectory()
            local = os.path.join(self._copy.name, "part")
            self._folder.fs.get_file(path, local)
            path = local
        return safe_open(path, framework="pt").__enter__()


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint; ``state`` is what the trainer said when it was published."""

    url: str
    step: int
    parts: tuple[PartRecord, ...]
    state: dict[str, Any] = field(repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its parts."""
        return tuple(part.name for part in self.parts)

    def open_part(self, name: str) -> StatePart:
        """A part of it; sent to another process, this method opens the part there."""
        if name not in self.names:
            raise CheckpointError(f"the checkpoint `{self.url}` has no part `{name}`, only {', '.join(self.names)}")
        return StatePart(self.url, name)


class Checkpoints:
    """The checkpoints of a run: ``step_000010`` and so on in one folder, the newest ``keep`` of them."""

    def __init__(self, url: str, *, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep}: a run keeps at least its newest checkpoint")
        self._folder = Folder(url)
        self._keep = keep

    def begin(self, step: int) -> str:
        """Make room for a checkpoint; the URL of the folder that its parts are written to."""
        name = _folder_name(step)
        self._discard(name)
        target = self._folder.below(name)
        target.make()
        return target.url

    def publish(self, step: int, parts: Sequence[PartRecord], state: Mapping[str, Any]) -> Checkpoint:
        """Complete a checkpoint, and only then remove the ones that are no longer kept.

        Later ones than this are of a run that was resumed from before them: they go too.
        """
        name = _folder_name(step)
        content = {"format": FORMAT, "step": step, "parts": [asdict(part) for part in parts], "state": state}
        self._folder.write(f"{name}/{MANIFEST}", _sealed(content))
        steps = _steps_in(self._folder)
        earlier = [number for number in steps if number <= step]
        for number in set(steps) - set(earlier[-self._keep :]):
            self._discard(steps[number])
        return Checkpoint(self._folder.below(name).url, step, tuple(parts), dict(state))

    def latest_valid(self) -> Checkpoint | None:
        """The newest checkpoint whose files are all as they were written; a warning names each that is passed over."""
        for step, name in reversed(_steps_in(self._folder).items()):
            folder = self._folder.below(name)
            if not folder.exists(MANIFEST):
                continue
            try:
                return _verified(folder, step)
            except CheckpointError as fault:
                _LOG.warning("the checkpoint `%s` is passed over: %s", folder.url, fault)
        return None

    def clean(self) -> None:
        """Remove what saves that never ended have left."""
        for name in _steps_in(self._folder).values():
            if not self._folder.exists(f"{name}/{MANIFEST}"):
                self._folder.remove(name)

    def _discard(self, name: str) -> None:
        """Remove a checkpoint, its manifest first: what is left of it then is never taken for one."""
        self._folder.remove(f"{name}/{MANIFEST}")
        self._folder.remove(name)


def newest_step(url: str) -> int | None:
    """The step of the newest checkpoint that has a manifest, whether it is sound or not; None without any."""
    folder = Folder(url)
    return max((step for step, name in _steps_in(folder).items() if folder.exists(f"{name}/{MANIFEST}")), default=None)


def _steps_in(folder: Folder) -> dict[int, str]:
    """Step and name of everything in it that looks like a checkpoint, in the order of steps."""
    found = {name: _STEP.fullmatch(name) for name in folder.names()}
    return dict(sorted((int(match[1]), name) for name, match in found.items() if match))


def _folder_name(step: int) -> str:
    return f"step_{step:06d}"


def _sealed(content: Mapping[str, Any]) -> bytes:
    """The content as JSON, and the checksum of that text."""
    plain = json.loads(json.dumps(content, allow_nan=False))
    sealed = {"checksum": _digest(_canonical(plain)), "content": plain}
    return json.dumps(sealed, indent=1, sort_keys=True).encode()


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, allow_nan=False).encode()


def _verified(folder: Folder, step: int) -> Checkpoint:
    content = _unsealed(folder.read(MANIFEST))
    if content["format"] != FORMAT:
        raise CheckpointError(f"it has format {content['format']}, this version reads {FORMAT}")
    if content["step"] != step:
        raise CheckpointError(f"it is of step {content['step']}")
    parts = tuple(PartRecord(**part) for part in content["parts"])
    for part in parts:
        _check_part(folder, part)
    return Checkpoint(folder.url, content["step"], parts, content["state"])


def _unsealed(data: bytes) -> dict[str, Any]:
    try:
        sealed = json.loads(data)
        if sealed["checksum"] == _digest(_canonical(sealed["content"])):
            return sealed["content"]
    except (ValueError, KeyError, TypeError):
        pass  # said below
    raise CheckpointError(f"`{MANIFEST}` is truncated or damaged")


def _check_part(folder: Folder, part: PartRecord) -> None:
    name = f"{part.name}.safetensors"
    try:
        size = folder.size(name)
        if size != part.bytes:
            raise CheckpointError(f"`{name}` has {size} bytes of {part.bytes}")
        with folder.fs.open(folder.path(name), "rb") as file:
            checksum = _checksum(file)
    except FileNotFoundError as error:
        raise CheckpointError(f"`{name}` is missing") from error
    if checksum != part.checksum:
        raise CheckpointError(f"`{name}` is damaged: its checksum is not the one that was written")


def _checksum(file: Any) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
