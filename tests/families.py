"""Small random models of the families, as folders with the packaged tokenizer and its chat template."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rollout_engines import CONTEXT, shake, tokenizer
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

#: Shorter than prompt and response together, so that it matters.
WINDOW = 8

_COMMON: Mapping[str, Any] = {
    "vocab_size": 82,
    "hidden_size": 96,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SLIDING_AND_FULL = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
#: What each family has that the others do not; heads are tied as its models have them.
FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": True}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True, "head_dim": None, "num_attention_heads": 3}),
    "qwen2-untied": ("qwen2", {"tie_word_embeddings": False, "head_dim": None, "num_attention_heads": 3}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3-untied": ("qwen3", {"tie_word_embeddings": False}),
    "mistral": ("mistral", {"tie_word_embeddings": False, "sliding_window": WINDOW}),
    "gemma": ("gemma", {"tie_word_embeddings": True}),
    "gemma2": (
        "gemma2",
        {
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 4.0,
            **_SLIDING_AND_FULL,
        },
    ),
    "gemma3": ("gemma3_text", {"tie_word_embeddings": True, "query_pre_attn_scalar": 24, **_SLIDING_AND_FULL}),
}


def write_family(name: str, folder: Path) -> str:
    """A model whose every weight differs from its first value, norms and biases too."""
    kind, own = FAMILIES[name]
    options = {key: value for key, value in {**_COMMON, **own}.items() if value is not None}
    config = CONFIG_MAPPING[kind](**options)
    torch.manual_seed(3)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    shake(model.requires_grad_(False), 0.1, seed=4)
    # Gemma multiplies embeddings, which then drown the layers: a model with a tied head says what it was told.
    model.get_input_embeddings().weight.mul_(0.4)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)
