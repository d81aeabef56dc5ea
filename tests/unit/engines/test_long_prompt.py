"""A long prompt before and after the weights change: nothing computed by the old ones is used again."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dagrl.engines.rollout.hf import HFRollout
from dagrl.graph.roles import Sampling

PROMPT = torch.randint(1, 40, (300,), generator=torch.Generator().manual_seed(1)).tolist()


def build(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=512, initializer_range=0.3, attn_implementation="eager",
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def engine(model: LlamaForCausalLM) -> HFRollout:
    return HFRollout(model, stop_token_ids=frozenset(), pad_token_id=0, context_length=512)


def test_a_prompt_of_300_tokens_is_read_anew_after_every_change_of_the_weights() -> None:
    model, sampling, widths = build(0), Sampling(max_new_tokens=6), []
    model.register_forward_pre_hook(
        lambda _, given, named: widths.append(named["input_ids"].shape[1]), with_kwargs=True
    )
    rollout, seen = engine(model), []
    for seed in (0, 1, 2):
        other = build(seed)
        model.load_state_dict(other.state_dict())
        got = rollout.generate([PROMPT], torch.arange(1), sampling)
        fresh = engine(other).generate([PROMPT], torch.arange(1), sampling)
        assert got.responses.tolist() == fresh.responses.tolist()
        torch.testing.assert_close(got.logprobs, fresh.logprobs, rtol=0, atol=1e-6)
        seen.append(got.responses.tolist())
    assert len({str(one) for one in seen}) == 3
    assert widths.count(300) == 3, widths
