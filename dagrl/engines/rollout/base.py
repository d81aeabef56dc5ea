"""What every rollout engine does, and the states it can be in."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from dagrl.engines.weights import Arrivals, Layout, Weights, check_layout
from dagrl.errors import ConfigError, EngineError, Problem, TrainingError
from dagrl.graph.roles import Samples, Sampling
from dagrl.graph.rollouts import VLLM_TEMPERATURES
from dagrl.ops.random import mix

WEIGHTS = "weights"
KV_CACHE = "kv_cache"
#: What an engine keeps in memory while it is awake, and may give back one by one.
PARTS = (WEIGHTS, KV_CACHE)

#: vLLM reads the seed -1 as "none", so seeds lose their sign.
_SEED_MASK = 2**63 - 1

_ROWS_SHOWN = 5


class Response(NamedTuple):
    """One finished row: its tokens, the one that ended it included, and their log-probs."""

    tokens: list[int]
    logprobs: list[float]
    truncated: bool


#: A finished row and its place among the prompts.
Row = tuple[int, Response]


class RolloutEngine(Protocol):
    """Draws responses from weights that another module trains.

    An engine is awake, or some of its parts (weights, key-value cache) sleep; it generates only when all are awake
    and its weights are whole. Waking what is awake and putting to sleep what sleeps change nothing.
    """

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Int64[Tensor, " B"], sampling: Sampling) -> Samples:
        """One response for each prompt; a row depends on its prompt and seed alone.

        Raises:
            ConfigError: for a prompt that is empty or leaves no room, or sampling the engine cannot do.
            EngineError: when the engine sleeps, has no weights, or is dead.
            TrainingError: where the model's logits are not finite.
        """
        ...

    def stream(
        self, prompts: Sequence[Sequence[int]], seeds: Int64[Tensor, " B"], sampling: Sampling
    ) -> Iterator[tuple[int, Response]]:
        """The rows of ``generate`` as they finish, each with its place among the prompts.

        They are all of the weights that the engine has at this call.

        Raises:
            ConfigError, EngineError, TrainingError: as ``generate``, at this call or instead of a row.
            EngineError: instead of the next row, once the engine has been given weights, has slept or has died.
        """
        ...

    def load_weights(self, weights: Weights, version: int) -> None:
        """Take these weights in; ``version`` is how often they have been trained.

        Raises:
            EngineError: when names or shapes are not the model's (nothing has then changed), or loading fails (the
                engine is then dead: it never generates again).
        """
        ...

    @property
    def version(self) -> int | None:
        """That of the weights it generates from; None before the first."""
        ...

    @property
    def is_dead(self) -> bool:
        """Whether a load failed or the engine was closed: only a new one generates again."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Of weights that it holds in this process, beside those of a model that it was given."""
        ...

    def sleep(self, level: int = 1) -> None:
        """Give memory back: level 1 keeps a copy of the weights outside the accelerator, level 2 keeps none."""
        ...

    def wake(self, tags: Sequence[str] = PARTS) -> None:
        """Have parts in memory again; after a sleep of level 2 the weights must be loaded before it generates."""
        ...

    def close(self) -> None:
        """Let go of everything; the engine is dead then."""
        ...


