"""dagrl post-trains language models with reinforcement learning: every step is a typed, planned graph.

What a pipeline or plugin file needs is here; importing it loads no torch, no ray and no model.
"""

from dagrl.data.columns import Objects
from dagrl.data.metrics import Max, Mean, Metrics, Min, Sum
from dagrl.graph import (
    Edge,
    LossColumns,
    LossTerms,
    ModelSpec,
    Pipeline,
    Policy,
    ResourcePool,
    WorkerGroup,
    adamw,
    loss,
    node,
    policy,
)
from dagrl.graph.progress import Progress

__version__ = "0.1.0"

__all__ = [
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
    "Sum",
    "WorkerGroup",
    "__version__",
    "adamw",
    "loss",
    "node",
    "policy",
]
