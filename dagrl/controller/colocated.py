"""Several workers in one process: a class that holds one of each role and passes calls on to them."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import iscoroutinefunction
from types import FunctionType
from typing import Any

from dagrl.controller.decorator import Dispatch, marked, registration_of
from dagrl.controller.worker import Worker, born_as
from dagrl.controller.worker_group import ROLES, ClassWithInitArgs, public_methods, roles_of
from dagrl.errors import DispatchError


class FusedWorker(Worker):
    """Workers of several roles in one process; ``self.fused`` has them by role, in each of them too."""


def create_colocated_worker_raw_cls(class_dict: Mapping[str, ClassWithInitArgs]) -> type[FusedWorker]:
    """A plain class whose instances hold a worker of each role; it needs no Ray and no arguments.

    Raises:
        DispatchError: when two roles' methods would have one name.
    """
    return colocated_class("_".join(["FusedWorker", *class_dict]), FusedWorker, class_dict)


def colocated_class(name: str, base: type, class_dict: Mapping[str, ClassWithInitArgs]) -> Any:
    """A class called ``name`` on ``base`` with a worker of each role.

    For each of their public methods it has one called ``{role}_{method}``, registered as that is; direct rollout
    methods are there under their own names too.
    """
    makers = {role: maker.plain for role, maker in class_dict.items()}
    if not makers:
        raise DispatchError("there is no role to put into one process")

    def construct(self: Worker) -> None:
        members: dict[str, Any] = {}
        self._fused = members  # pyright: ignore[reportPrivateUsage] - it is this class's own
        for role, maker in makers.items():
            with born_as(self._identity, members):  # pyright: ignore[reportPrivateUsage]
                members[role] = maker()

    names: dict[str, Any] = {}
    for role, maker in makers.items():
        for shown, method in _methods_of(role, maker.cls):
            if shown in names or shown in public_methods(base):
                raise DispatchError(
                    f"role `{role}` has a method `{method}`, and `{shown}` there is already: rename one"
                )
            names[shown] = _forward(role, method, public_methods(maker.cls)[method])
    roles = {role: maker.cls for role, maker in makers.items()}
    return type(name, (base,), {"__module__": "dagrl_workers", "__init__": construct, ROLES: roles, **names})


def role_of(cls: type, method: str) -> tuple[str, str]:
    """The role and the method that a method of a colocated class passes calls on to; no role for any other."""
    for role, member in roles_of(cls).items():
        for shown, own in _methods_of(role, member):
            if shown == method:
                return role, own
    return "", method


def _methods_of(role: str, cls: type) -> list[tuple[str, str]]:
    """The names of a role's methods in the colocated class, and their own."""
    methods = public_methods(cls)
    return [*((f"{role}_{own}", own) for own in methods), *((own, own) for own in methods if _is_direct(methods[own]))]


def _is_direct(function: FunctionType) -> bool:
    registration = registration_of(function)
    return registration is not None and registration.dispatch_mode == Dispatch.DIRECT_ROLLOUT_METHOD


def _forward(role: str, method: str, function: FunctionType) -> Any:
    if iscoroutinefunction(function):

        async def forward_async(self: Worker, *args: Any, **kwargs: Any) -> Any:
            return await getattr(self.fused[role], method)(*args, **kwargs)

        return marked(forward_async, registration_of(function))

    def forward(self: Worker, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.fused[role], method)(*args, **kwargs)

    return marked(forward, registration_of(function))
