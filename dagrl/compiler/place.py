"""Place pass: the pool whose processes run each call."""

from collections.abc import Sequence

from dagrl.graph.pipeline import Call

#: The pool of a pipeline that uses no model.
NO_MODEL = "cpu"


def place(calls: Sequence[Call]) -> dict[str, str]:
    """The pool of every call: that of its worker group, else that of its first input, where the data is.

    A source reads for the first call that runs on a model.
    """
    first = next((call.group.pool.name for call in calls if call.group is not None), NO_MODEL)
    pools: dict[str, str] = {}
    for call in calls:
        if call.group is not None:
            pools[call.name] = call.group.pool.name
        else:
            near = [pools[edge.call] for edge in call.inputs if edge.call in pools]
            pools[call.name] = near[0] if near else first
    return pools
