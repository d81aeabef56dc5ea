"""Starting vLLM inside a process that does other things too, and leaving these as they were."""

from __future__ import annotations

import os
import random
import sys
import tempfile
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from dagrl.engines.model_saving import save_configs
from dagrl.engines.rollout.vllm_ending import has_foreign_group, note_group
from dagrl.engines.rollout.vllm_options import engine_options
from dagrl.errors import ConfigError, Problem
from dagrl.graph.rollouts import RolloutSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: The engine must live in this process. The rest may be set by the user: threads as torch has them, no reports home,
#: errors alone on the console.
_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


class Started(NamedTuple):
    """An engine, the most tokens that a sequence of it may have, and what its device can do.

    ``found_group`` is whether the process had a default process group of others, which must live on when it ends.
    """

    llm: Any
    context_length: int
    can_sleep: bool
    native_updates: bool
    found_group: bool = False


def start_vllm(
    spec: RolloutSpec,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    dtype: torch.dtype,
    context_length: int | None,
    native_updates: bool | None = None,
    trust_remote_code: bool = False,
) -> Started:
    """An engine of the model's architecture, whose weights are yet to come.

    ``native_updates`` is whether it takes weights by vLLM's own protocol; None: on an accelerator. Code in the model's
    folder runs with ``trust_remote_code`` alone.

    Raises:
        ConfigError: when vLLM refuses the model or the options.
    """
    on_cpu = not torch.cuda.is_available()
    native = not on_cpu if native_updates is None else native_updates
    found_group = has_foreign_group()
    with _undisturbed(), tempfile.TemporaryDirectory(prefix="dagrl-vllm-") as folder:
        save_configs(model, tokenizer, Path(folder), dtype=dtype)
        _import_vllm(on_cpu=on_cpu)
        _hide_what_cannot_be_scanned()
        try:
            options = engine_options(
                spec,
                dtype,
                context_length,
                weight_bytes=sum(weight.numel() for weight in model.parameters()) * dtype.itemsize,
                gpu_bytes=None if on_cpu else torch.cuda.mem_get_info()[1],
                trust_remote_code=trust_remote_code,
            )
            llm = _make(folder, options | _wiring(spec, on_cpu=on_cpu, native=native))
        # vLLM raises what pydantic, torch and its own layers raise.
        except Exception as error:
            raise ConfigError([_refused(spec, model, error)], "rollout") from error
    note_group(found=found_group)
    return Started(llm, llm.llm_engine.model_config.max_model_len, not on_cpu, native, found_group)


def _make(folder: str, options: dict[str, Any]) -> Any:
    from vllm import LLM

    return LLM(model=folder, **options)


def _wiring(spec: RolloutSpec, *, on_cpu: bool, native: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"weight_transfer_config": _transfer()} if native else {}
    if spec.tensor_parallel > 1:
        options["distributed_executor_backend"] = _launched(on_cpu)
    return options


def _launched(on_cpu: bool) -> Any:
    """The executor for processes that others have started: it finds their group there, and asks who it is."""
    os.environ["RANK"] = str(torch.distributed.get_rank())
    os.environ.setdefault("LOCAL_RANK", "0")
    if not on_cpu:
        return "external_launcher"
    from dagrl.engines.rollout.vllm_launcher import GroupExecutor

    return GroupExecutor


def _transfer() -> Any:
    from vllm.config import WeightTransferConfig
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    from dagrl.engines.rollout import vllm_transfer

    with suppress(ValueError):  # an earlier engine has done it
        WeightTransferEngineFactory.register_engine(vllm_transfer.NAME, vllm_transfer.InProcessTransfer)
    return WeightTransferConfig(backend=vllm_transfer.NAME)


def _import_vllm(*, on_cpu: bool) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from vllm.platforms import current_platform

    if on_cpu:
        # Else the first token waits, for up to half a minute, until a compiler has built the ranking of one log-prob.
        current_platform.simple_compile_backend = "eager"


class ScannableModules:
    """In place of ``sys.modules`` where vLLM looks at every attribute of all that is loaded.

    Some may not be looked at: a proxy of a web framework raises where no request is served.
    """

    def __getitem__(self, name: str) -> ModuleType:
        return sys.modules[name]

    def values(self) -> list[ModuleType]:
        """Those that can be looked at."""
        return [module for module in list(sys.modules.values()) if _can_be_scanned(module)]


def _can_be_scanned(module: ModuleType) -> bool:
    try:
        for value in list(vars(module).values()):
            if hasattr(value, "__dict__"):
                vars(value)
    # Whatever the attribute of a stranger's module raises, vLLM would fail by it.
    except Exception:  # noqa: BLE001
        return False
    return True


def _hide_what_cannot_be_scanned() -> None:
    from vllm.triton_utils import dispatcher

    known: Any = SimpleNamespace(modules=ScannableModules())  # of `sys` it reads no more
    dispatcher.sys = known  # pyright: ignore[reportPrivateImportUsage]


@contextmanager
def _undisturbed() -> Generator[None]:
    """Random numbers and torch's way to set its threads stay what they were; warnings stay off the console."""
    set_num_threads, python, numpy = torch.set_num_threads, random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads = set_num_threads
        random.setstate(python)
        np.random.set_state(numpy)


def _refused(spec: RolloutSpec, model: PreTrainedModel, error: Exception) -> Problem:
    text = str(error).strip()
    facts = (
        ("model", f"{type(model).__name__}, {model.config.name_or_path}"),
        ("cause", f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"),
    )
    if "ree memory on device" in text:
        fix = f"give `vllm(kv_cache_gib=...)` less than {spec.kv_cache_gib}, `offload=True` to what trains beside it"
    elif "KV cache" in text or "kv cache" in text:
        fix = f"give `vllm(kv_cache_gib=...)` more than {spec.kv_cache_gib}, or a smaller `max_model_len`"
    else:
        fix = 'generate with `rollout="hf"`, or take a model of an architecture that vLLM has'
    return Problem("vllm cannot run the model", spec.at, facts=facts, fix=fix)
