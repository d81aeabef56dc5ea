"""What a trained model needs to go on as if nothing had happened: weights, AdamW's moments, random number states.

Plain tensors by name and plain JSON about them; each rank gives what it holds, and any number of ranks can take it up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dagrl.engines.parallel import DataParallel
from dagrl.engines.sharding import local, span
from dagrl.errors import CheckpointError

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class WorkerState:
    """One rank's part: the live tensors, to be written before the next update, and JSON about them.

    ``info["rank"]`` is the rank; ``info["shares"]`` gives, for a tensor of which this is some rows, the first of
    them and the shape of the whole.
    """

    tensors: dict[str, Tensor]
    info: dict[str, Any]


class StatePart(Protocol):
    """One rank's part as it is read back."""

    @property
    def info(self) -> Mapping[str, Any]:
        """What ``WorkerState.info`` was."""
        ...

    @property
    def names(self) -> Collection[str]:
        """The names of the tensors."""
        ...

    def tensor(self, name: str) -> Tensor:
        """One tensor."""
        ...


def take_state(model: nn.Module, optimizer: torch.optim.Optimizer, parallel: DataParallel) -> WorkerState:
    """This rank's part. Of whole models rank 0 gives everything and the others their random numbers' state."""
    tensors = _rng_states()
    shares: dict[str, Any] = {}
    if parallel.rank == 0 or parallel.sharded:
        for name, tensor in _training_tensors(model, optimizer):
            rows = span(tensor, parallel)
            tensors[name] = local(tensor.detach())
            if rows is not None:
                shares[name] = {"offset": rows.offset, "shape": list(tensor.shape)}
    return WorkerState(tensors, {"rank": parallel.rank, "shares": shares})


@torch.no_grad()
def put_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, parallel: DataParallel, parts: Sequence[StatePart]
) -> None:
    """Take up the state whose parts are given, from however many ranks, one tensor at a time.

    A rank that was not there before keeps its random numbers.

    Raises:
        CheckpointError: when a tensor is missing, incomplete or of another shape.
    """
    reader = _Reader(parts)
    for name, parameter in model.named_parameters():
        reader.fill(f"model/{name}", parameter, parallel)
        _put_moments(name, parameter, optimizer, parallel, reader)
    for part in parts:
        if part.info["rank"] == parallel.rank:
            _put_rng_states(part)


def _put_moments(
    name: str, parameter: nn.Parameter, optimizer: torch.optim.Optimizer, parallel: DataParallel, reader: _Reader
) -> None:
    """AdamW's state of a parameter; one that never had a gradient has none."""
    optimizer.state.pop(parameter, None)
    if f"adamw/{name}/step" not in reader.names:
        return
    state = {"step": torch.zeros((), dtype=torch.float32, device=parameter.device)}
    state |= {moment: torch.zeros_like(parameter) for moment in _MOMENTS}
    for key, tensor in state.items():
        reader.fill(f"adamw/{name}/{key}", tensor, parallel)
    optimizer.state[parameter] = state


def _training_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        yield f"model/{name}", parameter
        if parameter in optimizer.state:
            state = optimizer.state[parameter]
            yield from ((f"adamw/{name}/{key}", state[key]) for key in ("step", *_MOMENTS))


class _Reader:
    """The tensors of all parts together."""

    def __init__(self, parts: Sequence[StatePart]) -> None:
        self._holders: dict[str, list[tuple[StatePart, Mapping[str, Any]]]] = {}
        for part in parts:
            shares = part.info["shares"]
            for name in part.names:
                self._holders.setdefault(name, []).append((part, shares))

    @property
    def names(self) -> Collection[str]:
        return self._holders.keys()

    def fill(self, name: str, target: Tensor, parallel: DataParallel) -> None:
        """Write into what this rank holds of ``target`` the rows that belong there."""
        rows = span(target, parallel)
        mine = torch.atleast_1d(local(target))
        start = rows.offset if rows is not None else 0
        missing = len(mine)
        for offset, source in self._pieces(name, target.shape):
            first, last = max(start, offset), min(start + len(mine), offset + len(source))
            if first < last and missing:
                mine[first - start : last - start].copy_(source[first - offset : last - offset])
                missing -= last - first
        if missing:
            raise CheckpointError(f"the checkpoint lacks {missing} of {len(mine)} rows of `{name}`")

    def _pieces(self, name: str, shape: torch.Size) -> Iterator[tuple[int, Tensor]]:
        """Each part's rows of a tensor with the place of the first; one whole tensor is enough."""
        for part, shares in self._holders.get(name, ()):
            share = shares.get(name)
            source = part.tensor(name)
            found = tuple(source.shape) if share is None else tuple(share["shape"])
            if found != tuple(shape):
                raise CheckpointError(f"`{name}` is {list(found)} in the checkpoint, the model's is {list(shape)}")
            yield (0 if share is None else share["offset"]), torch.atleast_1d(source)
            if share is None:
                return


def _rng_states() -> dict[str, Tensor]:
    states = {"rng/cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["rng/cuda"] = torch.cuda.get_rng_state()
    return states


def _put_rng_states(part: StatePart) -> None:
    torch.set_rng_state(part.tensor("rng/cpu"))
    if torch.cuda.is_available() and "rng/cuda" in part.names:
        torch.cuda.set_rng_state(part.tensor("rng/cuda"))
