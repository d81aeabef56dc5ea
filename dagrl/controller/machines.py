"""What machine a plan for Ray is made for: this one, or the cluster that is joined."""

from __future__ import annotations

import os
import sys

from dagrl.compiler.machine import Machine
from dagrl.controller.session import RaySession, start_ray

#: Processes for each core that a machine without GPU takes: more would only wait for each other.
PROCESSES_PER_CORE = 2


def this_machine() -> Machine:
    """What a Ray that is started here can run: a process for each GPU, or else for each core."""
    import torch

    gpus = torch.cuda.device_count()
    if gpus:
        return Machine("ray", (gpus,), gpus, gpus=True)
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return Machine("ray", (cores,), PROCESSES_PER_CORE * cores)


def join_ray(address: str | None) -> RaySession | None:
    """Join the cluster at ``address``, or else at RAY_ADDRESS, or the one that this process is in; None without any."""
    if address or os.environ.get("RAY_ADDRESS"):
        return start_ray(address)
    if "ray" not in sys.modules:
        return None
    import ray

    return start_ray() if ray.is_initialized() else None


def ray_machine(session: RaySession | None) -> Machine:
    """The machine of a run: the cluster that is joined, this one where there is none."""
    return this_machine() if session is None else cluster_machine()


def cluster_machine() -> Machine:
    """What the cluster that this process has joined can run, by node: a process for each GPU, or else for each CPU."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    kind = "GPU" if any(node.get("GPU") for node in nodes) else "CPU"
    counts = tuple(int(node[kind]) for node in nodes if node.get(kind, 0) >= 1)
    return Machine("ray", counts, sum(counts), gpus=kind == "GPU")
