"""Rewards for mathematical answers, compared as expressions by the package math-verify."""

import math

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.columns import Objects
from dagrl.data.metrics import Metrics, Sum
from dagrl.graph import node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.nodes.refusals import judge_refusals
from dagrl.nodes.reward_function import load_problem, score_rows

_FUNCTION = "dagrl.rewards.math_score:compute_score"
_LOAD_SECONDS = 300.0


def _scorable(call: CallView) -> list[Refusal]:
    return judge_refusals(call, module="math_verify", package="math-verify", extra="math")


def _loadable(call: CallView) -> list[Refusal]:
    fault = load_problem(_FUNCTION, 0, _LOAD_SECONDS)
    return [] if fault is None else [(f"math-verify cannot be used: {fault}", "`pip install 'dagrl[math]'`")]


@node(writes="rewards", check=_scorable, before_run=_loadable)
def math_verify(
    answers: Objects[str],
    response_text: Objects[str],
    truncated: Bool[Tensor, " B"] | None = None,
    *,
    allow_truncated: bool = False,
    time_limit: float = 5.0,
) -> tuple[Float32[Tensor, " B"], Metrics]:
    r"""1 where the response's last expression equals the answer as mathematics (``1/2``, ``0.5``, ``\frac12``), else 0.

    Expressions are found and compared by math-verify: LaTeX, also in ``\boxed{}``, and plain numbers. A truncated
    response counts as wrong unless ``allow_truncated``. A response without an expression gets 0 and is counted as
    ``math_verify/unparsable``; so does one that takes longer than ``time_limit`` seconds or ends its process, counted
    as ``math_verify/given_up``: that is the response's doing, as ``9**9**9`` is.

    A row whose answer math-verify cannot read is unscorable (NaN), counted as ``math_verify/unreadable_answers``.

    Raises:
        NodeError: when math-verify cannot be loaded.
    """
    cut = truncated.tolist() if truncated is not None and not allow_truncated else [False] * len(response_text)
    rows = [row for row, is_cut in enumerate(cut) if not is_cut]
    rewards = torch.zeros(len(response_text))
    unparsable = unreadable = given_up = 0
    if rows:
        columns = {"response_text": [response_text[row] for row in rows], "answers": [answers[row] for row in rows]}
        scores = score_rows(_FUNCTION, "verl", columns, (time_limit, _LOAD_SECONDS, len(rows)), 0)
        rewards[rows] = torch.tensor(scores.values, dtype=torch.float32).nan_to_num(0.0)
        bad_gold = [rows[place] for place, seen in scores.details.items() if not seen["answer_parsed"]]
        rewards[bad_gold] = math.nan
        unreadable, given_up = len(bad_gold), len(scores.failures)
        unparsable = sum(not seen["parsed"] for seen in scores.details.values()) - unreadable
    counts = {"unparsable": unparsable, "given_up": given_up, "unreadable_answers": unreadable}
    shares = {f"math_verify/{name}": Sum(float(count)) for name, count in counts.items()}
    return rewards, Metrics(shares)
