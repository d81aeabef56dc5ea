"""Which built-in nodes write a column that they need not read: a hint for whoever lacks it, without loading them."""

from collections.abc import Mapping
from types import MappingProxyType

_RESPONSES = (
    "input_ids",
    "attention_mask",
    "position_ids",
    "responses",
    "response_mask",
    "response_lengths",
    "truncated",
    "temperatures",
)
_ROLLOUT = ("prompt_ids", "prompt_mask", "rollout_logprobs", "response_text")

_ADVANTAGES = (
    "gae_advantage",
    "gdpo_advantage",
    "gpg_advantage",
    "grpo_advantage",
    "grpo_passk_advantage",
    "maxrl_advantage",
    "opo_advantage",
    "otb_advantage",
    "pass_at_k_advantage",
    "reinforce_advantage",
    "reinforce_pp_advantage",
    "reinforce_pp_baseline_advantage",
    "remax_advantage",
    "rloo_advantage",
)

#: Column -> nodes of `dagrl.nodes`; a test holds it against their contracts.
BUILT_IN_WRITERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("messages", "answers", "data_source", "row_fields"), ("prompts",)),
        **dict.fromkeys(_RESPONSES, ("demonstrations", "generate")),
        **dict.fromkeys(_ROLLOUT, ("generate",)),
        "old_logprobs": ("old_logprob", "old_logprob_squares"),
        "sum_pi_squared": ("old_logprob_squares",),
        "ref_logprobs": ("ref_logprob",),
        **dict.fromkeys(("teacher_logprobs", "teacher_topk_ids", "teacher_topk_logprobs"), ("teacher_topk",)),
        "rewards": ("format_reward", "gym_score", "math_verify", "reward_function", "reward_model_score", "verify"),
        "values": ("values",),
        "rollout_weights": ("rollout_correction",),
        "penalized_rewards": ("adaptive_kl_penalty", "kl_penalty"),
        "reward_details": ("reward_function",),
        "reward_components": ("stack_rewards",),
        "token_rewards": ("adaptive_kl_penalty", "kl_penalty", "place_rewards"),
        "advantages": _ADVANTAGES,
        "returns": ("gae_advantage",),
    }
)
