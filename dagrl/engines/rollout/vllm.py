"""Rollout by vLLM inside this process, from weights that the trainer hands over.

The engine never reads a checkpoint: it starts with the model's config and no weights, and is synced before it
generates. vLLM is imported when the first engine is made.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int64
from torch import Tensor

from dagrl.engines.rollout.base import (
    KV_CACHE,
    PARTS,
    WEIGHTS,
    Response,
    RolloutEngine,
    StatefulRollout,
    check_request,
    check_vllm_temperature,
    request_seeds,
    response_limits,
    samples_of,
)
from dagrl.engines.rollout.tensor_parallel import TensorParallelRollout
from dagrl.engines.rollout.vllm_ending import end_vllm, free_memory
from dagrl.engines.rollout.vllm_loading import Named, held_weight_bytes, make_loader, without_place
from dagrl.engines.rollout.vllm_start import Started, start_vllm
from dagrl.engines.weights import Layout, Weights, layout_of, tied_names
from dagrl.errors import EngineError
from dagrl.graph.progress import Progress
from dagrl.graph.roles import Samples, Sampling
from dagrl.graph.rollouts import RolloutSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def start_vllm_rollout(
    spec: RolloutSpec,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    dtype: torch.dtype,
    stop_token_ids: frozenset[int],
    pad_token_id: int,
    context_length: int | None,
    native_updates: bool | None = None,
    trust_remote_code: bool = False,
) -> RolloutEngine:
    """An engine with the architecture of ``model``, which computes in ``dtype`` and waits for weights.

    ``context_length`` bounds prompt and response together. Where ``tensor_parallel`` of the spec is above 1 so many
    processes of the default group share one engine, and all call its methods in one order. ``native_updates`` is
    whether weights come by vLLM's own protocol; None: on an accelerator. ``trust_remote_code`` lets code in the
    model's folder run.

    Raises:
        ConfigError: when vLLM does not take the model, or the key-value cache is too small for its context.
    """
    limits = [limit for limit in (spec.max_model_len, context_length) if limit is not None]
    started = start_vllm(
        spec,
        model,
        tokenizer,
        dtype=dtype,
        context_length=min(limits, default=None),
        native_updates=native_updates,
        trust_remote_code=trust_remote_code,
    )
    engine = VllmRollout(
        started,
        layout=layout_of(model),
        stop_token_ids=stop_token_ids,
        pad_token_id=pad_token_id,
        unplaced=without_place(started.llm, tied_names(model)),
        weight_bytes=held_weight_bytes(started.llm),
    )
    if spec.tensor_parallel == 1:
        return engine
    return TensorParallelRollout(engine, size=spec.tensor_parallel, pad_token_id=pad_token_id)


class VllmRollout(StatefulRollout):
    """Draws responses by an engine of vLLM that has been started for a model with the weights of ``layout``.

    ``cached_tokens`` counts, of the latest call, the prompt tokens whose keys and values were there already.
    ``unplaced`` are the weights that come with the others and have no place of their own in the engine, and
    ``weight_bytes`` is what the weights in this process take while they are awake.
    """

    def __init__(
        self,
        started: Started,
        *,
        layout: Layout,
        stop_token_ids: frozenset[int],
        pad_token_id: int,
        unplaced: frozenset[str] = frozenset(),
        weight_bytes: int = 0,
    ) -> None:
        super().__init__("vllm")
        self._llm = started.llm
        self._context_length = started.context_length
        self._can_sleep = started.can_sleep
        self._found_group = started.found_group
        self._loader = make_loader(started.llm, native=started.native_updates)
        self._layout = layout
        self._unplaced = unplaced
        self._weight_bytes = weight_bytes
        self._stops = sorted(stop_token_ids)
        self._pad = pad_token_id
        self._requests = 0
        self._open: set[str] = set()  # the names of requests whose rows have not come
        self._is_closed = False
        self.cached_tokens = 0

    @property
    def context_length(self) -> int:
        """The most tokens of prompt and response together."""
        return self._context_length

    @property
    def weight_bytes(self) -> int:
        """Of this process's share of the weights, while they are awake; a closed engine has none."""
        return 0 if self._is_closed else self._weight_bytes

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Int64[Tensor, " B"], sampling: Sampling) -> Samples:
        """One response for each prompt, from its own seed; rows that share a prompt share its prefill.

        The tensors are on the device of ``seeds``; T is the longest response. It raises as the protocol says.
        """
        rows = self.stream(prompts, seeds, sampling)
        return samples_of(rows, len(prompts), self._pad, seeds.device)

    def stream(
        self, prompts: Sequence[Sequence[int]], seeds: Int64[Tensor, " B"], sampling: Sampling
    ) -> Iterator[tuple[int, Response]]:
        """The rows of ``generate`` as they finish, each with its place among the prompts."""
        self._state.may_generate()
        check_vllm_temperature(sampling.temperature)
        check_request(prompts, seeds, sampling, self._context_length)
        limits = response_limits(prompts, sampling.max_new_tokens, self._context_length).tolist()
        return self._state.unchanged(self._drawn(prompts, request_seeds(seeds), limits, sampling))

    def load_weights(self, weights: Weights, version: int) -> None:
        """Take these weights in and forget the keys and values of the old ones; it raises as the protocol says."""
        with self._state.taking(weights, self._layout, version) as arrivals:
            self._abort(self._open)
            self._loader.load(self._placed(arrivals))
            arrivals.check_complete()
            self._reset_prefix_cache()

    def sleep(self, level: int = 1) -> None:
        """Give memory back, on an accelerator; on a CPU there is none to give back, but the states are the same."""
        if self._state.fall_asleep(level):
            self._abort(self._open)  # their keys and values go
            if self._can_sleep:
                self._llm.sleep(level=level)

    def wake(self, tags: Sequence[str] = PARTS) -> None:
        """Have parts in memory again; a cache that slept is empty."""
        slept = self._state.wake_up(tags)
        if self._can_sleep:
            for part in (WEIGHTS, KV_CACHE):
                if part in slept:
                    self._llm.wake_up(tags=[part])

    def close(self) -> None:
        """End the engine and give its memory back."""
        self._state.die("it was closed")
        if not self._is_closed:
            self._is_closed = True
            end_vllm(self._llm, found_group=self._found_group)
            del self._llm, self._loader
            free_memory()

    def _placed(self, weights: Iterable[Named]) -> Iterator[Named]:
        return filter(lambda named: named[0] not in self._unplaced, weights)  # which keeps none of them alive

    def _reset_prefix_cache(self) -> None:
        if not self._llm.reset_prefix_cache():
            raise EngineError("its prefix cache could not be emptied: rows are still being drawn")

    def _drawn(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limits: Sequence[int], sampling: Sampling
    ) -> Generator[tuple[int, Response]]:
        if self._open:
            raise EngineError("the vllm engine still draws the rows of another stream: read it to its end, or close it")
        engine = self._llm.llm_engine
        progress = Progress(len(prompts), "responses")
        places: dict[str, int] = {}
        self.cached_tokens = 0
        try:
            with torch.random.fork_rng(devices=[]):  # vLLM draws a number a row from the process's own generator
                for row, (prompt, seed, limit) in enumerate(zip(prompts, seeds, limits, strict=True)):
                    places[self._add(engine, prompt, self._parameters(seed, limit, sampling))] = row
            while places:
                with torch.random.fork_rng(devices=[]):
                    outputs = engine.step()
                for output in outputs:
                    if output.finished:
                        progress.advance()
                        self._open.remove(output.request_id)
                        self.cached_tokens += output.num_cached_tokens or 0
                        yield places.pop(output.request_id), _response(output.outputs[0])
        except Exception as error:
            self._state.die(f"generating failed: {type(error).__name__}: {error}")
            raise EngineError(f"the vllm engine failed while generating: {error}") from error
        finally:
            self._abort(places)  # the caller has stopped listening

    def _abort(self, names: Iterable[str]) -> None:
        """Draw those of the requests no further that are open; a dead engine draws nothing anyway."""
        found = sorted(self._open.intersection(names))
        if found and not self.is_dead:
            self._llm.llm_engine.abort_request(found)
            self._open.difference_update(found)

    def _add(self, engine: Any, prompt: Sequence[int], parameters: Any) -> str:
        self._requests += 1
        name = str(self._requests)
        engine.add_request(name, {"prompt_token_ids": list(prompt)}, parameters)
        self._open.add(name)
        return name

    def _parameters(self, seed: int, limit: int, sampling: Sampling) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=limit,
            seed=seed,
            stop=list(sampling.stop),
            include_stop_str_in_output=True,
            stop_token_ids=self._stops,
            ignore_eos=True,  # those of the policy alone end a response
            detokenize=bool(sampling.stop),
            logprobs=0,
            flat_logprobs=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def _response(completion: Any) -> Response:
    """What vLLM drew; the log-probs of the drawn tokens are the only ones it was asked for."""
    tokens = list(completion.token_ids)
    logprobs = [completion.logprobs.logprobs[start] for start in completion.logprobs.start_indices[: len(tokens)]]
    return Response(tokens, logprobs, completion.finish_reason == "length")
