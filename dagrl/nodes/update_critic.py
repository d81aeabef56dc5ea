"""``update_critic``: the optimizer steps of a critic."""

from jaxtyping import Bool, Int64
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph import Critic, LossColumns, LossTerms, node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.graph.roles import UpdatePlan
from dagrl.nodes.refusals import frozen_refusals, walk_refusals
from dagrl.nodes.values import token_batch
from dagrl.ops.aggregate import AggMode


def _trainable(call: CallView) -> list[Refusal]:
    return [*frozen_refusals(call, "critic"), *walk_refusals(call)]


@node(mutates=True, split="minibatch", check=_trainable)
def update_critic(
    critic: Critic,
    input_ids: Int64[Tensor, "B S"],
    attention_mask: Bool[Tensor, "B S"],
    position_ids: Int64[Tensor, "B S"],
    response_mask: Bool[Tensor, "B T"],
    seeds: Int64[Tensor, " B"],
    columns: LossColumns,
    *,
    loss: LossTerms,
    loss_agg_mode: AggMode = "token-mean",
    norm_length: int | None = None,
    mini_batch_size: int = 0,
    micro_batch_size: int = 0,
    epochs: int = 1,
    step: int,
) -> Metrics:
    """Minimise ``loss`` on the rows, as ``update_policy`` does: one optimizer step for each mini-batch and epoch.

    ``loss`` reads ``new_values`` and columns: ``value_clip(eps=0.2)`` reads ``values`` and ``returns``. Calls of the
    critic above this one see its weights before it.
    """
    plan = UpdatePlan(
        loss=loss,
        loss_agg_mode=loss_agg_mode,
        norm_length=norm_length,
        mini_batch_size=mini_batch_size,
        micro_batch_size=micro_batch_size,
        epochs=epochs,
        aliases={},
        step=step,
    )
    tokens = token_batch(input_ids, attention_mask, position_ids, response_mask)
    return critic.update(tokens, columns, seeds, plan)
