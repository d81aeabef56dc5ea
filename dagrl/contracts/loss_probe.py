"""Run a loss as the engine does, and take the gradient of its engine outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from dagrl.contracts.batch import Batch
from dagrl.contracts.hooks import prepared_batch, projected, taken_of_prepared
from dagrl.contracts.make_batch import LOGITS, WEIGHTS
from dagrl.contracts.options import call_of, option_values
from dagrl.contracts.outcome import Outcome, real_rows
from dagrl.contracts.probe import Probe, global_noise, require_untouched
from dagrl.contracts.violation import Finding, RunFault, fault_of
from dagrl.data.metrics import Metrics
from dagrl.errors import with_article
from dagrl.graph.contract import LossContract
from dagrl.graph.losses import Loss
from dagrl.nodes.update import update_policy

LOSS = "the loss"


class LossProbe(Probe[LossContract]):
    """A loss with options, and the rows it is tried on.

    Raises:
        RunFault: when no value is known for an option, or the loss's own check refuses the values.
    """

    def __init__(self, loss: Loss[..., Any], given: Mapping[str, Any]) -> None:
        contract = loss.contract
        options = option_values(contract, given)
        call = call_of(update_policy.contract, update_policy, {"loss": loss(**options)})
        super().__init__(contract, loss.function, given=given, options=options, call=call, reads=contract.reads)
        self.loss = loss
        self.columns = frozenset(read.name for read in contract.reads)

    @property
    def gradients(self) -> dict[str, str]:
        """The engine outputs, and what their gradient is called."""
        names = [*self.contract.engine_outputs, *([LOGITS] if self.contract.project else [])]
        return {name: f"the gradient of `{name}`" for name in names}

    def prepared(self, batch: Batch, *, absent: Collection[str] = ()) -> Batch:
        """The rows with what the loss prepares of all of them, which parts of them then share.

        Raises:
            RunFault: when the ``prepare=`` function raises or breaks its declaration.
        """
        return prepared_batch(self.contract, batch, self.options, absent)

    def run(self, batch: Batch, *, absent: Collection[str] = (), noise: int = 0, chunk: int = 0) -> Outcome:
        """Loss and gradient at trained places, and metrics; each place of the loss has a weight of its own.

        A ``project=`` function sees ``chunk`` tokens at a time, or all of them if 0.

        Raises:
            RunFault: when it raises, breaks its declaration or edits its input.
        """
        given = batch.copied()
        own = (self.columns & set(self.contract.arguments)) - set(absent)
        inputs: dict[str, Any] = {name: given.columns[name] for name in own}
        outputs = {name: given.tensor(name).requires_grad_() for name in self.gradients}
        mask, weights = batch.tensor("response_mask"), batch.tensor(WEIGHTS)
        with global_noise(noise):
            inputs |= taken_of_prepared(self.contract, self.prepared(given, absent=absent))
            inputs |= projected(self.contract, given, outputs, self.options, absent, chunk)
            try:
                engine = {name: outputs[name] for name in self.contract.engine_outputs}
                returned = self.loss.function(**inputs, **engine, **self.options)
            except Exception as error:
                raise fault_of(error, self.contract) from error
        losses, metrics = self._checked(returned, mask)
        names = {*own, *outputs}
        before, after = ({name: one.columns[name] for name in sorted(names)} for one in (batch, given))
        require_untouched(before, after, "work on a copy: `x.clone()`, no `x[...] = `")
        if losses.requires_grad and outputs:
            (losses * weights).masked_fill(~mask, 0.0).sum().backward()
        rows = {LOSS: real_rows(losses.detach(), mask)}
        for name, called in self.gradients.items():
            grad = outputs[name].grad
            rows[called] = real_rows(torch.zeros_like(outputs[name]) if grad is None else grad, mask)
        return Outcome(rows, metrics)

    def _checked(self, returned: Any, mask: Tensor) -> tuple[Tensor, Metrics]:
        if not (isinstance(returned, tuple) and len(returned) == 2):
            raise _wrong(f"returned {_kind(returned)}, not losses and metrics")
        losses, metrics = returned
        if not isinstance(losses, Tensor):
            raise _wrong(f"returned {_kind(losses)} for the losses, not a tensor")
        if losses.dtype != torch.float32 or losses.shape != mask.shape:
            found = f"{str(losses.dtype).removeprefix('torch.')}{list(losses.shape)}"
            raise _wrong(f"returned {found} for the losses of {list(mask.shape)} tokens, not one float32 for each")
        if not isinstance(metrics, Metrics):
            raise _wrong(f"returned {_kind(metrics)} where its annotation says Metrics")
        return losses, metrics


def _kind(value: Any) -> str:
    return with_article(type(value).__name__)


def _wrong(what: str) -> RunFault:
    return RunFault(Finding(what, "return per-token losses [B T] and `Metrics({...})`: the engine averages"))
