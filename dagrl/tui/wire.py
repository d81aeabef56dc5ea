"""What a run and its view say to each other over a socket: lines, JSON from the run, words from the view."""

from __future__ import annotations

import socket

#: The run's last line: its view is to leave. Without it, a socket that ends means that the run is gone.
LEAVE = b'{"leave": true}'
#: The view's words.
STOP, PAUSE, CONTINUE = "stop", "pause", "continue"
#: Said once the view has the terminal, so that whoever outlives it knows what to restore.
ENTERED = "entered"
_CHUNK = 1 << 18


class LineReader:
    """Complete lines of a socket that does not block."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""
        self.is_over = False

    def lines(self) -> list[bytes]:
        """Those that have come; ``is_over`` once there will be no more."""
        parts = [self._rest]
        while not self.is_over:
            try:
                content = self._connection.recv(_CHUNK)
            except BlockingIOError:
                break
            except OSError:
                content = b""
            self.is_over = not content
            parts.append(content)
        *complete, self._rest = b"".join(parts).split(b"\n")
        return complete
