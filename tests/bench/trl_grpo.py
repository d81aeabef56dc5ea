"""The TRL side of ``tests.bench.versus_trl``: one GRPOTrainer run, in a venv that has TRL and no dagrl.

``python tests/bench/trl_grpo.py WORK``, where WORK is a `Work` as JSON; prints one JSON line. dagrl's side shares
`Work` and `Meter`, so this file imports nothing heavy before it runs.
"""

import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What both sides do: ``steps`` measured steps after ``warm`` others, one optimizer step each."""

    model: str  # a folder
    data: str  # JSONL: prompt, answer
    steps: int
    threads: int
    batch_size: int
    n: int
    lr: float
    kl: float
    clip: float
    warm: int = 3
    max_new_tokens: int = 8


class Meter:
    """CPU and wall seconds of this process between the end of the last warm step and the end of the last step."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.rewards: list[float] = []
        self._marks: list[tuple[float, float]] = []

    def after(self, step: int) -> None:
        """Call at the end of every step; the first is 1."""
        if step in (self.work.warm, self.work.warm + self.work.steps):
            self._marks.append((time.process_time(), time.perf_counter()))

    def print_report(self) -> None:
        (cpu, wall), (cpu_end, wall_end) = self._marks
        report = {
            "cpu_s_per_step": (cpu_end - cpu) / self.work.steps,
            "wall_s_per_step": (wall_end - wall) / self.work.steps,
            "reward_first3": sum(self.rewards[:3]) / 3,
            "reward_last3": sum(self.rewards[-3:]) / 3,
        }
        print(json.dumps(report))


def main(work: Work) -> None:
    """Train and print.

    As lean as GRPOTrainer's own options make it: one micro-batch, no activation checkpointing, no entropy filter, no
    logging, no saving; old log-probs are the update's own, since each rollout is trained on once.
    """
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from transformers.utils import logging
    from trl import GRPOConfig, GRPOTrainer

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(work.threads)
    meter = Meter(work)
    trainer: Any = None

    def score(completions: list[Any], completion_ids: list[list[int]], answer: list[str], **_: Any) -> list[float]:
        stop = trainer.processing_class.eos_token_id
        rewards = [
            float(stop in ids and completion[0]["content"].strip() == text.strip())
            for completion, ids, text in zip(completions, completion_ids, answer, strict=True)
        ]
        meter.rewards.append(sum(rewards) / len(rewards))
        return rewards

    class StepEnds(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            meter.after(state.global_step)

    rows = [json.loads(line) for line in Path(work.data).read_text().splitlines()]
    data = Dataset.from_list([{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows])
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=True, gradient_checkpointing=False,
            model_init_kwargs={"dtype": "float32", "attn_implementation": "eager"},
            per_device_train_batch_size=work.batch_size * work.n, num_generations=work.n,
            gradient_accumulation_steps=1, steps_per_generation=1, num_iterations=1, max_steps=work.warm + work.steps,
            max_completion_length=work.max_new_tokens, temperature=1.0, top_k=0, top_p=1.0,
            loss_type="grpo", scale_rewards="group", beta=work.kl, epsilon=work.clip,
            learning_rate=work.lr, lr_scheduler_type="constant_with_warmup", warmup_steps=20,
            adam_beta1=0.9, adam_beta2=0.99, weight_decay=0.0, max_grad_norm=1.0,
            dataloader_num_workers=0, logging_strategy="no", save_strategy="no", report_to="none", disable_tqdm=True,
        )  # fmt: skip
        trainer = GRPOTrainer(work.model, reward_funcs=score, args=config, train_dataset=data, callbacks=[StepEnds()])
        trainer.train()
    meter.print_report()


if __name__ == "__main__":
    main(Work(**json.loads(sys.argv[1])))
