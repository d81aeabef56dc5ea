"""Filters: rows that a step does without."""

import torch
from jaxtyping import Bool
from torch import Tensor

from dagrl.data.columns import Objects
from dagrl.data.metrics import Metrics, Sum
from dagrl.graph import Policy, node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.graph.roles import Message


def _sane_limit(call: CallView) -> list[Refusal]:
    limit = call.options["max_prompt_tokens"]
    return [(f"`max_prompt_tokens` is {limit}", "it must be at least 1")] if limit < 1 else []


@node(needs="rollout", rows="filter", check=_sane_limit)
def short_prompts(
    actor: Policy, messages: Objects[list[Message]], *, max_prompt_tokens: int
) -> tuple[Bool[Tensor, " B"], Metrics]:
    """Keep prompts of at most ``max_prompt_tokens`` tokens, chat template included.

    The rows of a group share their prompt, so groups leave whole. ``short_prompts/dropped`` counts rows.
    """
    lengths = [len(prompt) for prompt in actor.apply_chat_template(messages)]
    kept = torch.tensor([length <= max_prompt_tokens for length in lengths], dtype=torch.bool)
    return kept, Metrics({"short_prompts/dropped": Sum(float((~kept).sum()))})
