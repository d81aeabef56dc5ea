"""`@register`: how a method of a worker is called from the controller, and the dispatch modes it may name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from dagrl.controller import dispatch
from dagrl.controller.shares import IN_ORDER, Rule, Weigh
from dagrl.controller.split_dispatch import CollectBatches, SplitDispatch, collect_each
from dagrl.errors import DispatchError

if TYPE_CHECKING:
    from dagrl.controller.worker_group import WorkerGroup

#: ``dispatch_fn(group, *args, **kwargs)`` returns args and kwargs, each value a list with one item for every rank.
DispatchFn = Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]
#: ``collect_fn(group, outputs)`` makes the call's result of what the ranks returned, in rank order.
CollectFn = Callable[["WorkerGroup", list[Any]], Any]
_Method = TypeVar("_Method", bound=Callable[..., Any])
_KEY = "dagrl_registration"


@dataclass(frozen=True)
class Dispatch:
    """A dispatch mode: how arguments reach the ranks and results come back; `register_dispatch_mode` adds more."""

    name: str

    #: Rank 0 alone is called; its result is the call's.
    RANK_ZERO: ClassVar["Dispatch"]
    #: The same arguments for every rank; a list of results.
    ONE_TO_ALL: ClassVar["Dispatch"]
    #: Every argument is a list with one item for each rank; a list of results.
    ALL_TO_ALL: ClassVar["Dispatch"]
    #: As ALL_TO_ALL.
    DP_COMPUTE: ClassVar["Dispatch"]
    #: Batches are split over the ranks and other arguments repeated; the results are concatenated without padding.
    DP_COMPUTE_PROTO: ClassVar["Dispatch"]
    #: As DP_COMPUTE_PROTO, after a first argument that is a function for every rank.
    DP_COMPUTE_PROTO_WITH_FUNC: ClassVar["Dispatch"]
    #: Batches are split over the ranks without padding, so one may be empty; a list of results.
    DP_COMPUTE_METRIC: ClassVar["Dispatch"]
    #: Nothing is dispatched: one rank at a time, in turns, gets the arguments as they are; its result is the call's.
    DIRECT_ROLLOUT_METHOD: ClassVar["Dispatch"]

    def __repr__(self) -> str:
        return f"Dispatch.{self.name}"


class Execute(Enum):
    """Which ranks run a call."""

    ALL = 0
    RANK_ZERO = 1


@dataclass(frozen=True)
class Mode:
    """The two functions of a dispatch mode, and whether one rank alone runs: rank 0, or each in turn."""

    dispatch_fn: DispatchFn
    collect_fn: CollectFn
    rank_zero: bool = False
    in_turns: bool = False


DispatchLike = Dispatch | Mapping[str, Callable[..., Any]] | tuple[Callable[..., Any], Callable[..., Any]]

_MODES = {
    "RANK_ZERO": Mode(dispatch.dispatch_unchanged, dispatch.collect_first, rank_zero=True),
    "ONE_TO_ALL": Mode(dispatch.dispatch_one_to_all, dispatch.collect_all),
    "ALL_TO_ALL": Mode(dispatch.dispatch_all_to_all, dispatch.collect_all),
    "DP_COMPUTE": Mode(dispatch.dispatch_all_to_all, dispatch.collect_all),
    "DP_COMPUTE_PROTO": Mode(SplitDispatch(), CollectBatches()),
    "DP_COMPUTE_PROTO_WITH_FUNC": Mode(SplitDispatch(with_func=True), CollectBatches()),
    "DP_COMPUTE_METRIC": Mode(SplitDispatch(padded=False), collect_each),
    "DIRECT_ROLLOUT_METHOD": Mode(dispatch.dispatch_unchanged, dispatch.collect_first, in_turns=True),
}
for _name in _MODES:
    setattr(Dispatch, _name, Dispatch(_name))
#: With rank 0 alone as the receiver, these give it the arguments as they are.
_PER_RANK = (Dispatch.ONE_TO_ALL, Dispatch.ALL_TO_ALL, Dispatch.DP_COMPUTE)


@dataclass(frozen=True)
class Registration:
    """What `@register` says of a method."""

    dispatch_mode: DispatchLike
    execute_mode: Execute
    blocking: bool
    materialize_futures: bool
    rule: Rule = IN_ORDER

    def mode(self) -> Mode:
        """The functions that dispatch and collect a call."""
        functions = _functions_of(self.dispatch_mode)
        if isinstance(functions.dispatch_fn, SplitDispatch):
            split = replace(functions.dispatch_fn, rule=self.rule, materialize=self.materialize_futures)
            functions = replace(functions, dispatch_fn=split)
        elif not self.rule.keeps_order:
            raise DispatchError(f"{self.dispatch_mode} splits no batch: leave `group_by` and `balance` out")
        if self.execute_mode is Execute.ALL or functions.rank_zero:
            return functions
        if isinstance(functions.dispatch_fn, SplitDispatch):
            raise DispatchError(f"{self.dispatch_mode} splits a call over all ranks: it cannot run on rank 0 alone")
        if self.dispatch_mode in _PER_RANK:
            return _named(Dispatch.RANK_ZERO)
        return Mode(functions.dispatch_fn, functions.collect_fn, rank_zero=True)


def register(
    dispatch_mode: DispatchLike = Dispatch.ALL_TO_ALL,
    execute_mode: Execute = Execute.ALL,
    blocking: bool = True,
    materialize_futures: bool = True,
    *,
    group_by: str | None = None,
    balance: Weigh | None = None,
) -> Callable[[_Method], _Method]:
    """Make a method, sync or async, callable on the worker group.

    ``dispatch_mode`` is a `Dispatch`, a ``{"dispatch_fn", "collect_fn"}`` dict or a ``(dispatch_fn, collect_fn)``
    pair. With ``blocking=False`` a call returns a future at once. Futures among the arguments arrive as their
    values unless ``materialize_futures`` is false.

    A mode that splits batches keeps rows equal in the column ``group_by`` on one rank, and with ``balance``, such as
    `token_work`, gives the ranks rows of nearly equal weight; results come back in the batch's order all the same.

    Raises:
        DispatchError: when ``dispatch_mode`` or ``execute_mode`` is none, or the mode splits nothing.
    """
    if not isinstance(execute_mode, Execute):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DispatchError(f"execute_mode={execute_mode!r} is none: use `Execute.ALL` or `Execute.RANK_ZERO`")
    registration = Registration(dispatch_mode, execute_mode, blocking, materialize_futures, Rule(group_by, balance))
    registration.mode()

    def mark(method: _Method) -> _Method:
        return marked(method, registration)

    return mark


def marked(method: _Method, registration: Registration | None) -> _Method:
    """The method, called as the registration says."""
    if registration is not None:
        method.__dict__[_KEY] = registration
    return method


def registration_of(function: FunctionType) -> Registration | None:
    """What `@register` said of the function, None where it said nothing."""
    return function.__dict__.get(_KEY)


def register_dispatch_mode(
    dispatch_mode_name: str, dispatch_fn: Callable[..., Any], collect_fn: Callable[..., Any]
) -> Dispatch:
    """Add a dispatch mode; it is returned, and `Dispatch` has it under the name in capitals.

    Raises:
        DispatchError: when there is one of that name.
    """
    name = dispatch_mode_name.upper()
    if name in _MODES:
        raise DispatchError(f"there is a dispatch mode `{name}` already: `update_dispatch_mode` changes it")
    _MODES[name] = Mode(dispatch_fn, collect_fn)
    mode = Dispatch(name)
    setattr(Dispatch, name, mode)
    return mode


def update_dispatch_mode(
    dispatch_mode: Dispatch, dispatch_fn: Callable[..., Any], collect_fn: Callable[..., Any]
) -> None:
    """Change the functions of a dispatch mode, also for the methods that name it already."""
    _MODES[dispatch_mode.name] = replace(_named(dispatch_mode), dispatch_fn=dispatch_fn, collect_fn=collect_fn)


def get_predefined_dispatch_fn(dispatch_mode: Dispatch) -> dict[str, Callable[..., Any]]:
    """The mode's ``dispatch_fn`` and ``collect_fn``."""
    mode = _named(dispatch_mode)
    return {"dispatch_fn": mode.dispatch_fn, "collect_fn": mode.collect_fn}


def get_predefined_execute_fn(execute_mode: Execute) -> dict[str, str]:
    """The name of the worker group's method that runs calls of this mode."""
    return {"execute_fn_name": "execute_all" if execute_mode is Execute.ALL else "execute_rank_zero"}


def _named(mode: Dispatch) -> Mode:
    if mode.name not in _MODES:
        raise DispatchError(f"there is no dispatch mode `{mode.name}`; there are {', '.join(sorted(_MODES))}")
    return _MODES[mode.name]


def _functions_of(mode: Any) -> Mode:
    """The functions of a mode however it is given."""
    if isinstance(mode, Dispatch):
        return _named(mode)
    if isinstance(mode, Mapping) and set(mode) == {"dispatch_fn", "collect_fn"}:
        mode = (mode["dispatch_fn"], mode["collect_fn"])
    if isinstance(mode, tuple) and len(mode) == 2 and all(map(callable, mode)):
        return Mode(*mode)
    raise DispatchError(
        f"dispatch_mode={mode!r} is none: use a `Dispatch`, a dict of `dispatch_fn` and `collect_fn`, or a pair of them"
    )
