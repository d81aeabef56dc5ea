"""Rewards that shape how the model answers, and the sum of several rewards."""

import re

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from dagrl.data.columns import Objects
from dagrl.graph import node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.nodes.refusals import infinite


def _sane_lengths(call: CallView) -> list[Refusal]:
    max_length, buffer, penalty = (call.options[name] for name in ("max_length", "buffer", "penalty"))
    refusals: list[Refusal] = []
    if not 1 <= buffer <= max_length:
        refusals.append((f"`buffer` is {buffer}", f"it must lie between 1 and `max_length`, which is {max_length}"))
    refusals += infinite(call, "penalty")
    if penalty < 0:
        refusals.append((f"`penalty` is {penalty}", "it is subtracted, so it must be 0 or more"))
    refusals += [
        (
            f"no response of `{source}` is ever punished: it ends at max_new_tokens={limit}, and the penalty begins "
            f"above max_length - buffer = {max_length - buffer}",
            "lower `max_length`, or raise `buffer` or `max_new_tokens`",
        )
        for source, limit in call.upstream_option("max_new_tokens")
        if limit <= max_length - buffer
    ]
    return refusals


@node(writes="rewards", check=_sane_lengths, examples={"max_length": 5, "buffer": 3})
def length_penalty(
    rewards: Float32[Tensor, " B"],
    response_lengths: Int64[Tensor, " B"],
    *,
    max_length: int,
    buffer: int,
    penalty: float = 1.0,
) -> Float32[Tensor, " B"]:
    """Rewards less the soft overlong punishment (DAPO, arXiv 2503.14476, eq. 13).

    The paper's ``penalty`` is 1 for rewards of 1 and -1, half of what a right answer is worth: 0.5 for 1 and 0.

    Up to ``max_length - buffer`` tokens cost nothing, from there to ``max_length`` the cost grows linearly to
    ``penalty``, and beyond it stays there. An unscorable (NaN) reward stays NaN.
    """
    over = (response_lengths - (max_length - buffer)).to(rewards.dtype) / buffer
    return rewards - penalty * over.clamp(0.0, 1.0)


def _sane_pattern(call: CallView) -> list[Refusal]:
    pattern = call.options["pattern"]
    try:
        re.compile(pattern)
    except re.error as error:
        return [
            (f"`pattern` {pattern!r} is no regular expression: {error}", "mend it; `re.escape` quotes a plain text")
        ]
    return infinite(call, "reward")


@node(writes="rewards", check=_sane_pattern, examples={"pattern": r"\d+"})
def format_reward(response_text: Objects[str], *, pattern: str, reward: float = 1.0) -> Float32[Tensor, " B"]:
    """``reward`` where the whole response matches the regular expression ``pattern``, else 0; ``.`` matches newlines.

    ``format_reward(rollout, pattern=r"<think>.*</think>.*")`` asks for a thought first.
    """
    form = re.compile(pattern, re.DOTALL)
    matches = [form.fullmatch(text) is not None for text in response_text]
    return torch.tensor(matches, dtype=torch.bool).float() * reward


def _sane_weight(call: CallView) -> list[Refusal]:
    return infinite(call, "weight")


@node(writes="rewards", check=_sane_weight)
def sum_rewards(
    rewards: Float32[Tensor, " B"], other_rewards: Float32[Tensor, " B"], *, weight: float = 1.0
) -> Float32[Tensor, " B"]:
    """The sum rewards + weight * other_rewards; a row that either cannot score (NaN) stays unscorable.

    Two edges cannot both bring ``rewards``, so one is renamed where it is passed:
    ``sum_rewards(correct, form.rename(rewards="other_rewards"), weight=0.1)``.
    """
    return rewards + weight * other_rewards
