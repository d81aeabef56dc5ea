"""The Ray executor: the ranks of every pool are actors, on this machine or on a cluster."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import Any

import ray

from dagrl.controller.decorator import Dispatch, register
from dagrl.controller.future import CallFuture
from dagrl.controller.machines import join_ray, ray_machine
from dagrl.controller.ray_crew import RayClassWithInitArgs
from dagrl.controller.ray_group import RayWorkerGroup
from dagrl.controller.ray_pool import RayResourcePool
from dagrl.controller.session import start_ray
from dagrl.controller.shipping import ship_user_modules
from dagrl.engines.weight_buckets import ArrivedWeights, Bucket, Published
from dagrl.errors import DagrlError, NodeError, UserError, WorkerError, WorkerTimeoutError
from dagrl.executor.base import NODE_DEADLINE, Executor
from dagrl.executor.process_sets import Pending, RankProgress
from dagrl.executor.ray_progress import ProgressBoard
from dagrl.workers.deployment import Deployment, Planned
from dagrl.workers.frames import Shard
from dagrl.workers.host import NodeHost
from dagrl.workers.node_task import NodeReport, NodeTask

#: How long the actors may take to end what nodes have started in them.
CLOSE_SECONDS = 3.0
#: Characters of what a node prints on a rank that reach the driver.
MAX_PRINTED = 10_000


class RayNodeHost(NodeHost):
    """A host whose shards travel through Ray's object store, and what its nodes print with their reports."""

    def __init__(self, deployment: Deployment, *, pools: Sequence[str]) -> None:
        super().__init__(deployment, pools=pools)
        self._board = ProgressBoard("+".join(pools))
        self.on_progress = self._note_progress

    def _note_progress(self, task: NodeTask, done: int, total: int, unit: str) -> None:
        self._board.write(RankProgress(task.pipeline, task.step, task.op, self.rank, done, total, unit))

    @register(Dispatch.ALL_TO_ALL, blocking=False)
    def run_node(self, task: NodeTask | None) -> NodeReport | None:
        """As in any host; of what a node prints, and logs where nobody has set logging up, the end is kept."""
        with io.StringIO() as console, redirect_stdout(console), redirect_stderr(console):
            try:
                report = super().run_node(task)
            except Exception as error:
                if console.tell():
                    error.add_note(f"before that it printed:\n{_end_of(console)}")
                raise
            return None if report is None else replace(report, printed=_end_of(console))

    def put(self, shard: Shard | Bucket) -> Any:
        """A reference to the shard or bucket; the executor never sees what is in it."""
        return ray.put(shard)

    def arrived_weights(self, handle: Any) -> ArrivedWeights:
        """The weights behind the references that another process has returned; one bucket is mapped at a time."""
        published: Published = ray.get(handle)  # pyright: ignore[reportAssignmentType] - it is one reference
        return ArrivedWeights(published.layout, (ray.get(reference) for reference in published.buckets))

    def get(self, handle: Any, part: int) -> Shard:
        """The shard behind the reference that another process has returned."""
        return ray.get(ray.get(handle)[part])


def _end_of(console: io.StringIO) -> str:
    return console.getvalue()[-MAX_PRINTED:]


class _Call:
    """A call on the actors of a set."""

    def __init__(self, future: CallFuture) -> None:
        self._future = future

    @property
    def handles(self) -> Sequence[Any]:
        """The references of what the ranks return."""
        return self._future.refs

    def is_over(self) -> bool:
        """Whether all ranks have returned or one has failed."""
        try:
            return self._future.poll()
        except WorkerError:
            return True

    def expire(self, seconds: float) -> DagrlError:
        """End the set; the error names a rank that has not returned."""
        try:
            self._future.get(deadline=0)
        except WorkerTimeoutError as error:
            late = f"it has run for {seconds:g} s, longer than one may (`--node-timeout`)"
            return NodeError(f"{late}: {error.where()} has not returned")
        except WorkerError as error:
            return _as_raised(error)
        return NodeError(f"it has taken {seconds:g} s, longer than one may (`--node-timeout`)")

    def results(self) -> list[Any]:
        """What each rank returned."""
        try:
            return self._future.get()
        except WorkerError as error:
            raise _as_raised(error) from None


