"""What the servers of one kind have to themselves; the rest of the completions protocol is the same for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dagrl.engines.rollout.base import Response
from dagrl.engines.rollout.server_client import Client, Refused, Server
from dagrl.errors import ConfigError, Problem
from dagrl.graph.roles import Sampling
from dagrl.graph.rollouts import RolloutSpec

_MOST_TOKENS = 2**31
#: A question or an answer in JSON.
Fields = Mapping[str, Any]


class Dialect(Protocol):
    """How one kind of server is asked, checked, and given weights.

    ``name`` is as its makers write it, ``seed_bits`` how wide the seeds are that it takes, and ``lost`` why a server
    whose mark has changed draws no more rows.
    """

    name: str
    seed_bits: int
    lost: str

    def model(self, server: Server, spec: RolloutSpec, models: Sequence[Fields]) -> Fields:
        """The one of the models that a server lists of which rows are asked; it sets ``server.model``.

        Raises:
            ConfigError: when it is not clear which.
        """
        ...

    def probe(self) -> dict[str, Any]:
        """A question without a prompt, whose log-probs tell what distribution they are those of."""
        ...

    def check_probe(self, server: Server, spec: RolloutSpec, answer: Any, vocab_size: int) -> None:
        """See from the answer to the probe that its log-probs are those that tokens are drawn by.

        Raises:
            ConfigError: when they are not, with how to start the server.
            Refused: when there are none.
        """
        ...

    async def context_length(
        self, client: Client, server: Server, spec: RolloutSpec, max_model_len: int | None
    ) -> int | None:
        """The most tokens of prompt and response together, and that the server was started as it must be.

        Raises:
            ConfigError: naming the option that it was started without.
        """
        ...

    async def check_updates(self, client: Client, server: Server, spec: RolloutSpec) -> None:
        """See that new weights can be handed over; nothing changes.

        Raises:
            ConfigError: when the server takes none.
        """
        ...

    async def load(self, client: Client, server: Server, folder: Path) -> str | None:
        """Have the server read the weights of a folder and forget its prefix cache; its mark afterwards.

        Raises:
            Refused: when it does not take them.
            EngineError: when its cache is not empty afterwards.
        """
        ...

    async def mark(self, client: Client, server: Server) -> str | None:
        """What stays the same for as long as the server has the weights that it has; None: it does not say."""
        ...

    def check_sampling(self, sampling: Sampling) -> None:
        """Raises ConfigError for sampling of which the server gives no log-probs."""
        ...

    def additions(self, sampling: Sampling) -> dict[str, Any]:
        """The fields of a row's question that other servers do not have, or read in another way."""
        ...

    def response(self, server: Server, question: Fields, answer: Any) -> Response:
        """The row in an answer.

        Raises:
            Refused: when there is none in it.
            Unavailable: when it is not whole.
        """
        ...


def drawn_tokens(answer: Any, who_gives_them: str) -> tuple[list[int], list[float]]:
    """The tokens of the one completion in an answer, and their log-probs; those that are no number are NaN.

    Raises:
        Refused: when there are no token ids, or not as many log-probs.
    """
    try:
        choice = answer["choices"][0]
        tokens, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
    except (TypeError, KeyError, IndexError) as error:
        raise Refused(200, f"an answer without token ids and log-probs; {who_gives_them}") from error
    if not isinstance(tokens, list) or not isinstance(logprobs, list) or len(tokens) != len(logprobs):
        raise Refused(200, f"an answer without a log-prob for each token id; {who_gives_them}")
    if not all(type(token) is int and 0 <= token < _MOST_TOKENS for token in tokens):
        raise Refused(200, f"an answer with token ids that are none: {tokens!r:.100}")
    if not all(logprob is None or isinstance(logprob, int | float) for logprob in logprobs):
        raise Refused(200, f"an answer with log-probs that are none: {logprobs!r:.100}")
    return tokens, [float("nan") if logprob is None else float(logprob) for logprob in logprobs]


def probed_logprobs(answer: Any, who_gives_them: str) -> list[float]:
    """The log-probs in the answer to a probe, at least one.

    Raises:
        Refused: as `drawn_tokens` does, and when nothing was drawn.
    """
    _, logprobs = drawn_tokens(answer, who_gives_them)
    if not logprobs:
        raise Refused(200, f"an answer without a token to a question for one: {answer!r:.100}")
    return logprobs


def wrong(spec: RolloutSpec, what: str, fix: str) -> ConfigError:
    """What to raise for a server that cannot draw for this model."""
    return ConfigError([Problem(what, spec.at, fix=fix)], "rollout")
