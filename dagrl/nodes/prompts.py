"""``prompts``: rows of the data, each repeated n times."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxtyping import Int64
from torch import Tensor

from dagrl.data.columns import Objects
from dagrl.data.rows import PromptRows, open_rows, read_rows
from dagrl.errors import UserError, counted
from dagrl.graph import node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.graph.roles import Message
from dagrl.nodes.refusals import below

_SYSTEM_ROLES = ("system", "developer")


class Prompts(NamedTuple):
    """What ``prompts`` writes."""

    messages: Objects[list[Message]]
    answers: Objects[str] | None
    data_source: Objects[str] | None
    row_fields: Objects[Mapping[str, Any]] | None


def _readable(call: CallView) -> list[Refusal]:
    options = call.options
    refusals = [*below(call, "batch_size", 1), *below(call, "n", 1)]
    try:
        rows = open_rows(options["data"], options["split"], options["test_share"])
    except UserError as error:
        return [
            *refusals,
            *((problem.what, problem.fix) if problem.fix else problem.what for problem in error.problems),
        ]
    return [*refusals, *_too_few(call, rows), *_unanswered(call, rows)]


def _too_few(call: CallView, rows: PromptRows) -> list[Refusal]:
    """Refuse a batch that training data cannot fill; an evaluation takes what there is."""
    size = call.options["batch_size"]
    if not call.is_step or len(rows) >= size:
        return []
    found = f"`{call.options['data']}` has {counted(len(rows), 'row')} in the split `{call.options['split']}`"
    return [(f"{found}, fewer than batch_size={size}", "lower `batch_size` or give more data")]


def _unanswered(call: CallView, rows: PromptRows) -> list[Refusal]:
    """Refuse rows without an answer where somebody reads it; a reward may well do without."""
    readers = call.readers("answers")
    if rows.unanswered is None or not readers:
        return []
    return [(f"{rows.unanswered}, and `{readers[0]}` reads `answers`", "add the answer, or drop the row")]


@node(rows="source", check=_readable)
def prompts(
    positions: Int64[Tensor, " B"],
    *,
    data: str,
    split: str = "train",
    test_share: float = 0.0,
    batch_size: int,
    n: int = 1,
    system_prompt: str | None = None,
) -> Prompts:
    """Prompts at ``positions`` of the data, one row for each of the n samples of a group.

    ``data`` is ``zoo:TASK``, ``gym:TASK?OPTION=VALUE&...``, a JSONL or parquet file on any file system, a path with
    ``{split}`` in it, or a folder with one file for each split. Of a single file, ``test_share`` of the rows are the
    split ``"test"`` and the others ``"train"``, chosen by a hash of the prompt.

    A gym task is one of reasoning-gym, with its own options and ours: ``seed`` (0), ``size`` (10000) and ``test_size``
    (500). Its test rows are made from other seeds than its training rows, yet a task with few different questions asks
    the same ones in both.

    ``system_prompt`` goes before the messages of every row that does not begin with one of its own.

    The run draws ``batch_size`` positions a step from a seeded order of the split and repeats each n times;
    an evaluation walks the whole split in order, ``batch_size`` prompts at a time.

    Raises:
        DataChangedError: where the file is not what it was when the run was planned.
    """
    unique, inverse = positions.unique(return_inverse=True)
    read = read_rows(data, split, test_share, unique.tolist())
    chosen = [read[place] for place in inverse.tolist()]
    return Prompts(
        messages=[_with_system(row.messages, system_prompt) for row in chosen],
        answers=[row.answer for row in chosen],  # pyright: ignore[reportArgumentType] - None only where nobody needs it
        data_source=[row.data_source for row in chosen],
        row_fields=[row.fields for row in chosen],
    )


def _with_system(messages: Sequence[Message], system_prompt: str | None) -> list[Message]:
    if system_prompt is None or messages[0]["role"] in _SYSTEM_ROLES:
        return list(messages)
    return [{"role": "system", "content": system_prompt}, *messages]
