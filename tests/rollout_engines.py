"""Small models of the families, and engines of vLLM for them."""

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from dagrl.engines.rollout.vllm import VllmRollout, start_vllm_rollout
from dagrl.engines.weights import TrainedWeights
from dagrl.graph.rollouts import vllm
from dagrl.zoo import model_folder

VOCAB = 82
PAD = 0
STOPS = frozenset({2, 7})
CONTEXT = 512


def tokenizer():
    return AutoTokenizer.from_pretrained(model_folder("tiny"))


def build_llama(*, tied: bool, seed: int = 7) -> PreTrainedModel:
    """A random model whose heads are the smallest that vLLM has a kernel for."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        initializer_range=0.15,
        tie_word_embeddings=tied,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def start(model, dtype, *, native=None, stops=STOPS, spec=None) -> VllmRollout:
    return start_vllm_rollout(
        spec or vllm(kv_cache_gib=0.1),
        model,
        tokenizer(),
        dtype=dtype,
        stop_token_ids=stops,
        pad_token_id=PAD,
        context_length=CONTEXT,
        native_updates=native,
    )


def sync(engine, model, dtype, version=1) -> None:
    engine.load_weights(TrainedWeights(model, dtype=dtype), version)


@torch.no_grad()
def shake(model, amount: float, seed: int) -> None:
    """Change every weight of a model, as training does."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * amount)


def ragged_prompts(count: int, seed: int = 0) -> list[list[int]]:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 12, (count,), generator=draw).tolist()
    return [torch.randint(3, VOCAB, (length,), generator=draw).tolist() for length in lengths]


def rows_of(samples):
    """Each row's tokens and log-probs, padding cut off."""
    return [
        (tokens[:length].tolist(), logprobs[:length])
        for tokens, logprobs, length in zip(samples.responses, samples.logprobs, samples.lengths.tolist(), strict=True)
    ]


@torch.no_grad()
def trainer_logprobs(model, prompt, tokens, temperature: float = 1.0):
    """Those of a whole forward pass in fp32."""
    logits = model(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]


def gap(model, prompts, samples, temperature: float = 1.0) -> float:
    """The mean |engine - trainer| over all tokens."""
    parts = [
        (logprobs - trainer_logprobs(model, prompt, tokens, temperature)).abs()
        for prompt, (tokens, logprobs) in zip(prompts, rows_of(samples), strict=True)
    ]
    return float(torch.cat(parts).mean())
