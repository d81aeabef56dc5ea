"""Follows the ``metrics`` or ``events`` of a run folder on any file system while they grow."""

from __future__ import annotations

from collections.abc import Iterator

from dagrl.storage.folder import Folder
from dagrl.storage.segments import segments

#: Bytes at the beginning of a segment that tell it from a later one of its number: lines begin with their time.
_HEAD = 256


class LineFollower:
    """Hands out complete lines, each once; ``new_lines`` goes on where it stopped.

    A run that was killed and goes on removes what it wrote after its checkpoint; ``is_replaced`` tells that lines
    already handed out are gone.
    """

    def __init__(self, url: str, name: str) -> None:
        self._folder = Folder(url).below(name)
        self.restart()

    @property
    def is_local(self) -> bool:
        """True on a local disk, where looking costs nothing and lines come one by one."""
        return self._folder.is_local

    def restart(self) -> None:
        """Go back to the first line."""
        self._segment = (-1, "")
        self._offset = 0
        self._head = b""

    def is_replaced(self) -> bool:
        """Whether the last line handed out is no longer there: read again from the first one."""
        if not self._head:
            return False
        try:
            return self._folder.read(self._segment[1], 0, len(self._head)) != self._head
        except FileNotFoundError:
            return True

    def new_lines(self) -> Iterator[bytes]:
        """The lines since the last time, without their ends; one that is not complete yet comes later."""
        for segment in segments(self._folder):
            if segment > self._segment:
                self._segment, self._offset, self._head = segment, 0, b""
            if segment == self._segment:
                yield from self._rest()

    def _rest(self) -> list[bytes]:
        """What is new in the segment; elsewhere than on a local disk it was written whole."""
        if self._offset and not self.is_local:
            return []
        try:
            content = self._folder.read(self._segment[1], self._offset)
        except FileNotFoundError:  # removed meanwhile: `is_replaced` will tell
            return []
        complete = content[: content.rfind(b"\n") + 1]
        if self._offset == 0:
            self._head = complete[:_HEAD]
        self._offset += len(complete)
        return complete.splitlines()
