"""Log-probs of the responses: under the actor before the update, and under the frozen reference."""

from collections.abc import Iterator
from typing import Any

from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl.graph import Policy, node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.graph.roles import TokenBatch
from dagrl.nodes.refusals import below


def needs_sampling(call: CallView) -> list[Refusal]:
    """Refuse log-probs of greedy responses: at temperature 0 there is no distribution to take a ratio in."""
    return [
        (f"`{source}` has temperature=0: ratios and KL need sampled responses", "sample at a temperature above 0")
        for source, temperature in sampling_option(call, "temperature")
        if temperature == 0
    ]


def sampling_option(call: CallView, option: str) -> Iterator[tuple[str, Any]]:
    """(call name, value) of an option of what sampled the call's own tokens, not of a greedy rollout beside them."""
    writers = call.writers("temperatures")
    if not writers:
        yield from call.upstream_option(option)
    for writer in writers:
        if option in writer.options:
            yield writer.name, writer.options[option]
        else:
            yield from writer.upstream_option(option)


def _scorable(call: CallView) -> list[Refusal]:
    return [*needs_sampling(call), *below(call, "micro_batch_size")]


def _frozen(call: CallView) -> list[Refusal]:
    """Refuse a reference that learns: it would be the policy itself, and every KL 0."""
    group, refusals = call.group, _scorable(call)
    if group is not None and group.model.optimizer is not None:
        fix = "pass a worker group whose policy has no optimizer, or use `old_logprob`"
        refusals.append((f"its reference is `{group.name}`, which trains: every KL to it would be 0", fix))
    return refusals


@node(writes="old_logprobs", alias_of="new_logprobs", check=_scorable)
def old_logprob(
    actor: Policy,
    input_ids: Int64[Tensor, "B S"],
    attention_mask: Bool[Tensor, "B S"],
    position_ids: Int64[Tensor, "B S"],
    response_mask: Bool[Tensor, "B T"],
    temperatures: Float32[Tensor, " B"],
    *,
    micro_batch_size: int = 0,
) -> Float32[Tensor, "B T"]:
    """Log-probs of the responses under the actor's weights as they are here, at the sampling temperature.

    Above a single update these are the update's own log-probs before its step; the plan then drops the
    extra forward pass.
    """
    tokens = TokenBatch(input_ids, attention_mask, position_ids, response_mask, temperatures)
    return actor.compute_logprobs(tokens, micro_batch_size=micro_batch_size).logprobs


@node(writes="ref_logprobs", check=_frozen)
def ref_logprob(
    ref: Policy,
    input_ids: Int64[Tensor, "B S"],
    attention_mask: Bool[Tensor, "B S"],
    position_ids: Int64[Tensor, "B S"],
    response_mask: Bool[Tensor, "B T"],
    temperatures: Float32[Tensor, " B"],
    *,
    micro_batch_size: int = 0,
) -> Float32[Tensor, "B T"]:
    """Log-probs of the responses under the frozen reference, at the sampling temperature."""
    tokens = TokenBatch(input_ids, attention_mask, position_ids, response_mask, temperatures)
    return ref.compute_logprobs(tokens, micro_batch_size=micro_batch_size).logprobs
