"""What several nodes refuse of their options and of their worker group."""

from importlib.util import find_spec
from math import inf

from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal


def below(call: CallView, option: str, least: int = 0) -> list[Refusal]:
    """Refuse a number that is less than ``least``."""
    value = call.options[option]
    return [(f"`{option}` is {value}", f"it must be at least {least}")] if value < least else []


def infinite(call: CallView, *names: str) -> list[Refusal]:
    """Refuse numbers that are infinite: times 0 they would be NaN, which reads as a row that cannot be scored."""
    given = {name: call.options[name] for name in names}
    return [(f"`{name}` is {value}", "it must be finite") for name, value in given.items() if abs(value) == inf]


def frozen_refusals(call: CallView, called: str) -> list[Refusal]:
    """Refuse to train a worker group that has no optimizer; ``called`` is what its model is: a policy, a critic."""
    group = call.group
    if group is None or group.model.optimizer is not None:
        return []
    return [(f"it trains `{group.name}`, whose {called} is frozen", "give it `optimizer=adamw(lr=...)`")]


def walk_refusals(call: CallView) -> list[Refusal]:
    """Refuse sizes, epochs and an aggregation that no update can walk its rows by."""
    options = call.options
    refusals = [*below(call, "mini_batch_size"), *below(call, "micro_batch_size"), *below(call, "epochs", 1)]
    if options["norm_length"] is not None:
        refusals += below(call, "norm_length", 1)
    if (options["loss_agg_mode"] == "seq-mean-token-sum-norm") != (options["norm_length"] is not None):
        what = "`norm_length` (tokens) goes with `loss_agg_mode='seq-mean-token-sum-norm'` and only with it"
        refusals.append((what, "give both or neither"))
    return refusals


def judge_refusals(call: CallView, *, module: str, package: str, extra: str) -> list[Refusal]:
    """Refuse scoring by a package that is not installed, or in no time."""
    refusals: list[Refusal] = []
    if find_spec(module) is None:
        refusals.append((f"the package {package} is not installed", f"`pip install 'dagrl[{extra}]'`"))
    if not 0 < call.options["time_limit"] < inf:
        refusals.append((f"`time_limit` is {call.options['time_limit']}", "it is a number of seconds above 0"))
    return refusals
