"""Make the packaged start model: ``python -m dagrl.zoo.make_tiny --out DIR``.

A Llama of 0.8M parameters with one token per character, supervised with clean labels on the easy pairs of the task
`larger` and stopped early, so that it answers easy pairs mostly right and hard ones about as often as a guess.
One seed gives the same weights on the same machine with the same number of threads.
"""

import argparse
import json
import string
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dagrl.zoo.larger import EASY, HARD, Larger, Row

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
CHARACTERS = string.digits + "+-*/=? ()" + string.ascii_lowercase + string.ascii_uppercase + ".,:;!'\n"
CHAT_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}="
PAD, BOS, EOS = 0, 1, 2

SEED = 0
STEPS = 120
BATCH = 256
WARMUP_STEPS = 50
PEAK_LR = 1e-3
ANSWER_TOKENS = 4


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer: a token per character, left padding, and a chat template that ends in ``=``."""
    vocabulary = {token: i for i, token in enumerate((*SPECIAL_TOKENS, *CHARACTERS))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_max_length=128,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(vocabulary_size: int) -> LlamaForCausalLM:
    """Return the model with fresh weights, drawn from torch's global generator."""
    config = LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=128,
        intermediate_size=336,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
    return model


def encode(tokenizer: PreTrainedTokenizerFast, rows: Sequence[Row]) -> Tensor:
    """Return prompts and answers as ids, shape [rows, 13]: every row has the same length, so none is padded."""
    texts = [f"<bos>{row.prompt}={row.answer}<eos>" for row in rows]
    return torch.tensor(tokenizer(texts, add_special_tokens=False)["input_ids"])


def answer_loss(model: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """Return the mean cross-entropy over the answers' tokens, the final ``<eos>`` included."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=ids, logits_to_keep=ANSWER_TOKENS + 1).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, -ANSWER_TOKENS:].flatten())


def train(model: LlamaForCausalLM, batches: Iterator[Tensor]) -> None:
    """Take one AdamW step for each batch of ids, with a linear warm-up."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.01)
    for step, ids in enumerate(batches, 1):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR * min(1.0, step / WARMUP_STEPS)
        optimizer.zero_grad()
        answer_loss(model, ids).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@torch.inference_mode()
def greedy_accuracy(model: LlamaForCausalLM, ids: Tensor) -> float:
    """Return the share of rows whose whole answer is each position's likeliest token given the answer so far."""
    likeliest = model(input_ids=ids, logits_to_keep=ANSWER_TOKENS + 1).logits[:, :-1].argmax(-1)
    return (likeliest == ids[:, -ANSWER_TOKENS:]).all(1).float().mean().item()


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the model in bfloat16 and its tokenizer to ``out``, with every JSON file laid out the same way."""
    deepcopy(model).bfloat16().save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    for path in out.glob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def report(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Print the share of held-out pairs that a model answers right, the easy ones and the hard ones apart."""
    test = list(Larger("test"))
    for data_source in (EASY, HARD):
        ids = encode(tokenizer, [row for row in test if row.data_source == data_source])
        print(f"{data_source}: held-out greedy accuracy {greedy_accuracy(model, ids):.3f} on {len(ids)} pairs")


def make(out: Path, seed: int) -> None:
    """Train the start model, save it to ``out`` in bfloat16 with its tokenizer, and print its held-out accuracy."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer))
    rows = Larger("sft")
    starts = range(0, STEPS * BATCH, BATCH)
    train(model, (encode(tokenizer, rows[start : start + BATCH]) for start in starts))
    save(model, tokenizer, out)
    report(LlamaForCausalLM.from_pretrained(out, dtype=torch.float32), tokenizer)


def main() -> None:
    """Read the command line and make the model."""
    parser = argparse.ArgumentParser(description="Make the packaged start model.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the weights (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    make(options.out, options.seed)


if __name__ == "__main__":
    main()
