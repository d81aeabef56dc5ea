"""The model behind a role: a worker of the packaged tiny model, in fp32."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dagrl.graph.contract import NodeContract
from dagrl.graph.roles import Policy
from dagrl.graph.specs import ResourcePool, WorkerGroup, adamw, policy

_MODEL = "zoo:tiny"


def role_group(contract: NodeContract) -> WorkerGroup | None:
    """The worker group a call of the node would be given."""
    if contract.role is None or contract.role.protocol is not Policy:
        return None
    return _group(contract.mutates)


def role_worker(contract: NodeContract) -> Any:
    """A worker for one run: its own if the node changes it, else one that is kept."""
    if role_group(contract) is None:
        return None
    make = _start if contract.mutates else _kept
    return make(contract.mutates, contract.needs == "rollout")


def _group(trains: bool) -> WorkerGroup:
    optimizer = adamw(lr=1e-3) if trains else None
    model = policy(_MODEL, optimizer=optimizer, precision="fp32")
    return WorkerGroup("contract", model, pool=ResourcePool("contract"))


def _start(trains: bool, rollout: bool) -> Any:
    from dagrl.workers.policy import PolicyWorker  # loads transformers, which most nodes do not need

    return PolicyWorker(_group(trains), total_steps=10, rollout=rollout)


_kept = lru_cache(maxsize=4)(_start)
