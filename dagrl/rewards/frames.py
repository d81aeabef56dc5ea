"""Messages over a stream socket: a length, then so many bytes."""

from __future__ import annotations

import socket
import struct

_LENGTH = struct.Struct("<Q")
_AT_ONCE = 1 << 20


def read_frame(stream: socket.socket) -> bytes | None:
    """The next message, waited for; None at the end."""
    head = _read(stream, _LENGTH.size)
    return _read(stream, _LENGTH.unpack(head)[0]) if head is not None else None


def write_frame(stream: socket.socket, message: bytes) -> None:
    """Send a message, waiting until it is taken."""
    stream.sendall(_LENGTH.pack(len(message)) + message)


def _read(stream: socket.socket, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = stream.recv(min(size, _AT_ONCE))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class Exchange:
    """The run's end, which never waits: a process that does not read, or stops in mid-message, cannot block the run."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setblocking(False)
        self._stream = stream
        self._outgoing = memoryview(b"")
        self._incoming = bytearray()
        #: The other end is closed.
        self.is_over = False

    @property
    def has_more_to_send(self) -> bool:
        """True while a part of a message waits for the process to read."""
        return bool(self._outgoing)

    def send(self, message: bytes) -> None:
        """Begin to send a message; call ``flush`` when the stream takes more."""
        self._outgoing = memoryview(_LENGTH.pack(len(message)) + message)
        self.flush()

    def flush(self) -> None:
        """Send as much as the stream takes; a reader that is gone shows elsewhere."""
        try:
            while self._outgoing:
                self._outgoing = self._outgoing[self._stream.send(self._outgoing) :]
        except BlockingIOError:
            pass
        except OSError:
            self._outgoing = memoryview(b"")

    def receive(self) -> bytes | None:
        """The next message if it is all there."""
        try:
            while part := self._stream.recv(_AT_ONCE):
                self._incoming += part
            self.is_over = True
        except BlockingIOError:
            pass
        except OSError:
            self.is_over = True
        if len(self._incoming) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._incoming)[0]
        if len(self._incoming) < end:
            return None
        message = bytes(self._incoming[_LENGTH.size : end])
        del self._incoming[:end]
        return message
