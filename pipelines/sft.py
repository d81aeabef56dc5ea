"""Supervised fine-tuning (arXiv 2203.02155, step 1): made from nothing, a model that answers as `zoo:tiny` does."""

from dataclasses import dataclass
from typing import Literal

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy
from dagrl.nodes import demonstrations, generate, prompts, report, sft_loss, update_policy, verify


@dataclass(frozen=True, kw_only=True)
class Config:
    """The knobs: ``dagrl run pipelines/sft.py --set model=runs/other/model --set from_scratch=False``."""

    model: str = "zoo:tiny"  # or a Hugging Face name, or a local folder
    from_scratch: bool = True  # keep its config and tokenizer, and begin with random weights
    data: str = "zoo:larger"  # rows with answers: a file, or a folder with one for each split
    split: str = "sft"  # of the data: here easy pairs alone
    steps: int = 120
    batch_size: int = 256  # prompts per step
    max_new_tokens: int = 8
    lr: float = 1e-3
    mini_batch_size: int = 0  # rows per optimizer step; 0: all
    micro_batch_size: int = 0  # rows per forward pass; 0: by the policy's token budget
    precision: Literal["bf16", "fp32"] = "bf16"
    eval_every: int = 30
    workers: int = 0  # processes; 0: on Ray one for each GPU, else for each core


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """One step on demonstrations, and the evaluation on held-out prompts."""
    pool = ResourcePool("main", process_on_nodes=[cfg.workers])
    optimizer = adamw(lr=cfg.lr, warmup=50, betas=(0.9, 0.98), weight_decay=0.01)
    model = policy(cfg.model, from_scratch=cfg.from_scratch, optimizer=optimizer, precision=cfg.precision)
    actor = WorkerGroup("actor", model, pool=pool)

    with Pipeline("sft", steps=cfg.steps) as step:
        batch = prompts(data=cfg.data, split=cfg.split, batch_size=cfg.batch_size)
        update_policy(
            actor, demonstrations(actor, batch),
            loss=sft_loss(),
            mini_batch_size=cfg.mini_batch_size,
            micro_batch_size=cfg.micro_batch_size,
        )  # fmt: skip

    with Pipeline("eval", every=cfg.eval_every) as held_out:
        batch = prompts(data=cfg.data, split="test", batch_size=1024)
        answer = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=0.0)
        report(batch, verify(batch, answer))

    return step, held_out