class EngineState:
    """Which parts of an engine are awake, what its weights are, and what may be done with it.

    ``changes`` counts how often weights or cache were replaced or let go: rows are drawn within one count.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.version: int | None = None
        self.awake = frozenset(PARTS)
        self.changes = 0
        self.death: str | None = None

    def may_generate(self) -> None:
        """Raises EngineError unless the engine is alive, awake and has weights."""
        self.may_act()
        asleep = [part for part in PARTS if part not in self.awake]
        if asleep:
            raise EngineError(
                f"the {self.name} engine was asked to generate while its {_joined(asleep)} sleep: wake it"
            )
        if self.version is None:
            raise EngineError(
                f"the {self.name} engine was asked to generate before it was given weights: sync it first"
            )

    def unchanged(self, rows: Generator[Row]) -> Iterator[Row]:
        """The rows, each drawn only while the engine is as it is at this call; else ``rows`` is closed.

        Raises:
            EngineError: at this call unless the engine may generate, and instead of a row once it may no more, or has
                been given weights or slept.
        """
        self.may_generate()
        return self._while_unchanged(rows, self.changes)

    def _while_unchanged(self, rows: Generator[Row], changes: int) -> Iterator[Row]:
        with closing(rows):
            while True:
                self.may_generate()
                if self.changes != changes:
                    raise EngineError(
                        f"the {self.name} engine was given weights or slept after it was asked for these rows: "
                        "ask for them anew"
                    )
                row = next(rows, None)
                if row is None:
                    return
                yield row

    def may_load(self) -> None:
        """Raises EngineError unless the engine is alive and its weights are in memory."""
        self.may_act()
        if WEIGHTS not in self.awake:
            raise EngineError(f"the {self.name} engine was given weights while they sleep: wake them first")

    def may_act(self) -> None:
        """Raises EngineError for a dead engine."""
        if self.death is not None:
            raise EngineError(f"the {self.name} engine is dead: {self.death}. It must be built anew")

    def fall_asleep(self, level: int) -> bool:
        """Whether this changes anything; raises EngineError for a dead engine or another level than 1 and 2."""
        self.may_act()
        if level not in (1, 2):
            raise EngineError(f"the {self.name} engine sleeps at level 1 or 2, not {level!r}")
        changed = bool(self.awake)
        self.changes += 1
        self.awake = frozenset()
        if level == 2:
            self.version = None
        return changed

    def wake_up(self, tags: Sequence[str]) -> tuple[str, ...]:
        """The parts that were asleep; raises EngineError for a dead engine or an unknown part."""
        self.may_act()
        unknown = [tag for tag in tags if tag not in PARTS]
        if unknown:
            raise EngineError(
                f"the {self.name} engine has no part {unknown[0]!r} to wake: {_joined(PARTS)} are its parts"
            )
        slept = tuple(part for part in PARTS if part in tags and part not in self.awake)
        self.awake |= set(slept)
        return slept

    @contextmanager
    def taking(self, weights: Weights, layout: Layout, version: int) -> Generator[Arrivals]:
        """Load these weights inside: afterwards they are ``version``, or the engine is dead, whatever was raised.

        Raises:
            EngineError: as the protocol says of loading.
        """
        self.may_load()
        check_layout(weights.layout, layout, self.name)
        self.changes += 1
        try:
            yield Arrivals(weights)
        # Libraries and servers fail in ways of their own, and an engine is then left with part of the weights.
        except BaseException as error:
            self.die(f"loading weights failed: {type(error).__name__}: {error}")
            if isinstance(error, Exception):
                raise EngineError(f"the {self.name} engine could not load weights: {error}") from error
            raise
        self.version = version

    def die(self, why: str) -> None:
        """From now on everything raises; the first reason stays."""
        self.death = self.death or why
        self.version = None


class StatefulRollout:
    """What engines have in common: their state, and sleep and wake where there is no memory to give back."""

    def __init__(self, name: str) -> None:
        self._state = EngineState(name)

    @property
    def version(self) -> int | None:
        """That of the weights it generates from; None before the first and after a deep sleep."""
        return self._state.version

    @property
    def is_dead(self) -> bool:
        """Whether a load or a call failed for good, or the engine was closed."""
        return self._state.death is not None

    @property
    def weight_bytes(self) -> int:
        """None: it has no weights beside those of a model that it was given."""
        return 0

    def sleep(self, level: int = 1) -> None:
        """Generate no more until it wakes; no memory is given back."""
        self._state.fall_asleep(level)

    def wake(self, tags: Sequence[str] = PARTS) -> None:
        """Generate again, once all parts are awake."""
        self._state.wake_up(tags)

    def close(self) -> None:
        """Generate no more."""
        self._state.die("it was closed")


def check_request(
    prompts: Sequence[Sequence[int]], seeds: Int64[Tensor, " B"], sampling: Sampling, context_length: int | None
) -> None:
    """See that the rows can be drawn.

    Raises:
        ConfigError: for a prompt that is empty or leaves no room, and sampling out of its bounds.
    """
    if seeds.shape != (len(prompts),):
        raise ValueError(f"{len(prompts)} prompts need as many seeds; seeds has shape {tuple(seeds.shape)}")
    problems: list[Problem] = []
    if sampling.max_new_tokens < 1:
        problems.append(Problem(f"max_new_tokens must be 1 or more, not {sampling.max_new_tokens}"))
    if not 0 <= sampling.temperature < float("inf"):
        problems.append(Problem(f"temperature must be 0 or more, not {sampling.temperature}"))
    if "" in sampling.stop:
        problems.append(Problem("an empty text in `stop` would end every response before its first token"))
    problems += _prompt_problems([len(prompt) for prompt in prompts], context_length)
    if problems:
        raise ConfigError(problems, "rollout")


def check_vllm_temperature(temperature: float) -> None:
    """Raises ConfigError for a temperature at which vLLM does not draw."""
    lowest, highest = VLLM_TEMPERATURES
    if temperature != 0 and not lowest <= temperature <= highest:
        what = f"vllm draws at temperature 0 or from {lowest} to {highest}, not at {temperature}"
        raise ConfigError([Problem(what, fix='change the temperature, or generate with `rollout="hf"`')], "rollout")


def request_seeds(seeds: Int64[Tensor, " B"]) -> list[int]:
    """The seed of each row's request to vLLM, from 0 up."""
    return [seed & _SEED_MASK for seed in mix(seeds.cpu()).tolist()]


