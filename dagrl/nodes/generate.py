"""``generate``: the actor answers; the one node that knows the tokenizer."""

from math import inf
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl.data.columns import Objects
from dagrl.graph import Policy, node
from dagrl.graph.checks import CallView
from dagrl.graph.roles import Message, Sampling
from dagrl.ops.masks import join_sequences, mask_from_lengths, pad_left


class Rollout(NamedTuple):
    """What ``generate`` writes."""

    input_ids: Int64[Tensor, "B S"]
    attention_mask: Bool[Tensor, "B S"]
    position_ids: Int64[Tensor, "B S"]
    responses: Int64[Tensor, "B T"] | None
    response_mask: Bool[Tensor, "B T"]
    response_lengths: Int64[Tensor, " B"]
    truncated: Bool[Tensor, " B"]
    temperatures: Float32[Tensor, " B"]
    prompt_ids: Int64[Tensor, "B P"] | None
    prompt_mask: Bool[Tensor, "B P"] | None
    rollout_logprobs: Float32[Tensor, "B T"] | None
    response_text: Objects[str] | None


def _sane_sampling(call: CallView) -> list[str]:
    refusals: list[str] = []
    if call.options["max_new_tokens"] < 1:
        refusals.append(f"`max_new_tokens` is {call.options['max_new_tokens']}: it must be at least 1")
    if not 0 <= call.options["temperature"] < inf:
        refusals.append(f"`temperature` is {call.options['temperature']}: it must be 0 (greedy) or more, and finite")
    return refusals


@node(needs="rollout", check=_sane_sampling)
def generate(
    actor: Policy,
    messages: Objects[list[Message]],
    seeds: Int64[Tensor, " B"],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    wanted: frozenset[str],
) -> Rollout:
    """One response for each row, sampled at ``temperature`` (0: greedy) from the row's own seed.

    A response ends with an end-of-sequence token or is cut by ``max_new_tokens`` or the model's context
    (``truncated``); masks come from lengths, never from token ids.
    """
    prompts = actor.apply_chat_template(messages)
    samples = actor.generate(prompts, seeds, Sampling(max_new_tokens=max_new_tokens, temperature=temperature))
    prompt_ids, prompt_mask = pad_left(prompts, actor.pad_token_id)
    input_ids, attention_mask, position_ids = join_sequences(
        prompt_ids, prompt_mask, samples.responses, samples.lengths
    )
    response_text = None
    if "response_text" in wanted:
        rows = zip(samples.responses.tolist(), samples.lengths.tolist(), strict=True)
        response_text = actor.decode([row[:length] for row, length in rows])
    return Rollout(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=position_ids,
        responses=samples.responses,
        response_mask=mask_from_lengths(samples.lengths, samples.responses.shape[1]),
        response_lengths=samples.lengths,
        truncated=samples.truncated,
        temperatures=torch.full((len(prompts),), float(temperature)),
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        rollout_logprobs=samples.logprobs,
        response_text=response_text,
    )
