"""``update_policy``: the optimizer steps of one RL step."""

from collections.abc import Mapping

from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph import LossColumns, LossTerms, Policy, node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.graph.roles import TokenBatch, UpdatePlan
from dagrl.nodes.logprob import needs_sampling, sampling_option
from dagrl.nodes.refusals import frozen_refusals, walk_refusals
from dagrl.ops.aggregate import AggMode


def _trainable(call: CallView) -> list[Refusal]:
    return [*needs_sampling(call), *frozen_refusals(call, "policy"), *walk_refusals(call), *_uncorrected(call)]


def _uncorrected(call: CallView) -> list[Refusal]:
    """Refuse a correction that nobody applies, and rows drawn from some tokens alone without one."""
    terms: LossTerms = call.options["loss"]
    reads, given = {read.name for read in terms.reads()}, call.columns()
    if "rollout_weights" in given - reads:
        what = "`rollout_weights` arrive, but no term of its loss reads them"
        return [(what, "drop the call that writes them, or take a loss that reads them, such as `ppo_clip`")]
    learns_from_samples = bool(reads & {"old_logprobs", "advantages"})
    if not learns_from_samples or "rollout_logprobs" in reads or "rollout_weights" in given:
        return []
    drawn = [("top_p", value, source) for source, value in sampling_option(call, "top_p") if value < 1]
    drawn += [("top_k", value, source) for source, value in sampling_option(call, "top_k") if value > 0]
    fix = "pass a `rollout_correction` of the rows too, or sample with top_p=1 and top_k=0"
    return [
        (f"`{source}` has {name}={value}: its rows come from another distribution than the one that is trained", fix)
        for name, value, source in drawn
    ]


@node(mutates=True, split="minibatch", check=_trainable)
def update_policy(
    actor: Policy,
    input_ids: Int64[Tensor, "B S"],
    attention_mask: Bool[Tensor, "B S"],
    position_ids: Int64[Tensor, "B S"],
    response_mask: Bool[Tensor, "B T"],
    temperatures: Float32[Tensor, " B"],
    seeds: Int64[Tensor, " B"],
    columns: LossColumns,
    rollout_logprobs: Float32[Tensor, "B T"] | None = None,
    *,
    loss: LossTerms,
    loss_agg_mode: AggMode = "token-mean",
    norm_length: int | None = None,
    mini_batch_size: int = 0,
    micro_batch_size: int = 0,
    epochs: int = 1,
    aliases: Mapping[str, str],
    step: int,
) -> Metrics:
    """Minimise ``loss`` on the rows: ``epochs`` passes of one optimizer step for each mini-batch.

    ``mini_batch_size`` counts rows (0: all rows at once); ``micro_batch_size`` (0: by the policy's token budget)
    only bounds memory and changes no number: denominators are those of the whole mini-batch.
    ``rollout_logprobs`` are compared with the trainer's own before the first step (``rollout/logprob_gap``).
    """
    plan = UpdatePlan(
        loss=loss,
        loss_agg_mode=loss_agg_mode,
        norm_length=norm_length,
        mini_batch_size=mini_batch_size,
        micro_batch_size=micro_batch_size,
        epochs=epochs,
        aliases=aliases,
        step=step,
    )
    tokens = TokenBatch(input_ids, attention_mask, position_ids, response_mask, temperatures)
    return actor.update(tokens, columns, seeds, plan, rollout_logprobs)
