"""What is seen to before the first row: each server answers, serves this model, and draws as the update assumes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from dagrl.engines.rollout.in_background import result_of
from dagrl.engines.rollout.server_client import Client, Refused, Server, Unavailable, connected
from dagrl.errors import ConfigError, Problem
from dagrl.graph.rollouts import RolloutSpec

_SECONDS = 20.0
#: The least that a log-prob of a certain token is, whatever the rounding.
_CERTAIN = -1e-3
_FLAG = "--logprobs-mode processed_logprobs"


class Found(NamedTuple):
    """The servers of a spec, and the most tokens of prompt and response together that all of them take."""

    servers: tuple[Server, ...]
    context_length: int | None


def find_servers(spec: RolloutSpec, *, vocab_size: int, takes_weights: bool) -> Found:
    """Ask every server whether it can draw for a model of so many tokens.

    Raises:
        ConfigError: naming each server that does not answer, serves another model, or gives log-probs before
            temperature, top-k and top-p, and what to do.
    """

    async def found() -> list[tuple[Server, int | None] | Problem]:
        async with connected(spec.api_key, _SECONDS) as client:
            checks = [_checked(client, Server(url), spec, vocab_size, takes_weights) for url in spec.urls]
            return await asyncio.gather(*checks)

    answers = result_of(found)
    problems = [answer for answer in answers if isinstance(answer, Problem)]
    if problems:
        raise ConfigError(problems, "rollout")
    fine = [answer for answer in answers if not isinstance(answer, Problem)]
    limits = [limit for _, limit in fine if limit is not None]
    return Found(tuple(server for server, _ in fine), min(limits, default=None))


async def _checked(
    client: Client, server: Server, spec: RolloutSpec, vocab_size: int, takes_weights: bool
) -> tuple[Server, int | None] | Problem:
    try:
        server.model, limit = _served(server, spec, await client.get(server, "/v1/models"))
        await _check_tokens(client, server, spec, vocab_size)
        if takes_weights:
            await _check_updates(client, server, spec)
        server.born = await client.start_time(server)
    except ConfigError as error:
        return error.problems[0]
    except Unavailable as error:
        fix = "start it, or correct `urls` of `server(...)`"
        return Problem(f"the server {server.url} does not answer", spec.at, facts=(("cause", str(error)),), fix=fix)
    except Refused as error:
        fix = "check `api_key`" if error.status in (401, 403) else "give the address of a completions server (vLLM's)"
        return Problem(f"the server {server.url} refused", spec.at, facts=(("answer", str(error)),), fix=fix)
    return server, limit


def _served(server: Server, spec: RolloutSpec, answer: Any) -> tuple[str, int | None]:
    """The model that rows are asked of, and its context, from the list of models."""
    try:
        models = {str(model["id"]): model for model in answer["data"]}
    except (TypeError, KeyError) as error:
        what = f"what the server {server.url} says of its models is not of the completions protocol"
        raise _wrong(spec, what, "give the address of a completions server (vLLM's)") from error
    name = spec.served_model
    if name is None and len(models) != 1:
        what = f"the server {server.url} serves {len(models)} models"
        raise _wrong(spec, what, f"name one by `server(served_model=...)`: {', '.join(models)}")
    if name is not None and name not in models:
        what = f"the server {server.url} does not serve `{name}`"
        raise _wrong(spec, what, f"it serves {', '.join(models)}: give one of them as `served_model`")
    model = next(iter(models.values())) if name is None else models[name]
    return str(model["id"]), model.get("max_model_len")


async def _check_tokens(client: Client, server: Server, spec: RolloutSpec, vocab_size: int) -> None:
    """See that the last token of the vocabulary is there and none after it, and what log-probs are those of.

    The likeliest token alone (top-k 1) is drawn with certainty: a log-prob below 0 is that of another distribution.
    """
    probe = {"model": server.model, "max_tokens": 1, "temperature": 1.0, "top_k": 1, "logprobs": 0}
    asked = {**probe, "return_token_ids": True, "ignore_eos": True}
    other = f"the server {server.url} serves a model with another vocabulary than the {vocab_size} tokens of this one"
    fix = "serve the model of the worker group"
    try:
        answer = await client.post(server, "/v1/completions", {**asked, "prompt": [vocab_size - 1]})
    except Refused as error:
        if error.status != 400:
            raise
        raise _wrong(spec, f"{other}: {error}", fix) from error
    _, logprobs = drawn_tokens(answer)
    if logprobs[0] < _CERTAIN:
        what = f"the server {server.url} gives log-probs before temperature, top-k and top-p are applied"
        raise _wrong(spec, what, f"start it with `{_FLAG}`")
    try:
        await client.post(server, "/v1/completions", {**asked, "prompt": [vocab_size]})
    except Refused:
        return
    raise _wrong(spec, f"{other}: it has more", fix)


async def _check_updates(client: Client, server: Server, spec: RolloutSpec) -> None:
    """See that new weights can be handed over: a call without a method is answered by what is missing."""
    try:
        await client.post(server, "/collective_rpc", {})
    except Refused as error:
        if error.status == 400:
            return
    what = f"the server {server.url} takes no new weights"
    raise _wrong(spec, what, "start vLLM's server with VLLM_SERVER_DEV_MODE=1 in its environment")


def drawn_tokens(answer: Any) -> tuple[list[int], list[float]]:
    """The tokens of the one completion in an answer, and their log-probs; those that are no number are NaN.

    Raises:
        Refused: when there are no token ids, or not as many log-probs.
    """
    try:
        choice = answer["choices"][0]
        tokens, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
    except (TypeError, KeyError, IndexError) as error:
        raise Refused(200, "an answer without token ids and log-probs; vLLM's server gives them") from error
    if not isinstance(tokens, list) or not isinstance(logprobs, list) or len(tokens) != len(logprobs):
        raise Refused(200, "an answer without a log-prob for each token id; vLLM's server gives them")
    return tokens, [float("nan") if logprob is None else float(logprob) for logprob in logprobs]


def _wrong(spec: RolloutSpec, what: str, fix: str) -> ConfigError:
    return ConfigError([Problem(what, spec.at, fix=fix)], "rollout")


def same_processes(spec: RolloutSpec, servers: Sequence[Server]) -> None:
    """Mark as lost the servers that were started again since they took their weights; silent ones stay as they are.

    A server of which it is not known when it began is asked for it.
    """

    async def marked() -> None:
        async with connected(spec.api_key, _SECONDS) as client:
            await asyncio.gather(*(_mark(client, server) for server in servers if server.lost is None))

    result_of(marked)


async def _mark(client: Client, server: Server) -> None:
    try:
        born = await client.start_time(server)
    except Unavailable:
        return  # the rows will tell
    if server.born is None:
        server.born = born
    elif born != server.born:
        server.lost = "it was started again since the last sync, with the weights it began with"
