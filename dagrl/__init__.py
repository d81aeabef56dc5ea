"""dagrl post-trains language models with reinforcement learning: every step is a typed, planned graph.

What a pipeline or plugin file needs is here, loaded when it is first asked for: no torch, no ray and no model.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagrl.data.columns import Objects
    from dagrl.data.metrics import Max, Mean, Metrics, Min, Sum
    from dagrl.graph import (
        Critic,
        Edge,
        LossColumns,
        LossTerms,
        ModelSpec,
        Pipeline,
        Policy,
        ResourcePool,
        RewardModel,
        RolloutSpec,
        WorkerGroup,
        adamw,
        critic,
        loss,
        node,
        policy,
        refill,
        reward_model,
        server,
        vllm,
    )
    from dagrl.graph.progress import Progress

__version__ = "0.1.0"

_HOMES = {
    "data.columns": ("Objects",),
    "data.metrics": ("Max", "Mean", "Metrics", "Min", "Sum"),
    "graph": (
        "Critic", "Edge", "LossColumns", "LossTerms", "ModelSpec", "Pipeline", "Policy", "ResourcePool", "RewardModel",
        "RolloutSpec", "WorkerGroup", "adamw", "critic", "loss", "node", "policy", "refill", "reward_model",
        "server", "vllm",
    ),
    "graph.progress": ("Progress",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Critic",
    "Edge",
    "LossColumns",
    "LossTerms",
    "Max",
    "Mean",
    "Metrics",
    "Min",
    "ModelSpec",
    "Objects",
    "Pipeline",
    "Policy",
    "Progress",
    "ResourcePool",
    "RewardModel",
    "RolloutSpec",
    "Sum",
    "WorkerGroup",
    "__version__",
    "adamw",
    "critic",
    "loss",
    "node",
    "policy",
    "refill",
    "reward_model",
    "server",
    "vllm",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    value = vars(import_module(f"{__name__}.{_HOME_OF[name]}"))[name]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
