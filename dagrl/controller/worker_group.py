"""What every worker group does: methods bound, calls dispatched to the ranks and their results collected."""

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from types import FunctionType
from typing import Any

from dagrl.controller.decorator import Mode, Registration, registration_of
from dagrl.controller.dispatch import PADDING_KEY, ArgumentError, Padding, Shards, check_per_rank, without_padding
from dagrl.controller.future import CallFuture, Pending
from dagrl.controller.resource_pool import ResourcePool
from dagrl.errors import DispatchError, WorkerError

#: The arguments of one rank's call.
RankCall = tuple[tuple[Any, ...], dict[str, Any]]


class ClassWithInitArgs:
    """A class and the arguments of its constructor, to be constructed in the workers."""

    def __init__(self, cls: type, *args: Any, **kwargs: Any) -> None:
        self.cls = cls
        self.args = args
        self.kwargs = kwargs

    def __call__(self) -> Any:
        """A new instance."""
        return self.cls(*self.args, **self.kwargs)


class WorkerGroup:
    """Workers of one class, numbered by rank; their registered methods are methods of the group.

    A subclass starts the workers, and says how a call is submitted to some of them.
    """

    def __init__(self, resource_pool: ResourcePool, cls: type, name: str) -> None:
        self.resource_pool = resource_pool
        self.name = name
        self._cls = cls
        self._methods = public_methods(cls)
        self._deadline: float | None = None
        self._failure: WorkerError | None = None
        for method, function in self._methods.items():
            registration = registration_of(function)
            if registration is not None:
                self._bind(method, function, registration)

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.resource_pool.world_size

    @property
    def workers(self) -> list[Any]:
        """The workers in rank order."""
        raise NotImplementedError

    def submit(self, method: str, calls: Mapping[int, RankCall]) -> Pending:
        """Call a method on some ranks, each with its own arguments, without waiting."""
        raise NotImplementedError

    def kill(self) -> None:
        """End the workers at once, whatever they do."""
        raise NotImplementedError

    @property
    def failure(self) -> WorkerError | None:
        """The error that ended the group, None while it is well; later calls raise it again."""
        return self._failure

    def fail(self, error: WorkerError) -> WorkerError:
        """End the group with this error, unless it has ended with another already; return the one that counts."""
        if self._failure is None:
            self._failure = error
            self.kill()
        return self._failure

    def execute_all_async(self, method_name: str, *args: Any, **kwargs: Any) -> CallFuture:
        """Call any public method of the workers on every rank.

        If every argument is a list with one item for each rank, each rank gets its item; else all get all.
        """
        given = [*args, *kwargs.values()]
        whole = [value for value in given if not (isinstance(value, list) and len(value) == self.world_size)]
        if given and not whole:
            calls = {rank: _items(rank, args, kwargs) for rank in range(self.world_size)}
        else:
            calls = dict.fromkeys(range(self.world_size), (args, kwargs))
        return CallFuture(self.submit(self._checked(method_name), calls), list)

    def execute_all_sync(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """What every rank returns, in rank order; as `execute_all_async`, waited for."""
        return self.execute_all_async(method_name, *args, **kwargs).get(deadline=self._deadline)

    def execute_all(self, method_name: str, *args: Any, **kwargs: Any) -> CallFuture:
        """The same as `execute_all_async`."""
        return self.execute_all_async(method_name, *args, **kwargs)

    def execute_rank_zero_async(self, method_name: str, *args: Any, **kwargs: Any) -> CallFuture:
        """Call any public method of the workers on rank 0 alone."""
        return CallFuture(self.submit(self._checked(method_name), {0: (args, kwargs)}), _only)

    def execute_rank_zero_sync(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """What rank 0 returns."""
        return self.execute_rank_zero_async(method_name, *args, **kwargs).get(deadline=self._deadline)

    def execute_rank_zero(self, method_name: str, *args: Any, **kwargs: Any) -> CallFuture:
        """The same as `execute_rank_zero_async`."""
        return self.execute_rank_zero_async(method_name, *args, **kwargs)

    def _bind(self, method: str, function: FunctionType, registration: Registration) -> None:
        if method in vars(WorkerGroup) or method in self.__dict__:
            name = f"{self._cls.__name__}.{method}"
            raise DispatchError(f"`{name}` is registered under a name that the worker group has itself: rename it")
        call = partial(self._call, method, function, registration)
        call.__doc__ = function.__doc__
        self.__dict__[method] = call

    def _call(
        self, method: str, function: FunctionType, registration: Registration, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Dispatch, execute, collect."""
        mode = registration.mode()
        if registration.materialize_futures:
            args, kwargs = self._materialized(mode, args, kwargs)
        try:
            sent, named = mode.dispatch_fn(self, *args, **kwargs)
            named = dict(named)
            padding = named.pop(PADDING_KEY, None)
            calls = {0: (sent, named)} if mode.rank_zero else self._by_rank(sent, named)
        except ArgumentError as error:
            raise DispatchError(f"`{method}`: {error.named(_argument(function, error.argument))}") from None
        pending = self.submit(method, calls)
        splits = padding is not None and not padding.added
        future = CallFuture(pending, partial(self._collected, mode, padding), splits=splits)
        return future.get(deadline=self._deadline) if registration.blocking else future

    def _materialized(self, mode: Mode, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RankCall:
        """Futures among the arguments as their values, or as their shards where these fit the ranks."""

        def value_of(value: Any) -> Any:
            if not isinstance(value, CallFuture):
                return value
            shards = value.shards(self.world_size) if mode.takes_shards else []
            return Shards(tuple(shards)) if shards else value.get(deadline=self._deadline)

        return tuple(map(value_of, args)), {name: value_of(value) for name, value in kwargs.items()}

    def _by_rank(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[int, RankCall]:
        """The call of each rank from lists with one item for each."""
        for place, value in enumerate(args):
            check_per_rank(place, value, self.world_size)
        for name, value in kwargs.items():
            check_per_rank(name, value, self.world_size)
        return {rank: _items(rank, args, kwargs) for rank in range(self.world_size)}

    def _collected(self, mode: Mode, padding: Padding | None, outputs: list[Any]) -> Any:
        result = mode.collect_fn(self, _only(outputs) if mode.rank_zero else outputs)
        return result if padding is None else without_padding(result, padding)

    def _checked(self, method: str) -> str:
        """The method's name, if the workers have it.

        Raises:
            DispatchError: if not, with the nearest name.
        """
        if method in self._methods:
            return method
        near = get_close_matches(method, self._methods, 1)
        fix = f"; did you mean `{near[0]}`?" if near else ""
        raise DispatchError(f"`{self._cls.__name__}` has no public method `{method}`{fix}")


def public_methods(cls: type) -> dict[str, FunctionType]:
    """The functions of a class and its bases whose names do not begin with `_`."""
    found: dict[str, FunctionType] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            if not name.startswith("_") and isinstance(function, FunctionType):
                found[name] = function
    return found


def _items(rank: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RankCall:
    return tuple(value[rank] for value in args), {name: value[rank] for name, value in kwargs.items()}


def _only(outputs: list[Any]) -> Any:
    (output,) = outputs
    return output


def _argument(function: FunctionType, argument: int | str) -> str:
    """The argument as its method's signature calls it."""
    if isinstance(argument, str):
        return f"`{argument}`"
    names = list(inspect.signature(function).parameters)[1:]
    return f"`{names[argument]}`" if argument < len(names) else str(argument + 1)
