"""``update_policy``: the optimizer steps of one RL step."""

from collections.abc import Mapping
from typing import Literal

from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl.data.metrics import Max, Metrics
from dagrl.graph import Critic, LossColumns, LossTerms, Policy, node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.graph.roles import Canary, TokenBatch, UpdatePlan
from dagrl.nodes.correction_refusals import uncorrected
from dagrl.nodes.logprob import needs_sampling
from dagrl.nodes.refusals import frozen_refusals, walk_refusals
from dagrl.ops.aggregate import AggMode


def _trainable(call: CallView) -> list[Refusal]:
    refusals = [*needs_sampling(call), *frozen_refusals(call, "policy"), *walk_refusals(call), *uncorrected(call)]
    tolerance = call.options["logprob_gap_tolerance"]
    if isinstance(tolerance, float | int) and tolerance < 0:
        what = f"`logprob_gap_tolerance` is {tolerance}"
        fix = 'it must be at least 0 (nats), "auto" for that of the precision, or None for no limit'
        refusals.append((what, fix))
    return [*refusals, *_warms_nobody_up(call)]


def _warms_nobody_up(call: CallView) -> list[Refusal]:
    """Refuse to wait for a critic where none learns."""
    steps = call.options["critic_warmup"]
    if steps < 0:
        return [(f"`critic_warmup` is {steps}", "it must be at least 0")]
    roles = [above.group.model.role for above in call.upstream() if above.group in call.trained() and above.group]
    if steps == 0 or Critic in roles:
        return []
    what = f"`critic_warmup` is {steps}, but its rows come from no critic that learns"
    return [(what, "drop it, or pass advantages over the `values` of a critic that `update_critic` trains")]


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
    critic_warmup: int = 0,
    logprob_gap_tolerance: float | Literal["auto"] | None = "auto",
    aliases: Mapping[str, str],
    step: int,
    canary: Canary | None = None,
) -> Metrics:
    """Minimise ``loss`` on the rows: ``epochs`` passes of one optimizer step for each mini-batch.

    ``mini_batch_size`` counts rows (0: all rows at once); ``micro_batch_size`` (0: by the policy's token budget)
    only bounds memory and changes no number: denominators are those of the whole mini-batch.
    ``rollout_logprobs`` are compared with the trainer's own before the first step (``rollout/logprob_gap``).

    In the run's first ``critic_warmup`` steps the policy stays as it is, so that the critic learns first: nothing is
    computed here, the optimizer is not touched, the metric ``actor/critic_warmup`` is 1, and the schedule of the
    learning rate begins in the step after these. (verl updates in step ``critic_warmup`` already, and ends the run
    before its schedule does.) An adaptive KL penalty sees a KL of 0 in these steps, as long as the reference is what
    the policy begins as, so its coefficient falls by up to 20 % of rows / horizon in each.

    Where the rows were drawn from the very weights that the update begins with, all tokens open to them, that gap is
    nothing but float noise: a mean above ``logprob_gap_tolerance`` (nats) ends the run, as the rollout weights then are
    others. "auto" is 0.01 in fp32 and 0.1 in bf16; None turns it off.

    Raises:
        TrainingError: when that gap is too large, or a gradient is not finite; the weights then are those before.
    """
    del logprob_gap_tolerance  # the plan has made the canary of it
    if step <= critic_warmup:
        return Metrics({"actor/critic_warmup": Max(1.0)})
    plan = UpdatePlan(
        loss=loss,
        loss_agg_mode=loss_agg_mode,
        norm_length=norm_length,
        mini_batch_size=mini_batch_size,
        micro_batch_size=micro_batch_size,
        epochs=epochs,
        aliases=aliases,
        step=step,
        first_step=critic_warmup + 1,
        canary=canary,
    )
    tokens = TokenBatch(input_ids, attention_mask, position_ids, response_mask, temperatures)
    return actor.update(tokens, columns, seeds, plan, rollout_logprobs)
