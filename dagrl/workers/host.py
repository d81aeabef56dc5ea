"""The process that runs nodes: it holds the models of the worker groups on one pool and the columns made here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int32, Int64
from torch import Tensor
from torch.profiler import record_function

from dagrl.compiler.plan import Action, RunOp
from dagrl.controller.decorator import Dispatch, register
from dagrl.controller.worker import Worker
from dagrl.data.reported import RankMemory, Sample
from dagrl.engines.parallel import DataParallel, start_process_group
from dagrl.engines.profiler import DistProfiler
from dagrl.engines.residence import MODEL
from dagrl.engines.weight_buckets import ArrivedWeights, Bucket, Published, packed
from dagrl.errors import DagrlError, NodeError
from dagrl.graph.pipeline import Call
from dagrl.graph.progress import progress_heard
from dagrl.graph.roles import Canary
from dagrl.ops.random import hash_ids, key_of
from dagrl.rewards.pool import close_pools
from dagrl.storage.checkpoints import PartRecord
from dagrl.storage.folder import Folder, write_folder
from dagrl.workers.column_metrics import column_metrics
from dagrl.workers.deployment import Deployment
from dagrl.workers.frames import Frames, Rows, Shard
from dagrl.workers.memory import held_bytes
from dagrl.workers.model_worker import make_worker
from dagrl.workers.node_runner import Columns, NodeInputs, NodeOutput, run_node
from dagrl.workers.node_task import NodeReport, NodeTask
from dagrl.workers.policy import PolicyWorker
from dagrl.workers.progress import Throttled
from dagrl.workers.samples import SampleKeeper
from dagrl.workers.state_parts import OpenPart, load_process, save_process

#: How long a rank waits for another in a collective. The executor ends a stuck op before, with a better message.
COLLECTIVE_SECONDS = 24 * 3600.0


class NodeHost(Worker):
    """Holds the worker groups of some pools, and runs the nodes of a deployment on them and on what is here.

    Ranks join one process group where a group that trains or is shared out lives on several. Every method takes from
    the worker group one argument for each rank, as the executor has laid out.
    """

    def __init__(self, deployment: Deployment, *, pools: Sequence[str]) -> None:
        super().__init__()
        self._pools = tuple(pools)
        self._groups = deployment.groups()
        groups = {name: group for name, group in self._groups.items() if group.pool.name in pools}
        if groups:
            address, port = self.get_master_addr_port()
            start_process_group(self.rank, self.world_size, address, int(port), COLLECTIVE_SECONDS)
        self._seed = deployment.seed
        self._planned = {one.pipeline.name: one for one in deployment.planned}
        self._ops = {(one.pipeline.name, op.id): op for one in deployment.planned for op in one.plan.runs}
        self._loops = {(one.pipeline.name, op.id): op for one in deployment.planned for op in one.plan.loops}
        self._frames: dict[str, Frames] = {}
        self._profiler = DistProfiler()
        self._samples: dict[str, SampleKeeper] = {}
        #: Told now and then how far a task is: how much of how much is done, and in what unit.
        self.on_progress: Callable[[NodeTask, int, int, str], None] | None = None
        self.models = {
            name: make_worker(
                group,
                total_steps=deployment.total_steps,
                rollout=deployment.generates(name),
                parallel=DataParallel(self.rank, self.world_size, deployment.strategy(name)),
                seed=deployment.seed,
            )
            for name, group in groups.items()
        }

    @register(Dispatch.ALL_TO_ALL, blocking=False)
    def run_node(self, task: NodeTask | None) -> NodeReport | None:
        """Run the task's node and keep what it writes; None takes no part."""
        if task is None:
            return None
        started, cpu = time.perf_counter(), time.process_time()
        op = self._ops[task.pipeline, task.op]
        call = self._planned[task.pipeline].pipeline.call(op.call)
        frames = self.frames(task.pipeline)
        if task.group_ids is not None:
            rows = source_rows(task.group_ids, call.options["n"])
        else:
            rows = frames.rows_of(op) if task.rows is None else task.rows
        columns, widths = frames.gather(op.reads, rows, self._arrived(task.arrivals))
        inputs = NodeInputs(
            columns=columns,
            widths=widths,
            group_ids=rows.group_ids.clone(),
            # one for each run, pipeline, step, call, prompt and sample: `source_rows` numbers the last two
            seeds=hash_ids(key_of(self._seed, task.pipeline, task.step, op.call), rows.row_ids),
            positions=None if task.positions is None else task.positions.repeat_interleave(call.options["n"]),
            wanted=frozenset(op.writes),
            aliases=op.aliases,
            step=task.step,
            state=task.state,
            canary=_canary(op),
        )
        output = self._call(call, inputs, task)
        passed = rows if output.flags is None else rows.keep(rows.row_ids[output.flags])
        kept = {name: column for name, column in output.columns.items() if name in op.writes}
        frames.put(op.call, passed, output.widths, kept)
        return NodeReport(
            num_rows=len(rows),
            metrics=output.metrics,
            statistics=column_metrics(output.columns),
            state=output.state,
            seconds=time.perf_counter() - started,
            cpu_seconds=time.process_time() - cpu,
            bytes=sum(column.nbytes for column in kept.values() if isinstance(column, Tensor)),
            kept=None if output.flags is None else passed.row_ids,
            num_tokens=_num_tokens(output.columns),
            response_tokens=_response_tokens(output.columns),
            samples=self._sampled(task.pipeline, rows, columns, output.columns),
            held=self._held(),
        )

    def _sampled(self, pipeline: str, rows: Rows, read: Columns, written: Columns) -> tuple[Sample, ...]:
        """What is to be shown of a node that scores; its texts may have been written by other processes."""
        if self.rank != 0:
            return ()
        keeper = self._samples.setdefault(pipeline, SampleKeeper())
        if "rewards" in written:
            keeper.look(rows, {name: column for name, column in read.items() if name != "rewards"})
        return keeper.look(rows, written)

    def _held(self) -> RankMemory:
        models = self.models.values()
        weights, optimizer = sum(one.weight_bytes for one in models), sum(one.optimizer_bytes for one in models)
        return held_bytes(weights, optimizer, sum(frames.num_bytes for frames in self._frames.values()))

    def frames(self, pipeline: str) -> Frames:
        """The columns of a pipeline's present walk."""
        if pipeline not in self._frames:
            self._frames[pipeline] = Frames(self._planned[pipeline].pipeline)
        return self._frames[pipeline]

    @register(Dispatch.ALL_TO_ALL, blocking=False)
    def end_walk(self, pipeline: str) -> None:
        """Let go of every column of the pipeline."""
        self._frames.pop(pipeline, None)
        self._samples.pop(pipeline, None)

    @register(Dispatch.ALL_TO_ALL, blocking=False)
    def publish(
        self, pipeline: str, call: str, columns: Sequence[str], parts: Sequence[Int64[Tensor, " K"] | None]
    ) -> list[Any]:
        """Make some rows and columns of a call ready for other processes; a handle for each part."""
        frames = self.frames(pipeline)
        return [None if ids is None else self.put(frames.cut(call, columns, ids)) for ids in parts]

    @register(Dispatch.ALL_TO_ALL, blocking=False)
    def free(self, pipeline: str, columns: Sequence[str]) -> int:
        """Let go of columns, given as ``call.column``; the bytes of those that were here."""
        return self.frames(pipeline).free(columns)

    @register(Dispatch.ALL_TO_ALL, blocking=False)
    def end_round(self, pipeline: str, loop: str, passed: Int64[Tensor, " K"]) -> None:
        """Keep of a round of the loop the rows that have passed its filters."""
        self.frames(pipeline).end_round(self._loops[pipeline, loop], passed)
        self._samples.pop(pipeline, None)  # the next round shows rows of its own

    @register(Dispatch.ALL_TO_ALL, blocking=False)
    def end_loop(self, pipeline: str, loop: str, kept: Int64[Tensor, " K"]) -> None:
        """Have these rows of all rounds stand as what the loop has written."""
        self.frames(pipeline).end_loop(self._loops[pipeline, loop], kept)

    @register(Dispatch.ALL_TO_ALL, blocking=False)
    def sync_rollout(self, group: str) -> None:
        """Bring the rollout weights of a group to the trained ones."""
        self._policy(group).sync_rollout()

    @register(Dispatch.ALL_TO_ALL, blocking=False)
    def switch_phase(self, group: str, action: Action, level: int) -> None:
        """Have the rollout engine of a group sleep or wake."""
        self.models[group].phase(action, level)

    @register(Dispatch.ALL_TO_ALL, blocking=False)
    def sync_follower(self, source: str, group: str) -> None:
        """Bring the rollout weights of a group to the trained ones of another that is here too."""
        follower, worker = self._policy(group), self._policy(source)
        with worker.residence.present(MODEL):  # no plan brings them before the first sync
            spec = follower.group.model  # engines in this process cast as they copy
            follower.load_rollout(worker.trained_weights(spec.precision, casts=spec.rollout.engine == "server"))

    @register(Dispatch.ALL_TO_ALL, blocking=False)
    def publish_weights(self, source: str, group: str) -> Published | None:
        """Make the trained weights of a group ready for those that follow it, on rank 0.

        They travel in the precision of the group that is to generate from them. Until it has them the object store,
        in the host's memory, holds one copy of all.
        """
        worker, precision = self._policy(source), self._groups[group].model.precision
        if self.rank != 0 and not worker.parallel.sharded:
            return None
        with worker.residence.present(MODEL):
            weights = worker.trained_weights(precision)
            if self.rank == 0:
                return Published(weights.layout, [self.put(bucket) for bucket in packed(weights)])
            for _ in weights:  # shares come together only where all ranks walk along
                pass
        return None

    @register(Dispatch.ALL_TO_ALL, blocking=False)
    def receive_weights(self, group: str, published: tuple[Any]) -> None:
        """Bring the rollout weights of a group to those that the rank behind a handle has published."""
        self._policy(group).load_rollout(self.arrived_weights(published[0]))

    def _policy(self, group: str) -> PolicyWorker:
        worker = self.models[group]
        if not isinstance(worker, PolicyWorker):
            raise DagrlError(f"worker group `{group}` is no policy: it has no weights to generate from")
        return worker

    @register(Dispatch.ALL_TO_ALL, blocking=False)
    def start_profile(self) -> None:
        """Begin a trace of this process."""
        self._profiler.start()

    @register(Dispatch.ALL_TO_ALL, blocking=False)
    def stop_profile(self, folder_url: str) -> None:
        """End the trace, and write it as this process's file in the folder."""
        Folder(folder_url).write(f"{self._name()}.json.gz", self._profiler.stop())

    @register(Dispatch.ALL_TO_ALL, blocking=False)
    def export(self, group: str, url: str) -> None:
        """Write the model of a group in Hugging Face format."""
        write_folder(url, self.models[group].save)

    @register(Dispatch.ALL_TO_ALL, blocking=False)
    def close(self) -> None:
        """End the processes that nodes have started."""
        close_pools()

    @register(Dispatch.ALL_TO_ALL, blocking=False)
    def save_state(self, folder_url: str) -> list[PartRecord]:
        """Write what a resumed run needs of this process."""
        return save_process(folder_url, self.models, self.rank, self._name())

    @register(Dispatch.ALL_TO_ALL, blocking=False)
    def load_state(self, open_part: OpenPart, names: Sequence[str]) -> None:
        """Bring this process to what was saved."""
        load_process(open_part, names, self.models, self._name())

    def _name(self) -> str:
        return f"{'+'.join(self._pools)}-{self.rank:05d}"

    def put(self, shard: Shard | Bucket) -> Any:
        """A handle by which another process gets the shard, or the bucket of weights."""
        return shard

    def arrived_weights(self, handle: Any) -> ArrivedWeights:
        """The weights that another process has published; their buckets are fetched one after the other."""
        return ArrivedWeights(handle.layout, handle.buckets)

    def get(self, handle: Any, part: int) -> Shard:
        """The shard that another process has published as its part."""
        return handle[part]

    def _arrived(self, arrivals: Mapping[str, Sequence[tuple[Any, int]]]) -> dict[str, list[Shard]]:
        return {call: [self.get(*handle) for handle in handles] for call, handles in arrivals.items()}

    def _call(self, call: Call, inputs: NodeInputs, task: NodeTask) -> NodeOutput:
        def tell(done: int, total: int, unit: str) -> None:
            if self.on_progress is not None:
                self.on_progress(task, done, total, unit)

        try:
            with progress_heard(Throttled(tell)), record_function(task.op):
                return run_node(call, inputs, self.models[call.group.name] if call.group is not None else None)
        except SystemExit as error:
            raise NodeError(f"sys.exit({error.code!r}) was called: raise an error instead") from error


def _canary(op: RunOp) -> Canary | None:
    if op.canary is None or op.group is None:
        return None
    return Canary(group=op.group, rollout=op.canary.rollout, tolerance=op.canary.tolerance)


def source_rows(group_ids: Int64[Tensor, " M"], n: int) -> Rows:
    """The rows of prompts with these numbers, ``n`` of each; a row's id names its prompt and its sample."""
    groups = group_ids.repeat_interleave(n)
    return Rows(groups * n + torch.arange(n).repeat(len(group_ids)), groups)


def _num_tokens(columns: Columns) -> Int32[Tensor, " B"] | None:
    mask = columns.get("attention_mask")
    return mask.sum(1, dtype=torch.int32) if isinstance(mask, Tensor) else None


def _response_tokens(columns: Columns) -> int:
    mask = columns.get("response_mask")
    return int(mask.sum()) if isinstance(mask, Tensor) else 0
