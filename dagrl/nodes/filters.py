"""Filters: rows that a step does without."""

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl.data.columns import Objects
from dagrl.data.metrics import Mean, Metrics, Sum
from dagrl.graph import Policy, node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.graph.roles import Message
from dagrl.nodes.refusals import below
from dagrl.ops.dynamic_sampling import mixed_rows


def _sane_limit(call: CallView) -> list[Refusal]:
    return below(call, "max_prompt_tokens", 1)


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


def _comparable(call: CallView) -> list[Refusal]:
    return [
        (f"`{source}` has n=1: a group of one never differs, so every row would be dropped", "raise n")
        for source, n in call.upstream_option("n")
        if n == 1
    ]


@node(rows="filter", split="group", check=_comparable)
def mixed_groups(rewards: Float32[Tensor, " B"], group_ids: Int64[Tensor, " B"]) -> tuple[Bool[Tensor, " B"], Metrics]:
    """Keep groups whose rewards differ: the dynamic sampling of DAPO (arXiv 2503.14476), inside ``refill``.

    A group whose scorable rewards are all equal, or that has fewer than two, has advantage 0 everywhere and is dropped;
    NaN (unscorable) rows of other groups stay with them. As in the paper, give it the reward for a right answer, before
    a penalty for length makes equal answers differ. ``mixed_groups/kept_share`` is the share of groups kept.
    """
    kept = mixed_rows(rewards, group_ids)
    counts = (len(group_ids[kept].unique()), len(group_ids.unique()))
    return kept, Metrics({"mixed_groups/kept_share": Mean(*map(float, counts))})
