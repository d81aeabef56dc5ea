"""Noticing lost workers while no call is under way."""

from __future__ import annotations

import atexit
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from dagrl.controller.looking import LOOKING
from dagrl.controller.ray_pending import RayPending
from dagrl.errors import WorkerError

if TYPE_CHECKING:
    from dagrl.controller.ray_group import RayWorkerGroup

_METHOD = "dagrl_ping"


@dataclass(frozen=True)
class _Asked:
    """The answers that are waited for, by rank, of the workers of one building of the group."""

    built: int = 0
    refs: dict[int, Any] = field(default_factory=dict[int, Any])


def watch(group: RayWorkerGroup, seconds: float) -> None:
    """Look every so many seconds, in a thread that ends with the group, whether the workers live.

    Each is asked to come back; the answer waits behind the calls under way, but a lost process fails it at once.
    """
    _stop_at_exit()
    threading.Thread(target=_look_after, args=(weakref.ref(group), seconds), daemon=True).start()


@cache
def _stop_at_exit() -> None:
    """Let no thread look any more when this process exits, for Ray shuts itself down then."""
    atexit.register(LOOKING.acquire)


def _look_after(found: weakref.ref[RayWorkerGroup], seconds: float) -> None:
    asked = _Asked()
    pause = threading.Event()
    while not pause.wait(seconds):
        with LOOKING:
            group = found()
            if group is None:
                return
            asked = _looked(group, asked) if group.standing else _Asked()
            del group


def _looked(group: RayWorkerGroup, asked: _Asked) -> _Asked:
    """The answers that are still waited for; a worker whose answer is an error ends the group."""
    built = group.built
    with suppress(WorkerError):
        if built != asked.built or RayPending(group, "a look at it", asked.refs, built).poll():
            refs = group.submit(_METHOD, dict.fromkeys(range(group.world_size), ((), {}))).refs
            return _Asked(built, dict(enumerate(refs)))
        return asked
    return _Asked()
