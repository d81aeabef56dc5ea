"""``reward_model_score``: rewards by a model that was trained to give them."""

from jaxtyping import Float32
from torch import Tensor

from dagrl.data.columns import Objects
from dagrl.graph import RewardModel, node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.graph.roles import Message
from dagrl.nodes.refusals import below


def _sane_size(call: CallView) -> list[Refusal]:
    return below(call, "micro_batch_size")


@node(writes="rewards", check=_sane_size)
def reward_model_score(
    scorer: RewardModel,
    messages: Objects[list[Message]],
    response_text: Objects[str],
    *,
    micro_batch_size: int = 0,
) -> Float32[Tensor, " B"]:
    """The reward model's score of each prompt and response, as it is: neither scaled nor cut.

    Prompt and response are rendered by the reward model's own chat template and tokenizer, so its vocabulary need not
    be the actor's. ``micro_batch_size`` (0: by the model's token budget) only bounds memory.

    Raises:
        ConfigError: for a conversation longer than the model's context.
    """
    return scorer.score(messages, list(response_text), micro_batch_size=micro_batch_size)
