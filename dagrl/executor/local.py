"""The in-process executor: one rank, this process, without Ray."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence

from dagrl.compiler import LOCAL
from dagrl.controller.naive_group import NaiveWorkerGroup
from dagrl.controller.resource_pool import ResourcePool
from dagrl.controller.worker_group import ClassWithInitArgs
from dagrl.errors import DagrlError, WorkerError
from dagrl.executor.base import NODE_DEADLINE, Executor
from dagrl.executor.events import OpProgressed
from dagrl.executor.layout import SourceRows
from dagrl.executor.process_sets import InProcessSet
from dagrl.workers.deployment import Deployment, Planned
from dagrl.workers.host import NodeHost
from dagrl.workers.node_task import NodeTask

__all__ = ["LocalExecutor", "Planned", "SourceRows"]


class LocalExecutor(Executor):
    """Runs every op here; all pools are this process. It is closed too when it is collected, and at exit."""

    def __init__(self, planned: Sequence[Planned], *, seed: int, total_steps: int) -> None:
        deployment = Deployment(tuple(planned), seed, total_steps)
        for group in deployment.groups().values():
            if group.pool.num_processes > 1:
                asked = f"pool `{group.pool.name}` asks for {group.pool.num_processes}"
                raise DagrlError(f"the local executor runs one process, {asked}: use `--executor ray`")
        maker = ClassWithInitArgs(NodeHost, deployment, pools=deployment.pools())
        group = _started(maker)
        here = InProcessSet(group)
        self.host: NodeHost = group.workers[0]
        super().__init__(planned, dict.fromkeys(deployment.pools(), here), seed=seed, deadline=NODE_DEADLINE)
        told = weakref.WeakMethod(self._progressed)  # the host outlives the executor, which it must not keep alive

        def tell(task: NodeTask, done: int, total: int, unit: str) -> None:
            method = told()
            if method is not None:
                method(task, done, total, unit)

        self.host.on_progress = tell
        self._end = weakref.finalize(self, self.host.close)

    def _progressed(self, task: NodeTask, done: int, total: int, unit: str) -> None:
        self.emit(OpProgressed(time.time(), task.pipeline, task.step, task.op, 0, done, total, unit))

    def close(self) -> None:
        """End the processes that nodes have started."""
        self._end()


def _started(maker: ClassWithInitArgs) -> NaiveWorkerGroup:
    """The group of one host; what its construction raises is raised as it was."""
    try:
        return NaiveWorkerGroup(ResourcePool([1]), maker, name_prefix="here")
    except WorkerError as error:
        failure = error
    raise failure.original or failure


class LocalRuntime:
    """Where a run's executor comes from when it runs in this process."""

    machine = LOCAL

    def start(self, planned: Sequence[Planned], *, seed: int, total_steps: int) -> LocalExecutor:
        """The executor of the plans, its models loaded."""
        return LocalExecutor(planned, seed=seed, total_steps=total_steps)

    def close(self) -> None:
        """Nothing is left to end."""


#: The one that a run has unless it is given another.
LOCAL_RUNTIME = LocalRuntime()
