"""Updates over ranks whose rows were drawn by another model than the one that is trained, as far as a rank can say."""

from typing import Any

import torch
from worker_cases import own_rows, seeds_of, start, weights

from dagrl import LossColumns
from dagrl.engines.parallel import DataParallel
from dagrl.errors import TrainingError
from dagrl.graph.roles import Canary, UpdatePlan
from dagrl.nodes import ppo_clip


def update_with_a_gap(rank: int, size: int, strategy: Any, model: str, off_on: int, tolerance: float) -> dict[str, Any]:
    """One update, where the log-probs of the rows of one rank are 0.5 nats off; what it raised, and what it changed."""
    parallel = DataParallel(rank, size, strategy)
    actor = start(model, parallel, dropout=False)
    tokens, columns, seeds = own_rows(parallel, 1)
    said = actor.compute_logprobs(tokens).logprobs + (0.5 if rank == off_on else 0.0)
    before = weights(actor)
    plan = UpdatePlan(
        loss=ppo_clip(), loss_agg_mode="token-mean", norm_length=None, mini_batch_size=0, micro_batch_size=1, epochs=1,
        aliases={"old_logprobs": "new_logprobs"}, step=3,
        canary=Canary(group="actor", rollout="sampler", tolerance=tolerance),
    )  # fmt: skip
    error = ""
    try:
        actor.update(tokens, columns, seeds, plan, said)
    except TrainingError as raised:
        error = str(raised)
    unchanged = all(torch.equal(weight, before[name]) for name, weight in weights(actor).items())
    return {"error": error, "unchanged": unchanged, "tokens": int(tokens.response_mask.sum())}


def update_of_masked_rows(rank: int, size: int, strategy: Any, model: str, masked: tuple[int, ...]) -> dict[str, Any]:
    """One update of two mini-batches, of which rows of the whole batch have no token, all others being 0.5 nats off."""
    parallel = DataParallel(rank, size, strategy)
    actor = start(model, parallel, dropout=False)
    tokens, columns, seeds = own_rows(parallel, 1)
    mask = tokens.response_mask & ~torch.isin(seeds, seeds_of(masked))[:, None]
    said = actor.compute_logprobs(tokens).logprobs + 0.5
    before = weights(actor)
    plan = UpdatePlan(
        loss=ppo_clip(), loss_agg_mode="token-mean", norm_length=None, mini_batch_size=3, micro_batch_size=1, epochs=1,
        aliases={"old_logprobs": "new_logprobs"}, step=3,
        canary=Canary(group="actor", rollout="actor", tolerance=0.49),
    )  # fmt: skip
    columns = LossColumns({**columns, "response_mask": mask})
    error = ""
    try:
        actor.update(tokens._replace(response_mask=mask), columns, seeds, plan, said)
    except TrainingError as raised:
        error = str(raised)
    return {"error": error, "unchanged": all(torch.equal(now, before[name]) for name, now in weights(actor).items())}


#: Each mini-batch whole, whichever is the first; then the rows that rank 0 of two has of each.
MASKED = [(0, 1, 2), (3, 4, 5), (1,), (4,)]


def masked_rows(rank: int, size: int, model: str) -> list[dict[str, Any]]:
    """Every strategy, and every set of rows."""
    return [
        update_of_masked_rows(rank, size, strategy, model, masked)
        for strategy in ("replicate", "fsdp")
        for masked in MASKED
    ]


def both(rank: int, size: int, model: str) -> list[dict[str, Any]]:
    """Every strategy, the odd rows on each rank, below and above the tolerance."""
    return [
        update_with_a_gap(rank, size, strategy, model, off_on, tolerance)
        for strategy in ("replicate", "fsdp")
        for off_on in (0, 1)
        for tolerance in (0.01, 0.49)
    ]
