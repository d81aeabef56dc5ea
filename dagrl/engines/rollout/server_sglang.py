"""Servers of SGLang, by its documented protocol: they are tested here against a stand-in of our own only."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import Any
from uuid import uuid4

from dagrl.engines.rollout.base import Response
from dagrl.engines.rollout.server_client import Client, Refused, Server, Unavailable
from dagrl.engines.rollout.server_dialect import Fields, drawn_tokens, probed_logprobs, wrong
from dagrl.errors import ConfigError, Problem
from dagrl.graph.roles import Sampling
from dagrl.graph.rollouts import RolloutSpec

_FLAG = "--enable-deterministic-inference"
_TOKEN_IDS = (
    "SGLang's server gives them from its versions of July 2026 on, whose /v1/completions takes `return_token_ids`: "
    "install a newer one"
)
#: So hot that every token of any model is as likely as the others, to far less than ``_UNEVEN`` nats.
_HOT = 1e5
_UNEVEN = 0.05
_PROBED_TOKENS = 8
#: What SGLang says ended a response after whose last token the logits were not finite.
_NOT_FINITE = "NaN happened"


class SglangServers:
    """The dialect of SGLang.

    It differs from vLLM's in what a response may hold: a text of ``stop`` is looked for in as many of the last tokens
    as the text itself has, and one more, special tokens included; spelled by more tokens it is missed.
    """

    name = "SGLang"
    #: Seeds were int32 there before they were int64, and a wider one ended the server.
    seed_bits = 31
    lost = "it has other weights than at the last sync: it was started again, or someone else gave it weights"

    def model(self, server: Server, spec: RolloutSpec, models: Sequence[Fields]) -> Fields:
        """The first model, which others adapt; no name is sent, as each sync gives it another."""
        if spec.served_model is not None:
            what = f"the server {server.url} is one of SGLang, whose one model changes its name with each sync"
            raise wrong(spec, what, "leave `served_model` out")
        if not models:
            raise wrong(spec, f"the server {server.url} serves no model", "start it with `--model-path`")
        return models[0]

    def probe(self) -> dict[str, Any]:
        """After so high a temperature all tokens are equally likely, before it they are not.

        The likeliest token at a low temperature would tell less: two tokens may be equally likely.
        """
        return {
            "max_tokens": _PROBED_TOKENS,
            "temperature": _HOT,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "logprobs": 0,
            "return_token_ids": True,
            "ignore_eos": True,
        }

    def check_probe(self, server: Server, spec: RolloutSpec, answer: Any, vocab_size: int) -> None:
        """Every token's log-prob is that of one among ``vocab_size``."""
        logprobs = probed_logprobs(answer, _TOKEN_IDS)
        if any(abs(logprob + log(vocab_size)) > _UNEVEN for logprob in logprobs):
            what = f"the server {server.url} gives log-probs before the temperature is applied"
            raise wrong(spec, what, "start it without SGLANG_RETURN_ORIGINAL_LOGPROB in its environment")

    async def context_length(
        self, client: Client, server: Server, spec: RolloutSpec, max_model_len: int | None
    ) -> int | None:
        """Its own bound of a prompt, some tokens below the context; seeds count by an option only."""
        info = await client.get(server, "/server_info")
        options = info if isinstance(info, dict) else {}
        if options.get("enable_deterministic_inference") is not True:
            what = f"the server {server.url} draws without the seeds of rows"
            raise wrong(spec, what, f"start it with `{_FLAG}`")
        limits = [limit for limit in (max_model_len, options.get("max_req_input_len")) if limit is not None]
        return min(limits, default=None)

    async def check_updates(self, client: Client, server: Server, spec: RolloutSpec) -> None:
        """A call without a folder is answered by what is missing."""
        try:
            await client.post(server, "/update_weights_from_disk", {})
        except Refused as error:
            if error.status in (400, 422):
                return
        what = f"the server {server.url} takes no new weights"
        raise wrong(spec, what, "start a server that has /update_weights_from_disk, without an `--admin-api-key`")

    async def load(self, client: Client, server: Server, folder: Path) -> str | None:
        """Have the server read the weights under a version of their own, which is its mark.

        Its prefix cache is emptied before it answers, or it fails.
        """
        version = f"dagrl-{uuid4().hex}"
        call = {"model_path": str(folder), "load_format": "auto", "flush_cache": True, "weight_version": version}
        answer = await client.post(server, "/update_weights_from_disk", call)
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise Refused(200, f"it answered {answer!r}")
        return version

    async def mark(self, client: Client, server: Server) -> str | None:
        """The version of its weights."""
        return _version(await client.get(server, "/model_info"))

    def check_sampling(self, sampling: Sampling) -> None:
        """Its log-probs are those after the temperature, before top-k and top-p."""
        if sampling.temperature != 0 and (sampling.top_k > 0 or sampling.top_p < 1):
            what = (
                f"servers of SGLang give log-probs before top-k and top-p, not those that top_k={sampling.top_k}, "
                f"top_p={sampling.top_p} would draw by"
            )
            fix = "leave `top_k` and `top_p` out, or use servers of vLLM"
            raise ConfigError([Problem(what, fix=fix)], "rollout")

    def additions(self, sampling: Sampling) -> dict[str, Any]:
        """With ``ignore_eos`` the stop tokens of the policy would be ignored as well."""
        return {"top_k": -1, "top_p": 1.0, "no_stop_trim": True, "ignore_eos": False}

    def response(self, server: Server, question: Fields, answer: Any) -> Response:
        """The row; it was broken off, or drawn from other weights, where Unavailable is raised."""
        choice = _choice(answer)
        if choice.get("finish_reason") == "abort":
            raise Unavailable("it broke the row off")
        tokens, logprobs = drawn_tokens(answer, _TOKEN_IDS)
        if server.mark is not None and _version(answer.get("metadata")) != server.mark:
            raise Unavailable(self.lost, gone=True)
        matched = choice.get("matched_stop")
        if isinstance(matched, int) and matched not in question["stop_token_ids"]:
            raise Refused(200, _other_end(matched))
        if matched == _NOT_FINITE:
            logprobs[-1] = float("nan")
        cut = choice.get("finish_reason") == "length"
        return Response(tokens, logprobs, cut and not _has_ended(question, choice, tokens))


def _has_ended(question: Fields, choice: Fields, tokens: Sequence[int]) -> bool:
    """Whether a response had come to its end with the last token it was allowed: SGLang looks at the length first."""
    return tokens[-1] in question["stop_token_ids"] or any(
        stop in (choice.get("text") or "") for stop in question["stop"]
    )


def _other_end(token: int) -> str:
    return (
        f"it ended a response at token {token}, at which this policy's do not end: SGLang also stops at the "
        f"end-of-sequence tokens of the model's configs and tokenizer. Give the policy `stop_tokens` with {token} too"
    )


def _choice(answer: Any) -> Fields:
    try:
        return answer["choices"][0]
    except (TypeError, KeyError, IndexError) as error:
        raise Refused(200, "an answer without a completion") from error


def _version(answer: Any) -> str:
    try:
        return str(answer["weight_version"])
    except (TypeError, KeyError) as error:
        raise Refused(200, f"an answer without the version of its weights; {_TOKEN_IDS}") from error
