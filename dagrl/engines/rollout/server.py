"""Rollout by HTTP servers with the completions protocol and token ids: vLLM's, or SGLang's.

The weights are the servers' own, or handed over by a folder that they share with the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from jaxtyping import Int64
from torch import Tensor

from dagrl.engines.rollout.base import (
    Response,
    StatefulRollout,
    check_request,
    check_vllm_temperature,
    request_seeds,
    response_limits,
    samples_of,
)
from dagrl.engines.rollout.in_background import items_of
from dagrl.engines.rollout.server_client import Server, connected
from dagrl.engines.rollout.server_rows import Patience, Spread
from dagrl.engines.rollout.server_start import Found, find_servers, mark_lost
from dagrl.engines.rollout.server_weights import FolderHandover
from dagrl.engines.weights import Arrivals, Layout, Weights
from dagrl.errors import EngineError
from dagrl.graph.progress import Progress
from dagrl.graph.roles import Samples, Sampling
from dagrl.graph.rollouts import RolloutSpec

#: For how long a server that fails only is tried again.
_PATIENCE_SECONDS = 30.0


def start_server_rollout(
    spec: RolloutSpec,
    *,
    layout: Layout,
    vocab_size: int,
    stop_token_ids: frozenset[int],
    pad_token_id: int,
    context_length: int | None,
    hands_over: bool = True,
) -> ServerRollout:
    """An engine that draws by the servers of ``spec``, which serve a model with the weights of ``layout``.

    ``context_length`` bounds prompt and response together; the servers' own bound may be lower. ``hands_over`` is
    whether this process gives the servers their weights, where a folder is shared: one rank does it for all.

    Raises:
        ConfigError: when a server does not answer, or cannot draw for this model.
    """
    found = find_servers(spec, vocab_size=vocab_size, takes_weights=spec.weights_folder is not None)
    limits = [limit for limit in (context_length, found.context_length) if limit is not None]
    return ServerRollout(
        spec,
        found._replace(context_length=min(limits, default=None)),
        layout=layout,
        stop_token_ids=stop_token_ids,
        pad_token_id=pad_token_id,
        hands_over=hands_over,
    )


class ServerRollout(StatefulRollout):
    """Draws responses by servers that were found; each row is a request of its own, with its own seed."""

    def __init__(
        self,
        spec: RolloutSpec,
        found: Found,
        *,
        layout: Layout,
        stop_token_ids: frozenset[int],
        pad_token_id: int,
        hands_over: bool,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        super().__init__("server")
        self._spec = spec
        self._servers, self._dialect, self._context_length = found
        folder = None if spec.weights_folder is None else Path(spec.weights_folder).expanduser()
        self._handover = None if folder is None else FolderHandover(spec, folder, self._dialect)
        self._hands_over = hands_over
        self._layout = layout
        self._stops = sorted(stop_token_ids)
        self._pad = pad_token_id
        self._patience = Patience(spec.concurrency, patience_seconds, keeps_weights=self._handover is None)

    @property
    def context_length(self) -> int | None:
        """The most tokens of prompt and response together; None: no server says."""
        return self._context_length

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Int64[Tensor, " B"], sampling: Sampling) -> Samples:
        """One response for each prompt, from its own seed, whichever server draws it.

        The tensors are on the device of ``seeds``; T is the longest response. It raises as the protocol says.
        """
        return samples_of(self.stream(prompts, seeds, sampling), len(prompts), self._pad, seeds.device)

    def stream(
        self, prompts: Sequence[Sequence[int]], seeds: Int64[Tensor, " B"], sampling: Sampling
    ) -> Iterator[tuple[int, Response]]:
        """The rows of ``generate`` as they finish, each with its place among the prompts."""
        self._state.may_generate()
        check_vllm_temperature(sampling.temperature)
        self._dialect.check_sampling(sampling)
        check_request(prompts, seeds, sampling, self._context_length)
        limits = response_limits(prompts, sampling.max_new_tokens, self._context_length).tolist()
        rows = zip(prompts, request_seeds(seeds), limits, strict=True)
        questions = [self._question(prompt, seed, limit, sampling) for prompt, seed, limit in rows]
        return self._state.unchanged(self._drawn(questions))

    def load_weights(self, weights: Weights, version: int) -> None:
        """Have every server take these weights, by the shared folder; it raises as the protocol says.

        Without such a folder the servers keep their own weights, which are those of a model that never changes.
        """
        with self._state.taking(weights, self._layout, version) as arrivals:
            if self._handover is not None:
                self._load(self._handover, arrivals)

    def _load(self, handover: FolderHandover, arrivals: Arrivals) -> None:
        if self._hands_over:
            handover.load(arrivals, self._servers)
        else:
            self._wait_for_others(arrivals)
        arrivals.check_complete()

    def _wait_for_others(self, arrivals: Arrivals) -> None:
        """Take part in putting weights together that another rank hands to all servers."""
        for _ in arrivals:
            pass
        for server in self._servers:
            server.mark, server.lost = None, None

    def _drawn(self, questions: Sequence[dict[str, Any]]) -> Generator[tuple[int, Response]]:
        if not questions:
            return
        progress = Progress(len(questions), "responses")
        try:
            if self._handover is not None:
                mark_lost(self._spec, self._dialect, self._servers)
            with closing(items_of(lambda put: self._ask_all(questions, put))) as rows:
                for row, response in rows:
                    progress.advance()
                    yield row, response
        except Exception as error:
            self._state.die(f"generating failed: {type(error).__name__}: {error}")
            raise EngineError(f"the server engine failed while generating: {error}") from error

    async def _ask_all(self, questions: Sequence[dict[str, Any]], put: Callable[[tuple[int, Response]], None]) -> None:
        async with connected(self._spec.api_key, self._spec.timeout_s) as client:

            async def ask(server: Server, row: int) -> Response:
                asked = server.asked(questions[row])
                answer = await client.post(server, "/v1/completions", asked)
                return self._dialect.response(server, asked, answer)

            await Spread(self._servers, len(questions), ask, self._patience).run(put)

    def _question(self, prompt: Sequence[int], seed: int, limit: int, sampling: Sampling) -> dict[str, Any]:
        """A request of the completions protocol; the server's own defaults never count."""
        return {
            "prompt": list(prompt),
            "max_tokens": limit,
            "seed": seed & (2**self._dialect.seed_bits - 1),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop": list(sampling.stop),
            "stop_token_ids": self._stops,
            "logprobs": 0,
            "return_token_ids": True,
            **self._dialect.additions(sampling),
        }
