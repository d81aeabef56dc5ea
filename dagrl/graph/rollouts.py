"""Specs of how a policy generates: which engine draws the responses, and its options."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from dagrl.errors import Location, PipelineFileError, Problem
from dagrl.graph.source import caller_location

#: What vLLM draws at beside 0: it refuses a higher temperature, and silently takes another for a lower one.
VLLM_TEMPERATURES = (0.01, 2.0)

EngineName = Literal["hf", "vllm", "server"]


@dataclass(frozen=True, kw_only=True)
class RolloutSpec:
    """An engine and its options; those of another engine keep their defaults and mean nothing."""

    engine: EngineName = "hf"
    tensor_parallel: int = 1
    kv_cache_gib: float = 1.0
    max_model_len: int | None = None
    enforce_eager: bool | None = None
    prefix_caching: bool = True
    urls: tuple[str, ...] = ()
    api_key: str | None = field(default=None, repr=False)
    served_model: str | None = None
    weights_folder: str | None = None
    concurrency: int = 64
    timeout_s: float = 600.0
    at: Location = field(default_factory=caller_location, compare=False, repr=False)


def vllm(
    *,
    tensor_parallel: int = 1,
    kv_cache_gib: float = 1.0,
    max_model_len: int | None = None,
    enforce_eager: bool | None = None,
    prefix_caching: bool = True,
) -> RolloutSpec:
    """An engine of vLLM inside each worker process, for ``policy(..., rollout=vllm())``; it needs the extra `vllm`.

    ``tensor_parallel`` processes of the group share one engine. ``kv_cache_gib`` is what each process keeps of keys
    and values: more lets more rows be drawn at once. ``max_model_len`` bounds prompt and response together; None is
    the model's own context. ``enforce_eager=None`` compiles the model on an accelerator alone. With
    ``prefix_caching`` the rows of one prompt share its prefill; each sync of the weights empties that cache.

    On GPUs one group of a pool can generate by vLLM, and as it starts the GPU must have room for the engine's weights
    and cache beside what the trainer has there already.
    """
    return RolloutSpec(
        engine="vllm",
        tensor_parallel=tensor_parallel,
        kv_cache_gib=kv_cache_gib,
        max_model_len=max_model_len,
        enforce_eager=enforce_eager,
        prefix_caching=prefix_caching,
    )


def server(
    urls: Sequence[str],
    *,
    api_key: str | None = None,
    served_model: str | None = None,
    weights_folder: str | None = None,
    concurrency: int = 64,
    timeout_s: float = 600.0,
) -> RolloutSpec:
    """Servers of vLLM or SGLang, for ``policy(..., rollout=server([...]))``; which of the two they are is found.

    ``urls`` are their base addresses, such as ``http://host:8000/v1``; rows go to whichever is free, at most
    ``concurrency`` at once to each from one process. A row that has no answer after ``timeout_s`` seconds goes to
    another server. ``api_key`` is sent as a bearer token; ``served_model`` is needed where one of vLLM has several.

    They must serve the group's model: vLLM's with ``--logprobs-mode processed_logprobs``, SGLang's with
    ``--enable-deterministic-inference``. A model that is trained needs a ``weights_folder`` that is at the same path
    for the trainer and all servers, and vLLM's servers then ``VLLM_SERVER_DEV_MODE=1`` in their environment: each sync
    writes the weights there and has every server load them. Give such servers no other users, and no address that
    strangers reach.

    SGLang's are asked by its documented protocol, in versions whose ``/v1/completions`` takes ``return_token_ids``
    (July 2026). They give no log-probs for ``top_k`` and ``top_p``, and also stop at the end-of-sequence tokens of the
    model's configs and tokenizer: one that is not among the policy's ``stop_tokens`` ends the run.
    """
    given: Any = urls if isinstance(urls, str) else tuple(urls)
    return RolloutSpec(
        engine="server",
        urls=given,
        api_key=api_key,
        served_model=served_model,
        weights_folder=weights_folder,
        concurrency=concurrency,
        timeout_s=timeout_s,
    )


def rollout_spec(value: RolloutSpec | str) -> RolloutSpec:
    """The spec that an engine's name stands for, or that is given.

    Raises:
        PipelineFileError: for another value, and for `server`, which needs addresses.
    """
    if isinstance(value, RolloutSpec):
        return value
    if value == "server":
        fix = 'give their addresses: `rollout=server(["http://host:8000/v1"])`'
        raise PipelineFileError([Problem('rollout="server" does not say which servers.', caller_location(), fix=fix)])
    if value not in get_args(EngineName):
        fix = 'give `"hf"`, `"vllm"`, `vllm(...)` or `server([...])`'
        raise PipelineFileError([Problem(f"a policy has rollout={value!r}.", caller_location(), fix=fix)])
    return RolloutSpec(engine=value)  # pyright: ignore[reportArgumentType] - one of the names
