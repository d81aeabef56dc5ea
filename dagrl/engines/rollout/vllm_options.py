"""What an engine of vLLM is started with, on a CPU and on a GPU that others use too."""

from __future__ import annotations

from typing import Any

import torch

from dagrl.graph.rollouts import RolloutSpec

_GIB = 2**30


def engine_options(
    spec: RolloutSpec,
    dtype: torch.dtype,
    context_length: int | None,
    *,
    weight_bytes: int,
    gpu_bytes: int | None,
    trust_remote_code: bool = False,
) -> dict[str, Any]:
    """Options of vLLM's ``LLM`` beside model, launcher and weight transfer.

    ``weight_bytes`` are the model's in ``dtype``, over all processes that share the engine; ``gpu_bytes`` is all the
    memory of this process's GPU, None on a CPU.
    """
    on_cpu = gpu_bytes is None
    computes: Any = str(dtype).removeprefix("torch.")
    cache_bytes = int(spec.kv_cache_gib * _GIB)
    options: dict[str, Any] = {
        "load_format": "dummy",
        "dtype": computes,
        "max_model_len": context_length,
        "tensor_parallel_size": spec.tensor_parallel,
        "kv_cache_memory_bytes": cache_bytes,
        "enforce_eager": on_cpu if spec.enforce_eager is None else spec.enforce_eager,
        "enable_prefix_caching": spec.prefix_caching,
        "enable_sleep_mode": not on_cpu,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "seed": 0,
        "disable_log_stats": True,
        "trust_remote_code": trust_remote_code,
    }
    if gpu_bytes is not None:
        options["gpu_memory_utilization"] = _share(weight_bytes // spec.tensor_parallel + cache_bytes, gpu_bytes)
    return options


def _share(wanted_bytes: int, gpu_bytes: int) -> float:
    """The part of a GPU that must be free for the engine to start.

    The size of its cache is given, so vLLM uses this for nothing else; unless told, it wants nearly the whole GPU,
    which the trainer beside it has its weights on.
    """
    return min(1.0, wanted_bytes / gpu_bytes)
