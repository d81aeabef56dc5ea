"""``generate``: the actor answers; the one node that knows the tokenizer."""

from collections.abc import Sequence
from math import inf
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl.data.columns import Objects
from dagrl.errors import ConfigError, Problem
from dagrl.graph import Policy, node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.graph.roles import Message, Sampling
from dagrl.graph.rollouts import VLLM_TEMPERATURES
from dagrl.nodes.prompt_lengths import beyond_context
from dagrl.nodes.refusals import below
from dagrl.ops.masks import join_sequences, mask_from_lengths, pad_left

#: What becomes of a prompt that is too long: an error, or cut at its left or right end.
OverlongPrompts = Literal["error", "left", "right"]

_ROWS_SHOWN = 5
_CHARACTERS_SHOWN = 60


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


def _sane_sampling(call: CallView) -> list[Refusal]:
    refusals = below(call, "max_new_tokens", 1)
    refusals += _temperature_refusals(call)
    if not 0 < call.options["top_p"] <= 1:
        refusals.append((f"`top_p` is {call.options['top_p']}", "it must be above 0 and at most 1 (all tokens)"))
    if call.options["top_k"] < 0:
        refusals.append((f"`top_k` is {call.options['top_k']}", "it must be at least 1, or 0 for all tokens"))
    if "" in call.options["stop"]:
        refusals.append(("`stop` holds an empty text", "every response has one before its first token: leave it out"))
    limit, policy = call.options["max_prompt_tokens"], call.options["overlong_prompts"]
    if limit is not None and limit < 1:
        refusals.append((f"`max_prompt_tokens` is {limit}", "it must be at least 1, or None for no limit"))
    if limit is None and policy != "error":
        refusals.append((f"`overlong_prompts` is {policy!r} without a limit", "give `max_prompt_tokens`"))
    return [*refusals, *beyond_context(call)]


def _temperature_refusals(call: CallView) -> list[Refusal]:
    temperature = call.options["temperature"]
    if not 0 <= temperature < inf:
        return [(f"`temperature` is {temperature}", "it must be 0 (greedy) or more, and finite")]
    lowest, highest = VLLM_TEMPERATURES
    by_vllm = call.group is not None and call.group.model.rollout.engine in ("vllm", "server")
    if by_vllm and temperature != 0 and not lowest <= temperature <= highest:
        what = f"`temperature` is {temperature}, and vllm draws at 0 or from {lowest} to {highest}"
        return [(what, 'give another, or the policy `rollout="hf"`')]
    return []


@node(needs="rollout", check=_sane_sampling)
def generate(
    actor: Policy,
    messages: Objects[list[Message]],
    seeds: Int64[Tensor, " B"],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    stop: tuple[str, ...] = (),
    max_prompt_tokens: int | None = None,
    overlong_prompts: OverlongPrompts = "error",
    wanted: frozenset[str],
) -> Rollout:
    """One response for each row, sampled at ``temperature`` (0: greedy) from the row's own seed.

    A response ends with an end-of-sequence token or is cut by ``max_new_tokens`` or the model's context
    (``truncated``); masks come from lengths, never from token ids. ``top_k`` above 0 and ``top_p`` below 1 leave only
    the likeliest tokens, and ``rollout_logprobs`` are those of what is left: an update on such rows needs a
    `rollout_correction`.

    ``stop`` are texts that end a response too: with the token whose text completes one, which stays.

    A prompt of more than ``max_prompt_tokens`` tokens, chat template included, is an error, or is cut at its left
    (its last tokens stay) or right. `short_prompts` leaves such prompts out instead.

    Raises:
        ConfigError: for a prompt that is too long, or leaves no room for a response in the model's context.
    """
    prompts = actor.apply_chat_template(messages)
    if max_prompt_tokens is not None:
        prompts = _within(prompts, messages, max_prompt_tokens, overlong_prompts)
    sampling = Sampling(
        max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, top_k=top_k, stop=tuple(stop)
    )
    samples = actor.generate(prompts, seeds, sampling)
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


def _within(
    prompts: Sequence[list[int]], messages: Objects[list[Message]], limit: int, policy: OverlongPrompts
) -> list[list[int]]:
    """The prompts, none longer than the limit."""
    if policy == "left":
        return [prompt[-limit:] for prompt in prompts]
    if policy == "right":
        return [prompt[:limit] for prompt in prompts]
    overlong = [row for row, prompt in enumerate(prompts) if len(prompt) > limit]
    if overlong:
        facts = [("prompt", f"row {row}, {len(prompts[row])} tokens: {_shown(messages[row])}") for row in overlong]
        what = f"{len(overlong)} of {len(prompts)} rows have a prompt of more than max_prompt_tokens={limit} tokens."
        fix = 'raise `max_prompt_tokens`, cut with `overlong_prompts="left"`, or leave them out with `short_prompts`'
        raise ConfigError([Problem(what, facts=tuple(facts[:_ROWS_SHOWN]), fix=fix)], "`generate`")
    return list(prompts)


def _shown(messages: list[Message]) -> str:
    text = messages[-1]["content"]
    return repr(text if len(text) <= _CHARACTERS_SHOWN else text[:_CHARACTERS_SHOWN] + "...")
