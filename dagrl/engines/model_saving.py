"""Writing models as Hugging Face folders."""

from __future__ import annotations

import copy
import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from dagrl.engines.model_tokens import generation_config
from dagrl.engines.models import quiet
from dagrl.engines.sharding import whole


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    dtype: torch.dtype,
    writes: bool = True,
) -> None:
    """Write model and tokenizer as a Hugging Face folder, weights in ``dtype``; the model stays as it is.

    The folder is written aside and renamed, so it is complete or absent; one that is there is replaced. Of ranks
    that share the weights out all must call, and one of them ``writes``.
    """
    weights = _cast(model, dtype, keep=writes)
    if not writes:
        return
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as aside:
        complete = Path(aside, "new")
        with quiet():
            _twin(model).save_pretrained(complete, state_dict=weights)
            _write_configs(model, dtype, complete)
            tokenizer.save_pretrained(complete)
        _make_readable(complete)
        if folder.exists():
            folder.rename(Path(aside, "old"))
        complete.rename(folder)


def save_configs(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, *, dtype: torch.dtype
) -> None:
    """Write what a Hugging Face folder has beside its weights into a folder that is there."""
    with quiet():
        _write_configs(model, dtype, folder)
        tokenizer.save_pretrained(folder)


@torch.no_grad()
def _cast(model: PreTrainedModel, dtype: torch.dtype, *, keep: bool) -> dict[str, Tensor]:
    """The weights in ``dtype``; tied ones stay one tensor, or the file would hold them twice.

    Shared-out ones are put together on the CPU, one at a time; a rank that does not keep them only helps.
    """
    weights: dict[str, Tensor] = model.state_dict(keep_vars=True)
    cast: dict[int, Tensor] = {}
    for key, value in {id(value): value for value in weights.values()}.items():
        full = whole(value)
        if keep:
            home = value.device if full is value else torch.device("cpu")
            cast[key] = full.detach().to(home, dtype if full.is_floating_point() else full.dtype)
    return {name: cast[id(value)] for name, value in weights.items()} if keep else {}


def _twin(model: PreTrainedModel) -> PreTrainedModel:
    """The same modules and weights, with configs that saving may check and write to."""
    twin = copy.copy(model)
    twin.config = copy.deepcopy(model.config)
    twin.generation_config = GenerationConfig()
    return twin


def _write_configs(model: PreTrainedModel, dtype: torch.dtype, folder: Path) -> None:
    """Put the right configs in place of what ``save_pretrained`` made of the twin's.

    transformers notes the live dtype, and refuses to save some generation configs that it loads: a
    temperature without do_sample, as many models have.
    """
    config = copy.deepcopy(model.config)
    config.dtype = dtype
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    generation = generation_config(model)
    if generation:
        generation.to_json_file(folder / "generation_config.json")


def _make_readable(folder: Path) -> None:
    """Files as open as new files are here: safetensors writes for the owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    for file in folder.iterdir():
        file.chmod(0o666 & ~mask)
