"""The model behind a role: a worker of the packaged tiny model, in fp32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dagrl.graph.contract import NodeContract
from dagrl.graph.roles import Critic, Policy, RewardModel
from dagrl.graph.specs import ModelSpec, ResourcePool, WorkerGroup, adamw, critic, policy, reward_model

_MODEL = "zoo:tiny"


def role_group(contract: NodeContract) -> WorkerGroup | None:
    """The worker group a call of the node would be given."""
    return None if contract.role is None else _group(contract.role.protocol, contract.mutates)


def role_worker(contract: NodeContract) -> Any:
    """A worker for one run: its own if the node changes it, else one that is kept."""
    if contract.role is None:
        return None
    make = _start if contract.mutates else _kept
    return make(contract.role.protocol, contract.mutates, contract.needs == "rollout")


def _group(role: type, trains: bool, model: str = _MODEL) -> WorkerGroup:
    return WorkerGroup("contract", _SPECS[role](model, trains), pool=ResourcePool("contract"))


def _policy(model: str, trains: bool) -> ModelSpec:
    return policy(model, optimizer=adamw(lr=1e-3) if trains else None, precision="fp32")


def _critic(model: str, trains: bool) -> ModelSpec:
    return critic(model, optimizer=adamw(lr=1e-3) if trains else None, precision="fp32")


def _reward_model(model: str, trains: bool) -> ModelSpec:
    return reward_model(model, precision="fp32")


_SPECS: Mapping[type, Callable[[str, bool], ModelSpec]] = {
    Policy: _policy,
    Critic: _critic,
    RewardModel: _reward_model,
}


def _start(role: type, trains: bool, rollout: bool) -> Any:
    from dagrl.engines.parallel import SINGLE  # loads torch and transformers, which most nodes do not need
    from dagrl.workers.critic import with_random_head
    from dagrl.workers.model_worker import make_worker

    if role is Policy:
        return make_worker(_group(role, trains), total_steps=10, rollout=rollout, parallel=SINGLE)
    with TemporaryDirectory() as folder:  # a new head gives 0 for whatever tokens, which hides what is wrong with them
        model = str(Path(folder, "model"))
        with_random_head(_group(Critic, trains=False)).save(Path(model))
        return make_worker(_group(role, trains, model), total_steps=10, rollout=rollout, parallel=SINGLE)


_kept = lru_cache(maxsize=4)(_start)
