"""Answers that are there already, as responses to learn from: supervised fine-tuning."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl.data.columns import Objects
from dagrl.errors import NodeError
from dagrl.graph import Policy, node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.graph.roles import Message
from dagrl.ops.masks import join_sequences, pad_left, pad_right


class Demonstrations(NamedTuple):
    """The columns of a rollout whose responses are the reference answers."""

    input_ids: Int64[Tensor, "B S"]
    attention_mask: Bool[Tensor, "B S"]
    position_ids: Int64[Tensor, "B S"]
    responses: Int64[Tensor, "B T"] | None
    response_mask: Bool[Tensor, "B T"]
    response_lengths: Int64[Tensor, " B"]
    truncated: Bool[Tensor, " B"]
    temperatures: Float32[Tensor, " B"]


def _sane_limit(call: CallView) -> list[Refusal]:
    limit = call.options["max_response_tokens"]
    if limit is None or limit >= 1:
        return []
    return [(f"`max_response_tokens` is {limit}", "it must be at least 1, or None for no limit")]


@node(check=_sane_limit)
def demonstrations(
    actor: Policy, messages: Objects[list[Message]], answers: Objects[str], *, max_response_tokens: int | None = None
) -> Demonstrations:
    """The reference answer of each row as its response, an end-of-sequence token last (arXiv 2203.02155, step 1).

    An update with `sft_loss` on these rows is supervised fine-tuning: prompts are not trained on. A response of more
    than ``max_response_tokens`` is cut there (``truncated``), and then has no end. ``temperatures`` are 1.

    Raises:
        NodeError: for a prompt without tokens, as of a chat template that leaves it out.
    """
    prompts = actor.apply_chat_template(messages)
    if empty := [row for row, prompt in enumerate(prompts) if not prompt]:
        raise NodeError(
            f"the prompt of row {empty[0]} has no tokens, and nothing can follow it: mend the chat template"
        )
    prompt_ids, prompt_mask = pad_left(prompts, actor.pad_token_id)
    whole = actor.tokenize_responses([str(answer) for answer in answers])
    responses = [response[:max_response_tokens] for response in whole]
    columns, response_mask, lengths = pad_right(responses, actor.pad_token_id)
    input_ids, attention_mask, position_ids = join_sequences(prompt_ids, prompt_mask, columns, lengths)
    cut = [len(response) < len(one) for response, one in zip(responses, whole, strict=True)]
    return Demonstrations(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=position_ids,
        responses=columns,
        response_mask=response_mask,
        response_lengths=lengths,
        truncated=torch.tensor(cut, dtype=torch.bool),
        temperatures=torch.ones(len(responses)),
    )
