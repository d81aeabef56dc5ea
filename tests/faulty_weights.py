"""Weights that do not come as they were announced."""

from collections.abc import Iterator

from torch import Tensor
from transformers import PreTrainedModel

from dagrl.engines.weights import layout_of


class NoWeights:
    """Those of a model, of which none comes."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.layout = layout_of(model)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iter(())
