"""Where a model and its optimizer's state are: on their device, or in the host's memory while others use that."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
from torch import nn

from dagrl.errors import EngineError

MODEL = "model"
OPTIMIZER = "optimizer"


class Residence:
    """Moves what a group trains out of the accelerator's memory and back; on a CPU it only keeps the books.

    Whoever computes with a part says so by ``require``: a plan that forgets to bring it fails on every machine.
    Gradients are dropped on the way out. Of a model that ranks share out this rank's share moves.
    """

    def __init__(
        self, model: nn.Module, group: str, move_optimizer: Callable[[torch.device], None] | None = None
    ) -> None:
        self._model = model
        self._group = group
        self._move_optimizer = move_optimizer
        self._device = next(model.parameters()).device
        self._away: set[str] = set()

    def require(self, *parts: str) -> None:
        """Raises EngineError for a part that is in the host's memory."""
        for part in parts:
            if part in self._away:
                raise EngineError(f"the {part} of worker group `{self._group}` is offloaded: bring it back first")

    def offload(self, part: str) -> None:
        """Keep the part in the host's memory; doing it twice changes nothing."""
        if part not in self._away:
            self._move(part, torch.device("cpu"))
            self._away.add(part)

    def onload(self, part: str) -> None:
        """Have the part on its device again; doing it twice changes nothing."""
        if part in self._away:
            self._move(part, self._device)
            self._away.discard(part)

    @contextmanager
    def present(self, part: str) -> Generator[None]:
        """Have the part on its device inside, wherever it is otherwise."""
        was_away = part in self._away
        self.onload(part)
        try:
            yield
        finally:
            if was_away:
                self.offload(part)

    def _move(self, part: str, device: torch.device) -> None:
        if part == MODEL:
            self._model.zero_grad(set_to_none=True)
            self._model.to(device=device)
        elif self._move_optimizer is not None:
            self._move_optimizer(device)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # another engine in this process takes what is free
