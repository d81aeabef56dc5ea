"""What every worker group does: methods bound, calls dispatched to the ranks and their results collected."""

import copy
import inspect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from types import FunctionType
from typing import Any, Self

from dagrl.controller.decorator import Mode, Registration, registration_of
from dagrl.controller.dispatch import ArgumentError, check_per_rank
from dagrl.controller.future import CallFuture, Chosen, DataProtoFuture, Pending
from dagrl.controller.mesh import Mesh
from dagrl.controller.resource_pool import ResourcePool
from dagrl.controller.split_dispatch import EVEN_KEY, CollectBatches
from dagrl.errors import DispatchError, WorkerError

#: The attribute of a class, made for several workers in one process, that has their classes by role.
ROLES = "dagrl_roles"
#: The arguments of one rank's call.
RankCall = tuple[tuple[Any, ...], dict[str, Any]]


class ClassWithInitArgs:
    """A class, plain or made by ``ray.remote``, and the arguments of its constructor."""

    fused_worker_used = False

    def __init__(self, cls: Any, *args: Any, **kwargs: Any) -> None:
        self.cls = cls
        self.args = args
        self.kwargs = kwargs

    @property
    def plain(self) -> "ClassWithInitArgs":
        """The plain class and its arguments, as they are sent to the processes."""
        cls = self.cls if isinstance(self.cls, type) else self.cls.__ray_actor_class__
        return ClassWithInitArgs(cls, *self.args, **self.kwargs)

    def __call__(self) -> Any:
        """A new instance."""
        return self.plain.cls(*self.args, **self.kwargs)


@dataclass
class Health:
    """What ended the workers, and how often they were started; shared by all groups over the same ones."""

    failure: WorkerError | None = None
    built: int = 0


