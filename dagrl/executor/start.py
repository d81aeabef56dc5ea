"""Choosing a runtime by name; only the one chosen is imported."""

from __future__ import annotations

from typing import Literal

from dagrl.errors import ConfigError, Problem
from dagrl.executor.base import Runtime


def make_runtime(executor: Literal["local", "ray"], address: str | None, deadline: float) -> Runtime:
    """The runtime of that name.

    Raises:
        ConfigError: when Ray is asked for and not installed.
        ClusterError: when nothing answers at the address.
    """
    if executor == "local":
        from dagrl.executor.local import LOCAL_RUNTIME

        return LOCAL_RUNTIME
    try:
        from dagrl.executor.ray import RayRuntime
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        fix = "install it, or run in this process with `--executor local`"
        raise ConfigError([Problem("Ray is not installed.", fix=fix)]) from error
    return RayRuntime(address, deadline=deadline)
