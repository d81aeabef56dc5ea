"""What is seen to before the first row: each server answers, serves this model, and draws as the update assumes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from dagrl.engines.rollout.in_background import result_of
from dagrl.engines.rollout.server_client import Client, Refused, Server, Unavailable, connected
from dagrl.engines.rollout.server_dialect import Dialect, Fields, wrong
from dagrl.engines.rollout.server_sglang import SglangServers
from dagrl.engines.rollout.server_vllm import VllmServers
from dagrl.errors import ConfigError, Problem
from dagrl.graph.rollouts import RolloutSpec

_SECONDS = 20.0
_OTHER_ADDRESS = "give the address of a completions server (vLLM's or SGLang's)"


class Found(NamedTuple):
    """The servers of a spec, their dialect, and the most tokens of prompt and response together that all take."""

    servers: tuple[Server, ...]
    dialect: Dialect
    context_length: int | None


class _Checked(NamedTuple):
    server: Server
    dialect: Dialect
    context_length: int | None


def find_servers(spec: RolloutSpec, *, vocab_size: int, takes_weights: bool) -> Found:
    """Ask every server whether it can draw for a model of so many tokens.

    Raises:
        ConfigError: naming each server that does not answer, serves another model, gives log-probs of another
            distribution than it draws by, or is of another kind than the first, and what to do.
    """

    async def found() -> list[_Checked | Problem]:
        async with connected(spec.api_key, _SECONDS) as client:
            checks = [_checked(client, Server(url), spec, vocab_size, takes_weights) for url in spec.urls]
            return await asyncio.gather(*checks)

    answers = result_of(found)
    fine = [answer for answer in answers if isinstance(answer, _Checked)]
    problems = [answer for answer in answers if isinstance(answer, Problem)] or _strangers(spec, fine)
    if problems:
        raise ConfigError(problems, "rollout")
    limits = [checked.context_length for checked in fine if checked.context_length is not None]
    return Found(tuple(checked.server for checked in fine), fine[0].dialect, min(limits, default=None))


def _strangers(spec: RolloutSpec, fine: Sequence[_Checked]) -> list[Problem]:
    """Servers of two kinds draw different rows from the same seed, and a row would depend on who draws it."""
    first = fine[0].dialect.name
    return [
        Problem(
            f"the server {checked.server.url} is one of {checked.dialect.name}, and {fine[0].server.url} of {first}",
            spec.at,
            fix="give servers of one kind: others draw other rows from the same seeds",
        )
        for checked in fine
        if checked.dialect.name != first
    ]


async def _checked(
    client: Client, server: Server, spec: RolloutSpec, vocab_size: int, takes_weights: bool
) -> _Checked | Problem:
    try:
        models = _models(server, spec, await client.get(server, "/v1/models"))
        dialect = _dialect(models)
        limit = _number(server, "max_model_len", dialect.model(server, spec, models).get("max_model_len"))
        await _check_tokens(client, server, dialect, spec, vocab_size)
        limit = await dialect.context_length(client, server, spec, limit)
        if takes_weights:
            await dialect.check_updates(client, server, spec)
        server.mark = await dialect.mark(client, server)
    except ConfigError as error:
        return error.problems[0]
    except Unavailable as error:
        fix = "start it, or correct `urls` of `server(...)`"
        return Problem(f"the server {server.url} does not answer", spec.at, facts=(("cause", str(error)),), fix=fix)
    except Refused as error:
        fix = "check `api_key`" if error.status in (401, 403) else _OTHER_ADDRESS
        return Problem(f"the server {server.url} refused", spec.at, facts=(("answer", str(error)),), fix=fix)
    return _Checked(server, dialect, limit)


def _models(server: Server, spec: RolloutSpec, answer: Any) -> list[Fields]:
    """The models that a server lists; each has an id."""
    try:
        return [{**model, "id": str(model["id"])} for model in answer["data"]]
    except (TypeError, KeyError) as error:
        what = f"what the server {server.url} says of its models is not of the completions protocol"
        raise wrong(spec, what, _OTHER_ADDRESS) from error


def _number(server: Server, name: str, value: Any) -> int | None:
    if value is None or type(value) is int:
        return value
    raise Refused(200, f"the server {server.url} says that its `{name}` is {value!r}")


def _dialect(models: Sequence[Fields]) -> Dialect:
    """SGLang owns its models by name; whoever does not is asked as vLLM."""
    return SglangServers() if any(model.get("owned_by") == "sglang" for model in models) else VllmServers()


async def _check_tokens(client: Client, server: Server, dialect: Dialect, spec: RolloutSpec, vocab_size: int) -> None:
    """See that the last token of the vocabulary is there and none after it, and what log-probs are those of."""
    other = f"the server {server.url} serves a model with another vocabulary than the {vocab_size} tokens of this one"
    fix = "serve the model of the worker group"
    probe = server.asked(dialect.probe())
    try:
        answer = await client.post(server, "/v1/completions", {**probe, "prompt": [vocab_size - 1]})
    except Refused as error:
        if error.status != 400:
            raise
        raise wrong(spec, f"{other}: {error}", fix) from error
    dialect.check_probe(server, spec, answer, vocab_size)
    try:
        await client.post(server, "/v1/completions", {**probe, "prompt": [vocab_size]})
    except Refused:
        return
    raise wrong(spec, f"{other}: it has more", fix)


def mark_lost(spec: RolloutSpec, dialect: Dialect, servers: Sequence[Server]) -> None:
    """Mark as lost the servers that have other weights than those they took; silent ones stay as they are.

    A server whose mark is not known is asked for it.
    """

    async def marked() -> None:
        async with connected(spec.api_key, _SECONDS) as client:
            await asyncio.gather(*(_mark(client, server, dialect) for server in servers if server.lost is None))

    result_of(marked)


async def _mark(client: Client, server: Server, dialect: Dialect) -> None:
    try:
        mark = await dialect.mark(client, server)
    except Unavailable:
        return  # the rows will tell
    if server.mark is None:
        server.mark = mark
    elif mark != server.mark:
        server.lost = dialect.lost
