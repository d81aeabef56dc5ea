"""How the processes of a pool hold a model: whole in each, or a share in each."""

from typing import Literal

from dagrl.compiler.machine import Machine
from dagrl.graph.models import weight_bytes
from dagrl.graph.specs import WorkerGroup

#: A model is held whole by each process if what it needs in memory is at most this: 1 GiB.
REPLICATE_BYTES = 1 << 30
#: fp32 weight, gradient and AdamW's two moments.
TRAINED_BYTES = 16
FROZEN_BYTES = 4
#: No weight file stores less of a parameter, so its size bounds their number.
_STORED_BYTES = 2


def parallel_strategy(group: WorkerGroup, machine: Machine) -> Literal["none", "replicate", "fsdp"]:
    """What a group's processes do: nothing if there is one, else as the policy says or, of itself, by size.

    A model whose weights are not on this machine counts as large. A group that follows another has the weights of its
    engines alone, and none to share out.
    """
    if sum(machine.process_on_nodes_of(group.pool)) == 1:
        return "none"
    if group.follows is not None:
        return "replicate"
    if group.model.parallel != "auto":
        return group.model.parallel
    stored = weight_bytes(group.model.model)
    if stored is None:
        return "fsdp"
    each = FROZEN_BYTES if group.model.optimizer is None else TRAINED_BYTES
    return "replicate" if stored // _STORED_BYTES * each <= REPLICATE_BYTES else "fsdp"