class RaySet:
    """The actors of one pool."""

    def __init__(self, name: str, group: RayWorkerGroup, pool: RayResourcePool) -> None:
        self.name = name
        self.group = group
        self._pool = pool
        self._board = ProgressBoard(name)

    @property
    def size(self) -> int:
        """Its ranks."""
        return self.group.world_size

    def call(self, method: str, arguments: Sequence[Sequence[Any]]) -> _Call:
        """Call a method of every rank's host with that rank's arguments."""
        by_place = [list(values) for values in zip(*arguments, strict=True)]
        return _Call(getattr(self.group, method)(*by_place))

    def first_done(self, pending: Sequence[Pending], seconds: float) -> Pending | None:
        """One of the calls that is over; None when the time is."""
        calls = [call for call in pending if isinstance(call, _Call)]
        end = time.monotonic() + seconds
        while True:
            over = next((call for call in calls if call.is_over()), None)
            left = end - time.monotonic()
            if over is not None or left <= 0:
                return over
            refs = [ref for call in calls for ref in call.handles]
            done, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
            ray.wait(refs, num_returns=min(len(done) + 1, len(refs)), timeout=left, fetch_local=False)

    def progress(self) -> Sequence[RankProgress]:
        """What ranks have said since the last time."""
        return self._board.read(self.size)

    def close(self) -> None:
        """End what the nodes have started, if the actors still answer, and then the actors."""
        if self.group.standing:
            self.first_done([self.call("close", [()] * self.size)], CLOSE_SECONDS)
            self._board.clear()
        self.group.kill()
        self._pool.release()


class RayExecutor(Executor):
    """Starts one actor for each process of every pool; groups of one pool share its processes."""

    def __init__(
        self,
        planned: Sequence[Planned],
        *,
        seed: int,
        total_steps: int,
        deadline: float = NODE_DEADLINE,
    ) -> None:
        ship_user_modules()
        deployment = Deployment(tuple(planned), seed, total_steps)
        sizes = {pool.name: pool.process_on_nodes for one in planned for pool in one.plan.pools}
        sets: dict[str, RaySet] = {}
        try:
            for name, process_on_nodes in sizes.items():
                sets[name] = _start(name, process_on_nodes, deployment)
        except WorkerError as error:
            _close(sets.values())
            raise _as_raised(error) from None
        except BaseException:
            _close(sets.values())
            raise
        super().__init__(planned, sets, seed=seed, deadline=deadline)


def _start(name: str, process_on_nodes: Sequence[int], deployment: Deployment) -> RaySet:
    pool = RayResourcePool(process_on_nodes, use_gpu=bool(ray.cluster_resources().get("GPU")), name_prefix=name)
    maker = RayClassWithInitArgs(RayNodeHost, deployment, pools=(name,))
    return RaySet(name, RayWorkerGroup(pool, maker, name_prefix=name), pool)


def _close(sets: Any) -> None:
    for each in sets:
        each.close()


def _as_raised(error: WorkerError) -> DagrlError:
    """A mistake of the user's or a failure that dagrl names, as it was raised on the rank; else what the group says."""
    original = error.original
    if not isinstance(original, DagrlError):
        return error
    if not isinstance(original, UserError):
        original.add_note(f"on rank {error.rank} of {error.group}, node {error.node_ip}")
    return original


class RayRuntime:
    """Where a run's executor comes from: a Ray that is started here when it is needed, or the cluster at ``address``.

    ``deadline`` is the seconds that an op may take.

    Raises:
        ClusterError: when nothing answers at the address, or at RAY_ADDRESS where that is set.
    """

    def __init__(self, address: str | None = None, *, deadline: float = NODE_DEADLINE) -> None:
        self._deadline = deadline
        self._session = join_ray(address)
        self.machine = ray_machine(self._session)

    def start(self, planned: Sequence[Planned], *, seed: int, total_steps: int) -> RayExecutor:
        """The executor of the plans, its processes started."""
        if self._session is None:
            self._session = start_ray(num_cpus=self.machine.limit)
        return RayExecutor(planned, seed=seed, total_steps=total_steps, deadline=self._deadline)

    def close(self) -> None:
        """Leave the cluster, or end the Ray that was started."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> RayRuntime:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
