"""The loss of supervised fine-tuning."""

from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph import loss
from dagrl.ops.masks import mean_metric, where_masked


@loss()
def sft_loss(
    new_logprobs: Float32[Tensor, "B T"], response_mask: Bool[Tensor, "B T"]
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """-log-prob of each response token: the cross-entropy of supervised fine-tuning on `demonstrations`.

    Step 1 of InstructGPT (arXiv 2203.02155). ``actor/nll`` is its mean in nats per token. A masked token gives 0.
    """
    losses = -where_masked(new_logprobs, response_mask)
    return losses, Metrics({"actor/nll": mean_metric(losses.detach(), response_mask)})
