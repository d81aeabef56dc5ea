"""One HTTP server: questions in JSON, answers in JSON, and what its failures mean."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

_CONNECT_SECONDS = 10.0
#: What is shown of an answer that says what is wrong.
_TEXT_SHOWN = 300
#: The answers that another try may change, beside those of 500 and above: too early, too many.
_PASSING = frozenset({408, 425, 429})


class Unavailable(Exception):
    """A server that does not answer now: later it may, or another one.

    ``gone`` is whether nobody listens there; ``wait`` is the seconds after which it asks to be tried again.
    """

    def __init__(self, why: str, *, gone: bool = False, slow: bool = False, wait: float = 0.0) -> None:
        super().__init__(why)
        self.gone = gone
        self.slow = slow
        self.wait = wait


class Refused(Exception):
    """A server that understood the question and will not answer it."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(f"{status}: {why}")
        self.status = status


@dataclass(eq=False)
class Server:
    """A server, as it was found: the model that it is asked for by name, and the mark of the weights it has.

    The mark stays the same for as long as it has these weights (None: it does not say); ``lost`` is why no more rows
    are sent to it. A server without a name of a model has one only.
    """

    url: str
    model: str | None = None
    mark: str | None = None
    lost: str | None = None

    @property
    def root(self) -> str:
        """The address without the version of the protocol."""
        return self.url.rstrip("/").removesuffix("/v1")

    def asked(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """A question to this server's model."""
        return {**question} if self.model is None else {"model": self.model, **question}


class Client:
    """Asks servers within one event loop; ``timeout`` bounds every answer, in seconds."""

    def __init__(self, session: aiohttp.ClientSession, timeout: float) -> None:
        self._session = session
        self._timeout = timeout

    async def get(self, server: Server, path: str, *, timeout: float | None = None) -> Any:
        """The answer to a question without a body."""
        return await self._answer("GET", server, path, None, timeout)

    async def post(self, server: Server, path: str, body: Mapping[str, Any], *, timeout: float | None = None) -> Any:
        """The answer to a question.

        Raises:
            Unavailable: when the server is not there, is cut off, too slow or overloaded, or fails.
            Refused: when it says that the question is wrong.
        """
        return await self._answer("POST", server, path, body, timeout)

    async def text(self, server: Server, path: str, *, timeout: float | None = None) -> str:
        """The answer to a question without a body, which is not JSON."""
        return await self._text("GET", server, path, None, timeout or self._timeout)

    async def _answer(
        self, method: str, server: Server, path: str, body: Mapping[str, Any] | None, timeout: float | None
    ) -> Any:
        text = await self._text(method, server, path, body, timeout or self._timeout)
        try:
            return json.loads(text) if text else None
        except ValueError as error:
            raise Refused(200, f"its answer is not JSON: {_short(text)}") from error

    async def _text(
        self, method: str, server: Server, path: str, body: Mapping[str, Any] | None, timeout: float
    ) -> str:
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(_CONNECT_SECONDS, timeout))
        try:
            async with self._session.request(method, server.root + path, json=body, timeout=limits) as answer:
                text = await answer.text(errors="replace")
        except aiohttp.ConnectionTimeoutError as error:
            raise Unavailable("no connection in time") from error
        except TimeoutError as error:
            raise Unavailable(f"no answer within {timeout:g} s", slow=True) from error
        except aiohttp.ClientConnectorError as error:
            gone = isinstance(error.os_error, ConnectionRefusedError)
            raise Unavailable(f"no connection: {error.os_error}", gone=gone) from error
        except aiohttp.InvalidURL as error:
            raise Refused(0, f"`{error.url}` is no address") from error
        except aiohttp.ClientError as error:
            raise Unavailable(f"cut off: {type(error).__name__}: {error}") from error
        if answer.status >= 500 or answer.status in _PASSING:
            why = f"it answered {answer.status}: {_message(text)}"
            raise Unavailable(why, wait=_seconds(answer.headers.get("Retry-After")))
        if answer.status >= 400:
            raise Refused(answer.status, _message(text))
        return text


@asynccontextmanager
async def connected(api_key: str | None, timeout: float) -> AsyncGenerator[Client]:
    """A client whose connections are closed afterwards, those of unanswered questions too."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
        yield Client(session, timeout)


def _seconds(header: str | None) -> float:
    """Those of a Retry-After header, which may also be a date: then none are known."""
    return float(header) if header is not None and header.isdecimal() else 0.0


def _message(text: str) -> str:
    """What an answer of the protocol says is wrong, or the answer's beginning."""
    found = re.search(r'"message":\s*"((?:[^"\\]|\\.)*)"', text)
    return _short(found[1] if found else text)


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_SHOWN else f"{text[:_TEXT_SHOWN]}..."
