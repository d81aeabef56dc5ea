"""Rewards of reasoning-gym tasks, by the scoring of each task."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.columns import Objects
from dagrl.data.gym_rows import TASK_FIELD
from dagrl.data.metrics import Mean, Metrics, Sum
from dagrl.errors import NodeError
from dagrl.graph import node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.nodes.refusals import judge_refusals
from dagrl.nodes.reward_function import load_problem, score_rows
from dagrl.rewards.answers import AnswerFormat, find_answer
from dagrl.zoo.gym_tasks import GYM

_FUNCTION = "dagrl.rewards.gym_score:compute_score"
_LOAD_SECONDS = 300.0


def _scorable(call: CallView) -> list[Refusal]:
    return judge_refusals(call, module="reasoning_gym", package="reasoning-gym", extra="gym")


def _loadable(call: CallView) -> list[Refusal]:
    other = [data for _, data in call.upstream_option("data") if not str(data).startswith(GYM)]
    if other:
        fix = 'give `prompts` a task: `data="gym:chain_sum"`, or score with `verify` or `reward_function`'
        return [(f"its rows come from `{other[0]}`, which is no gym task", fix)]
    fault = load_problem(_FUNCTION, 0, _LOAD_SECONDS)
    return [] if fault is None else [(f"reasoning-gym cannot be used: {fault}", "`pip install 'dagrl[gym]'`")]


#: An entry without metadata, which the task does not need to score.
_EXAMPLE = {"question": "2 + 5 =", "answer": "7", "metadata": {}, TASK_FIELD: f"{GYM}chain_sum"}


@node(writes="rewards", check=_scorable, before_run=_loadable, examples={"row_fields": [_EXAMPLE]})
def gym_score(
    row_fields: Objects[Mapping[str, Any]],
    response_text: Objects[str],
    truncated: Bool[Tensor, " B"] | None = None,
    *,
    answer_format: AnswerFormat = "whole",
    allow_truncated: bool = False,
    time_limit: float = 10.0,
) -> tuple[Float32[Tensor, " B"], Metrics]:
    r"""What the row's own gym task gives the answer, mostly 0 to 1: many tasks give part of it to one nearly right.

    ``answer_format`` says what of the response is the answer: the ``"whole"`` text, its ``"last_number"``, what is
    between ``"tags"`` (``<answer>...</answer>``) or in a ``"boxed"`` (``\boxed{...}``); ask for it in the prompt. A
    response without an answer, or truncated unless ``allow_truncated``, gets 0; ``gym/answered`` is the share with one.

    Scoring runs in processes that are killed. A row that takes longer than ``time_limit`` seconds, or whose scoring
    fails, is unscorable (NaN) and counted as ``reward/failed_rows``.

    Raises:
        NodeError: for rows of data that is no gym task, or when no row can be scored.
    """
    tasks = [fields.get(TASK_FIELD) for fields in row_fields]
    if None in tasks:
        raise NodeError(f"row {tasks.index(None)} of the data is of no gym task, so `gym_score` cannot score it")
    found = [find_answer(text, answer_format) for text in response_text]
    if truncated is not None and not allow_truncated:
        found = [None if cut else answer for answer, cut in zip(found, truncated.tolist(), strict=True)]
    answered = [row for row, answer in enumerate(found) if answer is not None]
    rewards = torch.zeros(len(found))
    num_failed = 0
    if answered:
        columns = {
            "response_text": [found[row] for row in answered],
            "row_fields": [{"extra_info": {"gym": tasks[row], "entry": dict(row_fields[row])}} for row in answered],
        }
        scores = score_rows(_FUNCTION, "verl", columns, (time_limit, _LOAD_SECONDS, len(answered)), 0)
        rewards[answered] = torch.tensor(scores.values, dtype=torch.float32)
        num_failed = len(scores.failures)
        if num_failed == len(answered):
            raise NodeError(f"no answer could be scored; the first failed with: {scores.failures[0].error}")
    share = Mean(float(len(answered)), float(len(found)))
    return rewards, Metrics({"gym/answered": share, "reward/failed_rows": Sum(float(num_failed))})
