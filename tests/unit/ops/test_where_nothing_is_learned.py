"""Where the advantage is 0 every policy loss is 0 without a gradient, whatever a ratio or a weight has become."""

from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor

from dagrl import nodes
from dagrl.cli.declared import built_in
from dagrl.graph.losses import Loss

#: What no other column says: a token that no `prepare` function has selected.
PREPARED = {"covariance": torch.zeros(1, 3), "selected": torch.zeros(1, 3).bool()}
#: A teacher that says what the student says is what an advantage of 0 is.
TEACHER = "teacher_logprobs"
LOSSES = {
    declared.contract.name: declared
    for declared in built_in()
    if isinstance(declared, Loss) and {"advantages", TEACHER} & {read.name for read in declared.contract.reads}
}
#: Log-probs of the last token: so small, or of a gap so large, that exp overflows in single precision.
EXTREMES = {
    "old_logprobs": (-200.0, -inf),
    "rollout_logprobs": (-200.0, -inf),
    "new_logprobs": (-200.0, -inf),
    "rollout_weights": (inf,),
}
#: Caps that a loss has by default, taken off.
UNCAPPED: dict[str, dict[str, Any]] = {"decoupled_ppo": {"weight_cap": None}}


def columns_of(loss: Loss[..., Any], extreme: str, value: float) -> dict[str, Tensor]:
    """Columns of a uniform row that was sampled on-policy, but for the last token of one of them."""
    columns = {name: torch.full((1, 3), -1.0) for name in (TEACHER, "old_logprobs", "rollout_logprobs", "new_logprobs")}
    columns |= {"advantages": torch.zeros(1, 3), "rollout_weights": torch.ones(1, 3)}
    columns[extreme][0, 2] = value
    read = {"new_logprobs", *(read.name for read in loss.contract.reads)} - {"response_mask"}
    return {name: column for name, column in {**columns, **PREPARED}.items() if name in read or name in PREPARED}


def taken(name: str, columns: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The losses of a row and their gradient."""
    loss = LOSSES[name]
    columns = columns if name in ("clip_cov", "kl_cov") else {k: v for k, v in columns.items() if k not in PREPARED}
    new = columns.pop("new_logprobs").requires_grad_()
    losses, _ = loss.function(new, response_mask=torch.ones(1, 3).bool(), **columns, **UNCAPPED.get(name, {}))
    losses.sum().backward()
    assert new.grad is not None
    return losses.detach(), new.grad


def cases() -> list[tuple[str, str, float]]:
    """Every loss with every extreme of a column that it reads and that is no pull of its own."""
    found = []
    for name, loss in LOSSES.items():
        read = {"new_logprobs", *(read.name for read in loss.contract.reads)}
        read -= {"old_logprobs", "new_logprobs"} if name == "dro" else set()  # it pulls by the log ratio itself
        read -= {"new_logprobs"} if name == "reverse_kl_distill" else set()  # the student then is not the teacher
        found += [(name, extreme, value) for extreme, values in EXTREMES.items() if extreme in read for value in values]
    return found


@pytest.mark.parametrize(("name", "extreme", "value"), cases())
def test_no_loss_and_no_gradient(name: str, extreme: str, value: float) -> None:
    losses, gradient = taken(name, columns_of(LOSSES[name], extreme, value))
    assert losses.tolist() == gradient.tolist() == [[0.0] * 3]


@pytest.mark.parametrize("name", LOSSES)
def test_a_nan_is_not_hidden(name: str) -> None:
    for extreme in {read.name for read in LOSSES[name].contract.reads} & set(EXTREMES) | {"new_logprobs"}:
        losses, _ = taken(name, columns_of(LOSSES[name], extreme, nan))
        assert losses[0, 2].isnan()


def test_every_policy_loss_is_held_to_it() -> None:
    assert {loss.contract.name for loss in (nodes.ppo_clip, nodes.decoupled_ppo, nodes.kl_cov)} <= LOSSES.keys()
