"""Servers of vLLM."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dagrl.engines.rollout.base import Response
from dagrl.engines.rollout.server_client import Client, Refused, Server
from dagrl.engines.rollout.server_dialect import Fields, drawn_tokens, probed_logprobs, wrong
from dagrl.errors import EngineError
from dagrl.graph.roles import Sampling
from dagrl.graph.rollouts import RolloutSpec

#: The least that a log-prob of a certain token is, whatever the rounding.
_CERTAIN = -1e-3
_FLAG = "--logprobs-mode processed_logprobs"
_START_TIME = re.compile(r"^process_start_time_seconds(?:\{.*\})? (\S+)", re.MULTILINE)
_METRICS_SECONDS = 10.0
_RESET_TRIES, _RESET_WAIT = 10, 0.3
_TOKEN_IDS = "vLLM's server gives them"


class VllmServers:
    """The dialect of vLLM, and of all that say nothing else of themselves."""

    name = "vLLM"
    seed_bits = 63
    lost = "it was started again since the last sync, with the weights it began with"

    def model(self, server: Server, spec: RolloutSpec, models: Sequence[Fields]) -> Fields:
        """The only model, or the one that the spec names."""
        named = {str(model["id"]): model for model in models}
        name = spec.served_model
        if name is None and len(named) != 1:
            what = f"the server {server.url} serves {len(named)} models"
            raise wrong(spec, what, f"name one by `server(served_model=...)`: {', '.join(named)}")
        if name is not None and name not in named:
            what = f"the server {server.url} does not serve `{name}`"
            raise wrong(spec, what, f"it serves {', '.join(named)}: give one of them as `served_model`")
        server.model = next(iter(named)) if name is None else name
        return named[server.model]

    def probe(self) -> dict[str, Any]:
        """The likeliest token alone (top-k 1) is drawn with certainty."""
        return {
            "max_tokens": 1,
            "temperature": 1.0,
            "top_k": 1,
            "logprobs": 0,
            "return_token_ids": True,
            "ignore_eos": True,
        }

    def check_probe(self, server: Server, spec: RolloutSpec, answer: Any, vocab_size: int) -> None:
        """A log-prob below 0 is that of another distribution than the token was drawn from."""
        logprobs = probed_logprobs(answer, _TOKEN_IDS)
        if logprobs[0] < _CERTAIN:
            what = f"the server {server.url} gives log-probs before temperature, top-k and top-p are applied"
            raise wrong(spec, what, f"start it with `{_FLAG}`")

    async def context_length(
        self, client: Client, server: Server, spec: RolloutSpec, max_model_len: int | None
    ) -> int | None:
        """As its list of models says."""
        return max_model_len

    async def check_updates(self, client: Client, server: Server, spec: RolloutSpec) -> None:
        """A call without a method is answered by what is missing."""
        try:
            await client.post(server, "/collective_rpc", {})
        except Refused as error:
            if error.status == 400:
                return
        what = f"the server {server.url} takes no new weights"
        raise wrong(spec, what, "start vLLM's server with VLLM_SERVER_DEV_MODE=1 in its environment")

    async def load(self, client: Client, server: Server, folder: Path) -> str | None:
        """Have every worker of the server reload its weights; the mark is that from before."""
        born = await self.mark(client, server)
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await client.post(server, "/collective_rpc", call)
        for _ in range(_RESET_TRIES):  # another rank may still ask what the server can do
            emptied = await client.post(server, "/reset_prefix_cache", {})
            if isinstance(emptied, dict) and emptied.get("success") is True:
                return born
            await asyncio.sleep(_RESET_WAIT)
        raise EngineError(f"the prefix cache of the server {server.url} could not be emptied: it draws other rows")

    async def mark(self, client: Client, server: Server) -> str | None:
        """When the server's process began, as its metrics say; None where they do not."""
        try:
            text = await client.text(server, "/metrics", timeout=_METRICS_SECONDS)
        except Refused:
            return None
        found = _START_TIME.search(text)
        return found and found[1]

    def check_sampling(self, sampling: Sampling) -> None:
        """Its log-probs are those of whatever is drawn."""

    def additions(self, sampling: Sampling) -> dict[str, Any]:
        """The stop tokens of the policy alone end a response, and its end stays in it."""
        return {
            "top_k": sampling.top_k,
            "include_stop_str_in_output": True,
            "ignore_eos": True,
            "add_special_tokens": False,
        }

    def response(self, server: Server, question: Fields, answer: Any) -> Response:
        """The row, truncated where a length ended it: stops are looked for first."""
        tokens, logprobs = drawn_tokens(answer, _TOKEN_IDS)
        return Response(tokens, logprobs, answer["choices"][0].get("finish_reason") == "length")
