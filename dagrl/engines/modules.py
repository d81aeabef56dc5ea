"""transformers' models as torch sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def as_module(model: PreTrainedModel) -> nn.Module:
    """The model as torch types it: transformers' own annotations hide its arguments."""
    return model


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers that repeat: those that the model's family never splits over devices."""
    kinds = set(model._no_split_modules or ())  # pyright: ignore[reportPrivateUsage] - the only place that says it
    lists = [module for module in as_module(model).modules() if isinstance(module, nn.ModuleList)]
    return [layer for layers in lists for layer in layers if type(layer).__name__ in kinds]
