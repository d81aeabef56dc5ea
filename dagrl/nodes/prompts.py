"""``prompts``: rows of the data, each repeated n times."""

from typing import NamedTuple

from jaxtyping import Int64
from torch import Tensor

from dagrl.data.columns import Objects
from dagrl.data.rows import open_rows
from dagrl.errors import UserError
from dagrl.graph import node
from dagrl.graph.checks import CallView
from dagrl.graph.roles import Message


class Prompts(NamedTuple):
    """What ``prompts`` writes."""

    messages: Objects[list[Message]]
    answers: Objects[str] | None
    data_source: Objects[str] | None


def _readable(call: CallView) -> list[str]:
    options = call.options
    refusals = [
        f"`{name}` is {options[name]}: it must be at least 1" for name in ("batch_size", "n") if options[name] < 1
    ]
    try:
        open_rows(options["data"], options["split"])
    except UserError as error:
        refusals += [f"{problem.what.rstrip('.')}: {problem.fix}" for problem in error.problems]
    return refusals


@node(rows="source", check=_readable)
def prompts(positions: Int64[Tensor, " B"], *, data: str, split: str = "train", batch_size: int, n: int = 1) -> Prompts:
    """Prompts at ``positions`` of the data, one row for each of the n samples of a group.

    The run draws ``batch_size`` positions a step from a seeded order of the split and repeats each n times;
    an evaluation walks the whole split in order, ``batch_size`` prompts at a time.
    """
    rows = open_rows(data, split)
    unique, inverse = positions.unique(return_inverse=True)
    read = [rows[position] for position in unique.tolist()]
    chosen = [read[place] for place in inverse.tolist()]
    return Prompts(
        messages=[row.messages for row in chosen],
        answers=[row.answer for row in chosen],
        data_source=[row.data_source for row in chosen],
    )