class WorkerGroup:
    """Workers of one class, numbered by rank; their registered methods are methods of the group.

    A subclass starts the workers, and says how a call is submitted to some of them.
    """

    def __init__(self, resource_pool: ResourcePool, cls: type, name: str) -> None:
        self.resource_pool = resource_pool
        self.name = name
        #: The role of a group that `spawn` made; its workers' methods bear it before their names.
        self.role = ""
        self._deadline: float | None = None
        self._health = Health()
        self._bind_all(cls)

    def _bind_all(self, cls: type) -> None:
        """Make the registered methods of the class methods of this group."""
        self._cls = cls
        self._methods = public_methods(cls)
        #: By name and by which building of the workers was asked.
        self._meshes: dict[tuple[str, int], Mesh] = {}
        self._turn = 0
        #: The methods bound, and the groups that `fuse` made, by name.
        self._bound: dict[str, Any] = {}
        for method, function in self._methods.items():
            registration = registration_of(function)
            if registration is not None:
                self._bind(method, function, registration)

    def __getattr__(self, name: str) -> Any:
        bound: dict[str, Any] = self.__dict__.get("_bound", {})
        if name not in bound:
            raise AttributeError(f"worker group `{self.__dict__.get('name', '')}` has no method `{name}`")
        return bound[name]

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._bound]

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

    def rebuild(self) -> None:
        """End the workers and start new ones in their place; what they said of meshes is forgotten."""
        raise NotImplementedError

    def start_worker_aliveness_check(self, every_n_seconds: float = 1) -> None:
        """Look after the workers from now on: one that is lost ends the group as if a call had found it.

        Nothing is done to this process; `failure` tells, and so does the next call.
        """

    @property
    def failure(self) -> WorkerError | None:
        """The error that ended the group, None while it is well; later calls raise it again."""
        return self._health.failure

    @property
    def built(self) -> int:
        """How often the workers have been started."""
        return self._health.built

    def fail(self, error: WorkerError) -> WorkerError:
        """End the group with this error, unless it has ended with another already; return the one that counts."""
        if self._health.failure is None:
            self._health.failure = error
            self.kill()
        return self._health.failure

    def mesh(self, name: str | None) -> Mesh:
        """Which ranks share a shard on the mesh; the workers are asked once. None is every rank by itself.

        Raises:
            DispatchError: when they know no such mesh or do not agree on it.
        """
        if name is None:
            return Mesh.flat(self.world_size)
        known = (name, self._health.built)
        if known not in self._meshes:
            self._meshes[known] = Mesh.of(name, self.execute_all_sync("query_mesh", name))
        return self._meshes[known]

    def spawn(self, prefix_set: Collection[str]) -> dict[str, Self]:
        """For each role of workers that share processes a group of its own over these same processes.

        Raises:
            DispatchError: naming a role that the processes do not have.
        """
        return {role: self._of_role(role) for role in prefix_set}

    def spawn_fused(self, prefix_set: Collection[str]) -> dict[str, Self]:
        """The same as `spawn`."""
        return self.spawn(prefix_set)

    def fuse(self, prefix_set: Collection[str]) -> None:
        """Make the group of each role an attribute of this one: `group.actor.add(x)`."""
        for role, group in self.spawn(prefix_set).items():
            self._check_free(role)
            self._bound[role] = group

    def _of_role(self, role: str) -> Self:
        roles = roles_of(self._cls)
        if role not in roles:
            have = ", ".join(f"`{name}`" for name in roles) or "none: use `create_colocated_worker_cls`"
            raise DispatchError(f"the workers of `{self.name}` have no role `{role}`; they have {have}")
        group = copy.copy(self)
        group.role, group.name = role, role
        group._bind_all(roles[role])
        return group

    def execute_all_async(self, method_name: str, *args: Any, **kwargs: Any) -> CallFuture:
        """Call any public method of the workers on every rank.

        If every argument is a list with one item for each rank, each rank gets its item; else all get all.
        """
        args, kwargs = self._values(args, kwargs)
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
        return CallFuture(self.submit(self._checked(method_name), {0: self._values(args, kwargs)}), _only)

    def execute_rank_zero_sync(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """What rank 0 returns."""
        return self.execute_rank_zero_async(method_name, *args, **kwargs).get(deadline=self._deadline)

    def execute_rank_zero(self, method_name: str, *args: Any, **kwargs: Any) -> CallFuture:
        """The same as `execute_rank_zero_async`."""
        return self.execute_rank_zero_async(method_name, *args, **kwargs)

    def _bind(self, method: str, function: FunctionType, registration: Registration) -> None:
        self._check_free(method)
        call = partial(self._call, method, function, registration)
        call.__doc__ = function.__doc__
        self._bound[method] = call

    def _check_free(self, name: str) -> None:
        if name in dir(type(self)) or name in self.__dict__:
            whole = f"{self._cls.__name__}.{name}"
            raise DispatchError(f"`{whole}` is registered under a name that the worker group has itself: rename it")

    def _call(
        self, method: str, function: FunctionType, registration: Registration, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Dispatch, execute, collect."""
        mode = registration.mode()
        if registration.materialize_futures:
            args, kwargs = self._values(args, kwargs)
        try:
            sent, named = mode.dispatch_fn(self, *args, **kwargs)
            named = dict(named)
            even = bool(named.pop(EVEN_KEY, False))
            calls = self._calls(mode, sent, named)
        except ArgumentError as error:
            raise DispatchError(f"`{method}`: {error.named(_argument(function, error.argument))}") from None
        pending = self.submit(method, calls)
        collect = mode.collect_fn
        if not registration.blocking and isinstance(collect, CollectBatches):
            chosen = Chosen(pending, self.mesh(collect.mesh_name).collecting)
            return DataProtoFuture(collect.joined, chosen.refs, even=even, pending=chosen)
        future = CallFuture(pending, partial(self._collected, mode))
        return future.get(deadline=self._deadline) if registration.blocking else future

    def _values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RankCall:
        """The arguments, futures that are no batches as their values; workers themselves see to those of batches."""

        def value(given: Any) -> Any:
            return given.get(deadline=self._deadline) if isinstance(given, CallFuture) else given

        return tuple(map(value, args)), {name: value(each) for name, each in kwargs.items()}

    def _calls(self, mode: Mode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, RankCall]:
        if mode.in_turns:
            self._turn += 1
            return {(self._turn - 1) % self.world_size: (args, kwargs)}
        return {0: (args, kwargs)} if mode.rank_zero else self._by_rank(args, kwargs)

    def _by_rank(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[int, RankCall]:
        """The call of each rank from lists with one item for each."""
        for place, value in enumerate(args):
            check_per_rank(place, value, self.world_size)
        for name, value in kwargs.items():
            check_per_rank(name, value, self.world_size)
        return {rank: _items(rank, args, kwargs) for rank in range(self.world_size)}

    def _collected(self, mode: Mode, outputs: list[Any]) -> Any:
        return mode.collect_fn(self, _only(outputs) if mode.rank_zero or mode.in_turns else outputs)

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


def roles_of(cls: type) -> dict[str, type]:
    """The classes of the workers that share a process of this class, by role; empty if it is one worker's own."""
    return vars(cls).get(ROLES, {})


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
