"""The loss terms of an update over one micro-batch: what each is given, their weighted sum and their metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dagrl.data.metrics import Metric, Metrics
from dagrl.engines.passes import Cut
from dagrl.engines.prepared import hide_untrained
from dagrl.errors import NodeError
from dagrl.graph.contract import Read
from dagrl.graph.losses import LossTerm


def loss_columns(columns: Mapping[str, Tensor], reads: Sequence[Read], cut: Cut, mask: Tensor) -> dict[str, Tensor]:
    """The columns of a micro-batch, cut by their declared dims like its tokens.

    Float columns over the response hold 0 where nothing is trained, so that NaN there reaches no loss.
    """
    narrowed: dict[str, Tensor] = {}
    for read in reads:
        if read.name in columns:
            column = cut.apply(columns[read.name].to(mask.device), read.type.dims[1:])
            narrowed[read.name] = hide_untrained(column, read.type, mask)
    return narrowed


def sum_of_terms(
    terms: Sequence[LossTerm],
    inputs: Mapping[str, Tensor],
    mask: Tensor,
    given_by_term: Mapping[int, Mapping[str, Tensor]],
) -> tuple[Tensor, Metrics]:
    """The weighted per-token losses; a loss that comes twice has its second metrics under ``NAME#2/``.

    A metric that an earlier loss reports too, such as a share of clipped tokens, is under ``NAME/``.
    """
    total = torch.zeros(mask.shape, device=mask.device)
    metrics = Metrics()
    seen: Counter[str] = Counter()
    for number, term in enumerate(terms):
        name = term.contract.name
        names = [*term.contract.engine_outputs, *term.contract.arguments]
        known = {**inputs, **given_by_term.get(number, {})}
        given = {column: known[column] for column in names if column in known}
        losses, observed = _checked(name, term.loss.function(**given, **term.option_values()), mask)
        total = total + term.coefficient * losses
        seen[name] += 1
        again = f"{name}#{seen[name]}/" if seen[name] > 1 else ""
        prefixes = {key: again or (f"{name}/" if key in metrics else "") for key in observed}
        metrics = joined(metrics, {f"{prefixes[key]}{key}": metric for key, metric in observed.items()})
    return total, metrics


def _checked(name: str, returned: object, mask: Tensor) -> tuple[Tensor, Metrics]:
    """What a loss returned, if it is what every loss declares.

    Raises:
        NodeError: naming the loss and what it returned.
    """
    match returned:
        case (Tensor() as losses, Metrics() as metrics):
            pass
        case _:
            raise NodeError(f"loss `{name}` returned {type(returned).__name__}, not a pair of losses and Metrics")
    if losses.shape != mask.shape or not losses.is_floating_point():
        found = f"{str(losses.dtype).removeprefix('torch.')}{list(losses.shape)}"
        raise NodeError(f"loss `{name}` returned {found}: per-token losses here are float{list(mask.shape)}, [B T]")
    if not losses.requires_grad:
        raise NodeError(f"loss `{name}` returned losses without a gradient: it uses no engine output, or detached it")
    return losses, metrics


def joined(metrics: Metrics, more: Mapping[str, Metric]) -> Metrics:
    """Metrics of different losses and of the engine side by side.

    Raises:
        NodeError: when two of them have one name.
    """
    twice = sorted(metrics.keys() & more.keys())
    if twice:
        raise NodeError(f"two losses, or a loss and the engine, report the metric `{twice[0]}`: rename the loss's")
    return metrics.merge(more)
