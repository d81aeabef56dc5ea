"""Run a loss as the engine does, and take the gradient of its engine outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dagrl.contracts.batch import Batch
from dagrl.contracts.make_batch import WEIGHTS, make_batch
from dagrl.contracts.node_probe import global_noise
from dagrl.contracts.options import call_of, option_values, require_accepted
from dagrl.contracts.outcome import Outcome, real_rows
from dagrl.contracts.violation import Finding, RunFault, fault_of
from dagrl.data.equality import equal
from dagrl.data.metrics import Metrics
from dagrl.graph.contract import LossContract
from dagrl.graph.losses import Loss
from dagrl.nodes.update import update_policy

LOSS = "the loss"


class LossProbe:
    """A loss with options, and the rows it is tried on.

    Raises:
        RunFault: when no value is known for an option, or the loss's own check refuses the values.
    """

    def __init__(self, loss: Loss[..., Any], given: Mapping[str, Any]) -> None:
        self.loss = loss
        self.contract: LossContract = loss.contract
        self.options = option_values(self.contract, given)
        bound = {"loss": loss(**self.options)}
        require_accepted(self.contract, self.options, call_of(update_policy.contract, update_policy, bound))
        self.columns = frozenset(read.name for read in self.contract.reads)
        self.optional = frozenset(read.name for read in self.contract.reads if read.optional)
        self.batch = make_batch(self.contract.reads, loss.function, self.contract.examples)
        self._expected: Outcome | None = None

    @property
    def expected(self) -> Outcome:
        """What the loss gives on the rows as they are."""
        if self._expected is None:
            self._expected = self.run(self.batch)
        return self._expected

    @property
    def gradients(self) -> dict[str, str]:
        """The engine outputs, and what their gradient is called."""
        return {name: f"the gradient of `{name}`" for name in self.contract.engine_outputs}

    def run(self, batch: Batch, *, absent: frozenset[str] = frozenset(), noise: int = 0) -> Outcome:
        """Loss and gradient at trained places, and metrics; each place of the loss has a weight of its own.

        Raises:
            RunFault: when it raises, breaks its declaration or edits its input.
        """
        given = batch.copied()
        inputs: dict[str, Any] = {name: given.columns[name] for name in self.columns - absent}
        outputs = {name: given.tensor(name).requires_grad_() for name in self.contract.engine_outputs}
        mask, weights = batch.tensor("response_mask"), batch.tensor(WEIGHTS)
        with global_noise(noise):
            try:
                returned = self.loss.function(**inputs, **outputs, **self.options)
            except Exception as error:
                raise fault_of(error, self.contract) from error
        losses, metrics = self._checked(returned, mask)
        self._check_untouched(batch, given, absent)
        if losses.requires_grad and outputs:
            (losses * weights).masked_fill(~mask, 0.0).sum().backward()
        rows = {LOSS: real_rows(losses.detach(), mask)}
        for name, called in self.gradients.items():
            grad = outputs[name].grad
            rows[called] = real_rows(torch.zeros_like(outputs[name]) if grad is None else grad, mask)
        return Outcome(rows, metrics)

    def _checked(self, returned: Any, mask: Tensor) -> tuple[Tensor, Metrics]:
        if not (isinstance(returned, tuple) and len(returned) == 2):
            raise _wrong(f"returned a {type(returned).__name__}, not losses and metrics")
        losses, metrics = returned
        if not isinstance(losses, Tensor):
            raise _wrong(f"returned a {type(losses).__name__} for the losses, not a tensor")
        if losses.dtype != torch.float32 or losses.shape != mask.shape:
            found = f"{str(losses.dtype).removeprefix('torch.')}{list(losses.shape)}"
            raise _wrong(f"returned {found} for the losses of {list(mask.shape)} tokens, not one float32 for each")
        if not isinstance(metrics, Metrics):
            raise _wrong(f"returned a {type(metrics).__name__} where its annotation says Metrics")
        return losses, metrics

    def _check_untouched(self, batch: Batch, given: Batch, absent: frozenset[str]) -> None:
        for name in sorted((self.columns - absent) | set(self.contract.engine_outputs)):
            before, after = batch.columns[name], given.columns[name]
            if not equal(before, after):
                raise RunFault(Finding(f"edited its input `{name}`", "work on a copy: `x.clone()`, no `x[...] = `"))


def _wrong(what: str) -> RunFault:
    return RunFault(Finding(what, "return per-token losses [B T] and `Metrics({...})`: the engine averages"))
