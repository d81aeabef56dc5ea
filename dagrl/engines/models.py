"""Reading Hugging Face models from folders and by hub names.

The one place that turns transformers' many ways to fail into a message.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from logging import CRITICAL, getLogger
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from dagrl.errors import ConfigError, Problem
from dagrl.graph.specs import Precision

_HUB_NAME = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*")
_NAMES_SHOWN = 3


def dtype_of(precision: Precision) -> torch.dtype:
    """What a model of that precision generates from and is saved in; trained weights are fp32 always."""
    return torch.float32 if precision == "fp32" else torch.bfloat16


def load_model(
    folder_or_name: str,
    *,
    dtype: torch.dtype,
    attn_implementation: str,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> PreTrainedModel:
    """A causal language model from a folder or the hub, in evaluation mode, without a word on the console.

    Code of its own is not run, nor are pickled weights read, unless allowed.
    Raises ConfigError where there is none, it cannot be read, or its weights do not fill its config.
    """
    model, report = load_as(
        AutoModelForCausalLM,
        folder_or_name,
        dtype=dtype,
        attn_implementation=attn_implementation,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
    )
    check_weights(folder_or_name, report, model.state_dict(), kind="a causal language model")
    return model


def fresh_model(
    folder_or_name: str,
    *,
    seed: int,
    dtype: torch.dtype,
    attn_implementation: str,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """A causal language model of that config with weights of its own, drawn from the seed, in evaluation mode.

    Raises ConfigError where there is no config, or it cannot be read.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return _model_of_config(folder_or_name, dtype, attn_implementation, trust_remote_code, torch.device("cpu"))


def hollow_model(folder_or_name: str, *, attn_implementation: str, trust_remote_code: bool = False) -> PreTrainedModel:
    """A causal language model of that config whose tensors have names and shapes, and no memory: no weights are read.

    They are on torch's meta device. Raises ConfigError where there is no config, or it cannot be read.
    """
    return _model_of_config(folder_or_name, torch.float32, attn_implementation, trust_remote_code, torch.device("meta"))


def _model_of_config(
    folder_or_name: str,
    dtype: torch.dtype,
    attn_implementation: str,
    trust_remote_code: bool,
    device: torch.device,
) -> PreTrainedModel:
    with refusing("model", folder_or_name):
        config = AutoConfig.from_pretrained(folder_or_name, trust_remote_code=trust_remote_code)
        with device:
            made: Any = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=attn_implementation, trust_remote_code=trust_remote_code
            )
        with suppress(OSError):  # there need be none
            made.generation_config = GenerationConfig.from_pretrained(folder_or_name)
    return made.eval()


def load_as(
    auto_class: Any,
    folder_or_name: str,
    *,
    dtype: torch.dtype,
    attn_implementation: str,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    **config: Any,
) -> tuple[PreTrainedModel, Mapping[str, Any]]:
    """A model of one of transformers' auto classes, and its report of weights that it missed or had no place for.

    ``config`` replaces fields of the model's own. Raises ConfigError where there is none or it cannot be read.
    """
    with refusing("model", folder_or_name):
        loaded: Any = auto_class.from_pretrained(
            folder_or_name,
            dtype=dtype,
            attn_implementation=attn_implementation,
            trust_remote_code=trust_remote_code,
            use_safetensors=None if allow_pickle else True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **config,
        )
    return loaded


def keep_score_cap(model: PreTrainedModel) -> None:
    """Have a model whose attention caps its scores, as Gemma 2, compute it as written: sdpa leaves the cap out."""
    # Configs of other families have no such field.
    if getattr(model.config.get_text_config(decoder=True), "attn_logit_softcapping", None) is not None:
        model.set_attn_implementation("eager")


def load_tokenizer(folder_or_name: str, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer of a model. Raises ConfigError where there is none or it cannot be read."""
    with refusing("tokenizer", folder_or_name):
        tokenizer = AutoTokenizer.from_pretrained(folder_or_name, trust_remote_code=trust_remote_code)
        # Without its files some classes load as a shell: special tokens and no vocabulary.
        if len(tokenizer) <= len(tokenizer.all_special_tokens):
            raise ValueError("it has no vocabulary")
    return tokenizer


@contextmanager
def quiet() -> Generator[None]:
    """Neither transformers' log nor progress bars nor warnings; what was set is put back."""
    verbosity, progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub = getLogger("huggingface_hub")
    hub_level = hub.level
    logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()
    hub.setLevel(CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        hub.setLevel(hub_level)
        if progress:
            logging.enable_progress_bar()


@contextmanager
def refusing(kind: str, reference: str) -> Generator[None]:
    """Run a load quietly and turn its failure into a ConfigError."""
    problem = _missing(kind, reference)
    if problem:
        raise ConfigError([problem])
    try:
        with quiet():
            yield
    # Readers of JSON, safetensors, pickles, tokenizers and the hub share no base class but this one.
    except Exception as error:
        raise ConfigError([_unreadable(kind, reference, error)]) from error


def _missing(kind: str, reference: str) -> Problem | None:
    """What is wrong with a reference before anything is read; a hub name may be anywhere."""
    path = Path(reference)
    if reference and path.is_dir():
        if kind == "tokenizer" or (path / "config.json").is_file():
            return None
        what, fix = "the model folder has no config.json", "name a folder that `save_pretrained` wrote"
    elif reference and path.exists():
        what, fix = f"the {kind} must be a folder, not a file", "name the folder that holds the file"
    elif not _HUB_NAME.fullmatch(reference):
        what, fix = f"there is no {kind} folder", "check the path, or name a model of the hub as `owner/name`"
    else:
        return None
    return Problem(what, facts=((kind, repr(reference)),), fix=fix)


def _unreadable(kind: str, reference: str, error: Exception) -> Problem:
    text = str(error).strip()
    if isinstance(error, ImportError) or "attn_implementation" in text:
        fix = "install what is missing, or choose another attn_implementation"
    elif Path(reference).is_dir():
        fix = "check that the folder is a complete copy, written by `save_pretrained`"
    else:
        fix = "check the name and the connection, or name a local folder"
    cause = f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"
    return Problem(f"the {kind} cannot be loaded", facts=((kind, repr(reference)), ("cause", cause)), fix=fix)


def check_weights(
    reference: str, report: Mapping[str, Any], known: Iterable[str], *, kind: str, may_lack: Collection[str] = ()
) -> None:
    """Refuse weights that transformers would fill in at random, and layers that it would leave out.

    ``known`` are the model's weights, ``may_lack`` those of them that need not be in the files.
    """
    mismatched = [f"{name}: {tuple(have)} for {tuple(want)}" for name, have, want in report["mismatched_keys"]]
    spare = _spare_layers(report["unexpected_keys"], known)
    missing = set(report["missing_keys"]) - set(may_lack)
    found = (("missing", missing), ("shapes", mismatched), ("more layers", spare))
    facts = [(label, _few(names)) for label, names in found]
    facts = [(label, text) for label, text in facts if text]
    if facts:
        what = "the weights do not fill the model that config.json describes"
        fix = f"check that weights and config.json belong together, as {kind}"
        raise ConfigError([Problem(what, facts=(("model", repr(reference)), *facts), fix=fix)])


def _spare_layers(unexpected: Iterable[str], known: Iterable[str]) -> list[str]:
    """Unexpected weights that look like the model's own but for a number; other extras do no harm."""
    patterns = {re.sub(r"\d+", "N", name) for name in known}
    return [name for name in unexpected if re.sub(r"\d+", "N", name) in patterns]


def _few(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