def _prompt_problems(lengths: Sequence[int], context_length: int | None) -> Iterator[Problem]:
    empty = [f"row {row}" for row, length in enumerate(lengths) if length == 0]
    if empty:
        yield Problem(
            "a prompt without tokens cannot be continued",
            facts=(("rows", _shown(empty)),),
            fix="give every prompt at least one token, e.g. the beginning-of-sequence token",
        )
    limit = float("inf") if context_length is None else context_length
    full = [f"row {row}: {length} tokens" for row, length in enumerate(lengths) if length >= limit]
    if full:
        yield Problem(
            "a prompt leaves no room for a response",
            facts=(("prompts", _shown(full)), ("context", f"{context_length} tokens, prompt and response together")),
            fix="filter or shorten the prompts, or take a model with a longer context",
        )


def _shown(rows: Sequence[str]) -> str:
    more = f"\nand {len(rows) - _ROWS_SHOWN} more" if len(rows) > _ROWS_SHOWN else ""
    return "\n".join(rows[:_ROWS_SHOWN]) + more


def response_limits(
    prompts: Sequence[Sequence[int]], max_new_tokens: int, context_length: int | None
) -> Int64[Tensor, " B"]:
    """The most tokens that each response may have: prompt and response stay inside the context."""
    lengths = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int64)
    if context_length is None:
        return torch.full_like(lengths, max_new_tokens)
    return (context_length - lengths).clamp(max=max_new_tokens)


def no_samples(device: torch.device) -> Samples:
    """Those of no prompts."""
    ids = torch.zeros(0, 0, dtype=torch.int64, device=device)
    logprobs = torch.zeros(0, 0, dtype=torch.float32, device=device)
    return Samples(ids, ids.flatten(), logprobs, torch.zeros(0, dtype=torch.bool, device=device))


def samples_of(rows: Iterable[tuple[int, Response]], num_rows: int, pad: int, device: torch.device) -> Samples:
    """All rows side by side, padded on the right; T is the longest response.

    Raises:
        TrainingError: where a log-prob is not finite.
    """
    by_row = dict(rows)  # to its end, also for no row: others may wait for this process
    if num_rows == 0:
        return no_samples(device)
    lengths = torch.tensor([len(by_row[row].tokens) for row in range(num_rows)])
    width = int(lengths.max())
    ids = torch.full((num_rows, width), pad)
    logprobs = torch.zeros(num_rows, width)
    for row, response in by_row.items():
        ids[row, : len(response.tokens)] = torch.tensor(response.tokens)
        logprobs[row, : len(response.tokens)] = torch.tensor(response.logprobs)
    check_finite(logprobs)
    truncated = torch.tensor([by_row[row].truncated for row in range(num_rows)])
    return Samples(*(column.to(device) for column in (ids, lengths, logprobs, truncated)))


def check_finite(logprobs: Float32[Tensor, "B T"]) -> None:
    """Raises TrainingError where a log-prob is not finite."""
    if not bool(logprobs.isfinite().all()):
        place, row = (~logprobs.T.isfinite()).nonzero()[0].tolist()
        raise not_finite(row, place)


def not_finite(row: int, place: int) -> TrainingError:
    """What to raise where a log-prob is not finite."""
    return TrainingError(
        f"the model's logits are not finite: first for the response token {place} of row {row}. "
        "Its weights may have diverged."
    )


def _joined(parts: Sequence[str]) -> str:
    return " and ".join(f"`{part}`" for part in parts)
