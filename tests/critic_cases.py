"""Small models with scalar heads on disk, critics as ranks of a group, and what they do there."""

from pathlib import Path
from typing import Any

import torch
from recorded_rows import NUM_ROWS, OWNERS, recorded
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
)
from transformers.utils import logging

from dagrl import LossColumns, ResourcePool, WorkerGroup, adamw, critic
from dagrl.data.metrics import Metrics
from dagrl.engines.parallel import SINGLE, DataParallel
from dagrl.engines.sharding import whole
from dagrl.graph.roles import TokenBatch, UpdatePlan
from dagrl.nodes import value_clip
from dagrl.storage.checkpoints import StatePart, write_part
from dagrl.workers.critic import CriticWorker
from dagrl.zoo import model_folder

HEADS = {
    "none": AutoModelForCausalLM,
    "token": AutoModelForTokenClassification,
    "sequence": AutoModelForSequenceClassification,
}


def config(family: str, **changes: Any) -> PretrainedConfig:
    """A model of a few thousand weights with the packaged tokenizer's vocabulary."""
    if family == "gpt2":
        return GPT2Config(vocab_size=82, n_embd=16, n_layer=2, n_head=2, n_positions=64, **changes)
    return LlamaConfig(
        vocab_size=82, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, **changes,
    )  # fmt: skip


def make_model(folder: Path, family: str = "llama", head: str = "none", *, labels: int = 1, **changes: Any) -> str:
    """A folder with such a model; its head's weights are drawn large, so that values tell tokens apart."""
    logging.set_verbosity_error()
    torch.manual_seed(0)
    model = HEADS[head].from_config(config(family, num_labels=labels, **changes))
    if head != "none":
        for name, parameter in model.named_parameters():
            if name.startswith(("score", "classifier")):
                parameter.data.normal_(std=0.5)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder("tiny")).save_pretrained(folder)
    return str(folder)


def start(model: str, parallel: DataParallel = SINGLE, *, trains: bool = True, **options: Any) -> CriticWorker:
    """A critic in fp32 unless told otherwise."""
    lr, norm = options.pop("lr", 1e-2), options.pop("max_grad_norm", 0.5)
    optimizer = adamw(lr=lr, max_grad_norm=norm, weight_decay=0.1) if trains else None
    spec = critic(model, optimizer=optimizer, **{"precision": "fp32", **options})
    return CriticWorker(WorkerGroup("critic", spec, pool=ResourcePool("main")), total_steps=10, parallel=parallel)


def plan(**changes: Any) -> UpdatePlan:
    given = {
        "loss": value_clip(eps=0.5), "loss_agg_mode": "token-mean", "norm_length": None, "mini_batch_size": 0,
        "micro_batch_size": 0, "epochs": 1, "aliases": {}, "step": 1,
    }  # fmt: skip
    return UpdatePlan(**{**given, **changes})


def rows_of(rank: int = 0, size: int = 1) -> tuple[TokenBatch, LossColumns, Tensor]:
    """A rank's rows of the recorded ones: padding, holes, rows without a trained token; NaN where none is trained."""
    tokens, _, seeds = recorded()
    draw = torch.Generator().manual_seed(5)
    mask = tokens.response_mask
    columns = {name: torch.randn(mask.shape, generator=draw) for name in ("values", "returns")}
    columns = {name: column.masked_fill(~mask, float("nan")) for name, column in columns.items()}
    own = torch.tensor([row for row in range(NUM_ROWS) if OWNERS[row] % size == rank], dtype=torch.int64)
    given = LossColumns({name: column[own] for name, column in {**columns, "response_mask": mask}.items()})
    return TokenBatch(*(column[own] for column in tokens)), given, seeds[own]


def learn(worker: CriticWorker, steps: range, **changes: Any) -> Metrics:
    """Updates on this rank's rows."""
    tokens, columns, seeds = rows_of(worker.parallel.rank, worker.parallel.size)
    metrics = Metrics()
    for step in steps:
        metrics = metrics.merge(worker.update(tokens, columns, seeds, plan(step=step, **changes)))
    return metrics


def weights(worker: CriticWorker) -> dict[str, Tensor]:
    """Whole tensors."""
    return {name: whole(weight.detach()).clone() for name, weight in worker.model.named_parameters()}


def write_state(worker: CriticWorker, folder: Path) -> None:
    """Write this rank's part."""
    state = worker.state()
    assert state is not None
    folder.mkdir(parents=True, exist_ok=True)
    write_part(str(folder), f"critic-{worker.parallel.rank:05d}", state.tensors, state.info)
    worker.parallel.max(0)  # every part is written


def read_state(folder: Path) -> list[StatePart]:
    return [StatePart(str(folder), file.stem) for file in sorted(folder.glob("*.safetensors"))]


def train_and_go_on(rank: int, size: int, strategy: Any, model: str, folder: Path, changes: dict) -> dict[str, Any]:
    """Four steps; and two, a state on disk, two more by a new worker; the values of this rank's rows; the export."""
    parallel = DataParallel(rank, size, strategy)
    through = start(model, parallel, lr=1e-3)
    metrics = learn(through, range(1, 5), **changes)
    first = start(model, parallel, lr=1e-3)
    learn(first, range(1, 3), **changes)
    write_state(first, folder / "state")
    second = start(model, parallel, lr=1e-3)
    second.load_state(read_state(folder / "state"))
    learn(second, range(3, 5), **changes)
    tokens, _, _ = rows_of(rank, size)
    values = through.compute_values(tokens, micro_batch_size=1)
    through.save(folder / "saved")
    return {
        "metrics": metrics, "weights": weights(through), "resumed": weights(second), "values": values,
        "rows": [row for row in range(NUM_ROWS) if OWNERS[row] % size == rank],
    }  # fmt: skip


def go_on(rank: int, size: int, strategy: Any, model: str, folder: Path) -> dict[str, Tensor]:
    """The weights of a worker at what other ranks have saved."""
    worker = start(model, DataParallel(rank, size, strategy))
    worker.load_state(read_state(folder))
    return weights(worker)


def as_ranks(rank: int, size: int, cases: list[tuple[Any, ...]]) -> list[Any]:
    """Each case is a function, then its arguments after rank and size."""
    return [function(rank, size, *arguments) for function, *arguments in cases]
