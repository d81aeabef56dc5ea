"""The checks of tests/gpu/check.sh: each says what it found; the exit code is 1 if any finds a fault.

``--device cpu`` runs them where there is no CUDA device, on smaller sizes, to see that the checks themselves work.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig
from worker_cases import own_rows, start, weights

from dagrl.engines.parallel import SINGLE
from dagrl.engines.sampling import sample_tokens, token_uniforms
from dagrl.engines.scoring import Scorer
from dagrl.graph.roles import Sampling, TokenBatch, UpdatePlan
from dagrl.nodes import ppo_clip
from dagrl.ops.masks import join_sequences, mask_from_lengths, pad_left, position_ids
from dagrl.storage.segments import read_lines
from dagrl.workers.policy import PolicyWorker
from dagrl.zoo import model_folder

_ROOT = Path(__file__).resolve().parents[2]
_PROMPTS = [[1, 5, 6, 7], [1, 8, 9], [1, 4, 4, 4, 4, 5]] * 4


@dataclass(frozen=True)
class Finding:
    """What a check measured, against its bound."""

    measured: str
    bound: str
    holds: bool


@contextmanager
def on_cpu() -> Iterator[None]:
    """Workers made inside do not see a CUDA device."""
    available = torch.cuda.is_available
    torch.cuda.is_available = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_available = available


def same_draws(_device: torch.device) -> Finding:
    """A token drawn depends on logits and seed, not on the device."""
    logits = torch.randn(4096, 512, generator=torch.Generator().manual_seed(0)) * 3
    uniforms = token_uniforms(torch.arange(4096), 3)
    here, _ = sample_tokens(logits, uniforms, 1.0, top_p=0.9)
    there, _ = sample_tokens(logits.to(_device), token_uniforms(torch.arange(4096).to(_device), 3), 1.0, top_p=0.9)
    differ = int((here != there.cpu()).sum())
    return Finding(f"{differ} of 4096 differ", "at most 4", differ <= 4)


def rollout_matches(precision: str, bound: float) -> Callable[[torch.device], Finding]:
    """The rollout's log-probs are the trainer's of the same tokens."""

    def check(_device: torch.device) -> Finding:
        actor = start(str(model_folder("tiny")), SINGLE, precision=precision, dropout=False)
        samples = actor.generate(_PROMPTS, torch.arange(len(_PROMPTS)), Sampling(max_new_tokens=8, temperature=0.7))
        ids, mask = pad_left(_PROMPTS, actor.pad_token_id)
        input_ids, attention, places = join_sequences(ids, mask, samples.responses, samples.lengths)
        kept = mask_from_lengths(samples.lengths, samples.responses.shape[1])
        tokens = TokenBatch(input_ids, attention, places, kept, torch.full((len(_PROMPTS),), 0.7))
        gap = (actor.compute_logprobs(tokens).logprobs - samples.logprobs)[kept].abs()
        return Finding(f"mean {gap.mean():.2e}, max {gap.max():.2e}", f"mean {bound}", float(gap.mean()) < bound)

    return check


def learns_as_on_cpu(_device: torch.device) -> Finding:
    """One optimizer step in fp32 moves the weights as on the CPU."""
    moved = []
    for place in (on_cpu, _as_it_is):
        with place():
            actor = start(str(model_folder("tiny")), SINGLE, dropout=False, lr=1e-3)
            before = weights(actor)
            tokens, columns, seeds = own_rows(SINGLE, 1)
            actor.update(tokens, columns, seeds, _one_step())
            moved.append({name: (after - before[name]).cpu() for name, after in weights(actor).items()})
    here, there = moved
    # The first step of Adam is the sign of the gradient: where that is noise, the two may differ.
    agree = fmean(float(_cosine(here[name], there[name])) for name in here)
    return Finding(f"cosine {agree:.5f}", "above .99", agree > 0.99)


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


def _cosine(first: Tensor, second: Tensor) -> Tensor:
    return torch.nn.functional.cosine_similarity(first.flatten(), second.flatten(), dim=0)


def _one_step() -> UpdatePlan:
    return UpdatePlan(
        loss=ppo_clip(), loss_agg_mode="token-mean", norm_length=None, mini_batch_size=0, micro_batch_size=0,
        epochs=1, aliases={"old_logprobs": "new_logprobs"}, step=1,
    )  # fmt: skip


def offloaded_memory(device: torch.device) -> Finding:
    """Offloaded weights, gradients and optimizer state leave the device, and train on as if they had stayed."""
    cuda = device.type == "cuda"
    moved, stayed = (start(str(model_folder("tiny")), SINGLE, dropout=False) for _ in range(2))
    _learn_twice(stayed, between=())
    held = torch.cuda.memory_allocated() if cuda else 0
    before = moved.weight_bytes
    free: list[int] = []

    def away() -> None:
        for action in ("offload_optimizer", "offload_model"):
            moved.phase(action, 1)
        free.append(torch.cuda.memory_allocated() if cuda else held - before)
        for action in ("onload_model", "onload_optimizer"):
            moved.phase(action, 1)

    _learn_twice(moved, between=(away,))
    equal = all(torch.equal(one, weights(stayed)[name]) for name, one in weights(moved).items())
    gone = (held - free[0]) / 2**20
    return Finding(
        f"{gone:.1f} MiB fewer, weights {'equal' if equal else 'differ'}",
        f"{before / 2**20:.1f} MiB and equal",
        equal and gone * 2**20 >= 0.9 * before,
    )


def _learn_twice(actor: PolicyWorker, between: Sequence[Callable[[], None]]) -> None:
    for step in (1, 2):
        tokens, columns, seeds = own_rows(SINGLE, step)
        actor.update(tokens, columns, seeds, _one_step())
        for action in between if step == 1 else ():
            action()


def logprob_memory(device: torch.device) -> Finding:
    """Log-probs never need the logits of all tokens at once: 128k words here, as in current models."""
    cuda = device.type == "cuda"
    vocabulary, rows, length = (131072, 16, 512) if cuda else (8192, 4, 64)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(device)
    ids = torch.randint(0, vocabulary, (rows, length))
    attention = torch.ones(ids.shape, dtype=torch.bool)
    batch = TokenBatch(ids, attention, position_ids(attention), attention[:, : length // 2], torch.ones(rows))
    scorer = Scorer(model, precision="bf16", micro_batch_tokens=rows * length, parallel=SINGLE)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    found = scorer.compute(batch)
    if not bool(found.logprobs.isfinite().all()):
        return Finding("log-probs are not finite", "finite", holds=False)
    whole = rows * (length // 2) * vocabulary * 4
    if not cuda:
        return Finding("not measured on the CPU", "a quarter of the fp32 logits", holds=True)
    peak = torch.cuda.max_memory_allocated() - before
    return Finding(f"{peak / 2**20:.0f} MiB of {whole / 2**20:.0f}", "a quarter of the fp32 logits", peak < whole / 4)


def demo(device: torch.device) -> Finding:
    """GRPO in this process learns the packaged task."""
    from dagrl.cli.main import cli

    steps = "120" if device.type == "cuda" else "2"
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/run"
        command = ["run", str(_ROOT / "pipelines" / "grpo.py"), "--executor", "local", "--ui", "quiet", "--out", out]
        sizes = [] if device.type == "cuda" else ["--set", "batch_size=16"]
        began = time.monotonic()
        cli.main([*command, *sizes, "--steps", steps], standalone_mode=False)
        seconds = time.monotonic() - began
        rewards = [line["reward/mean"] for line in read_lines(out, "metrics") if line["pipeline"] == "eval"]
    curve = f"held-out {rewards[0]:.3f} -> {rewards[-1]:.3f}, {steps} steps in {seconds:.0f} s"
    return Finding(curve, "0.8 at the end", rewards[-1] >= 0.8 or device.type == "cpu")


CHECKS: dict[str, Callable[[torch.device], Finding]] = {
    "draws equal those on the CPU": same_draws,
    "rollout against trainer, fp32": rollout_matches("fp32", 1e-3),
    "rollout against trainer, bf16": rollout_matches("bf16", 0.05),
    "an optimizer step equals the CPU's": learns_as_on_cpu,
    "offloaded weights": offloaded_memory,
    "peak memory of log-probs": logprob_memory,
    "GRPO in this process": demo,
}


def main() -> int:
    """Run every check; print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device = torch.device(parser.parse_args().device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("skipped: no CUDA device")
        return 0
    name = torch.cuda.get_device_name() if device.type == "cuda" else "the CPU"
    lines = [f"| check on {name}, torch {torch.__version__} | measured | bound | |", "|---|---|---|---|"]
    faults = 0
    for title, check in CHECKS.items():
        began = time.monotonic()
        finding = check(device)
        faults += not finding.holds
        verdict = "holds" if finding.holds else "FAILS"
        lines.append(
            f"| {title} | {finding.measured} | {finding.bound} | {verdict}, {time.monotonic() - began:.0f} s |"
        )
    print("\n".join(lines))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
