"""Which built-in nodes write a column that they do not read: a hint for whoever lacks it, without loading them."""

from collections.abc import Mapping
from types import MappingProxyType

_TOKENS = (
    "input_ids",
    "attention_mask",
    "position_ids",
    "responses",
    "response_mask",
    "response_lengths",
    "truncated",
    "temperatures",
    "prompt_ids",
    "prompt_mask",
    "rollout_logprobs",
    "response_text",
)

#: Column -> nodes of `dagrl.nodes`; a test holds it against their contracts.
BUILT_IN_WRITERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("messages", "answers", "data_source", "row_fields"), ("prompts",)),
        **dict.fromkeys(_TOKENS, ("generate",)),
        "old_logprobs": ("old_logprob",),
        "ref_logprobs": ("ref_logprob",),
        "rollout_weights": ("rollout_correction",),
        **dict.fromkeys(("token_rewards", "penalized_rewards"), ("adaptive_kl_penalty", "kl_penalty")),
        "rewards": ("format_reward", "reward_function", "verify"),
        "reward_details": ("reward_function",),
        "advantages": ("grpo_advantage", "rloo_advantage"),
    }
)
