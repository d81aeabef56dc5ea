"""Where a model and its optimizer's state are, by the order in which they would move on an accelerator."""

from contextlib import suppress

import pytest
import torch
from torch import nn

from dagrl.engines.residence import MODEL, OPTIMIZER, Residence
from dagrl.errors import EngineError


class Recorded(nn.Module):
    """A module that only notes where it is sent, and what of its gradient it takes along."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.weight.grad = torch.ones(2)
        self._log = log

    def to(self, *, device: torch.device) -> "Recorded":  # pyright: ignore[reportIncompatibleMethodOverride]
        self._log.append(f"model to {device}{'' if self.weight.grad is None else ' with its gradient'}")
        return self


class OnCuda(Residence):
    """As if the model had been made on an accelerator."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(Recorded(log), "actor", lambda device: log.append(f"optimizer to {device}"))
        self._device = torch.device("cuda", 1)


def test_parts_move_once_each_way(monkeypatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: log.append("memory is free"))
    residence = OnCuda(log)
    for move in (residence.offload, residence.onload):
        for part in (OPTIMIZER, MODEL):
            move(part)
            move(part)
    assert log == [
        "optimizer to cpu", "memory is free", "model to cpu", "memory is free",
        "optimizer to cuda:1", "memory is free", "model to cuda:1", "memory is free",
    ]  # fmt: skip


def test_what_is_away_is_asked_for_in_vain() -> None:
    residence = Residence(Recorded([]), "actor")
    residence.require(MODEL, OPTIMIZER)
    residence.offload(OPTIMIZER)
    residence.require(MODEL)
    with pytest.raises(EngineError, match="the optimizer of worker group `actor` is offloaded"):
        residence.require(MODEL, OPTIMIZER)
    residence.onload(OPTIMIZER)
    residence.require(MODEL, OPTIMIZER)


@pytest.mark.parametrize("away", [True, False])
def test_a_part_is_brought_for_a_while(away: bool) -> None:
    log: list[str] = []
    residence = Residence(Recorded(log), "actor")
    if away:
        residence.offload(MODEL)
    with residence.present(MODEL):
        residence.require(MODEL)
    assert len(log) == (3 if away else 0)
    if away:
        with pytest.raises(EngineError):
            residence.require(MODEL)
    else:
        residence.require(MODEL)


def test_an_error_while_a_part_is_here_for_a_while_leaves_it_away() -> None:
    residence = Residence(Recorded([]), "actor")
    residence.offload(MODEL)
    with suppress(ValueError), residence.present(MODEL):
        raise ValueError
    with pytest.raises(EngineError):
        residence.require(MODEL)
