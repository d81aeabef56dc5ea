"""Groups of workers in this process and on Ray, for the same tests."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dagrl.controller import (
    ClassWithInitArgs,
    NaiveWorkerGroup,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    ResourcePool,
    WorkerGroup,
)

MakeGroup = Callable[..., WorkerGroup]


@pytest.fixture(scope="module")
def make_ray_group(ray_session: object) -> Iterator[MakeGroup]:
    """Starts groups on Ray that end with the module's tests."""
    started: list[RayWorkerGroup] = []
    pools: dict[int, RayResourcePool] = {}

    def make(cls: type, *args: Any, ranks: int = 2, **options: Any) -> WorkerGroup:
        pool = pools.setdefault(ranks, RayResourcePool([ranks], use_gpu=False, name_prefix="test"))
        started.append(RayWorkerGroup(pool, RayClassWithInitArgs(cls, *args), **options))
        return started[-1]

    yield make
    for group in started:
        group.kill()
    for pool in pools.values():
        pool.release()


@pytest.fixture(scope="module", params=["naive", "ray"])
def make_group(request: pytest.FixtureRequest) -> MakeGroup:
    """Starts groups of either kind."""
    if request.param == "ray":
        return request.getfixturevalue("make_ray_group")
    return lambda cls, *args, ranks=2, **options: NaiveWorkerGroup(
        ResourcePool([ranks]), ClassWithInitArgs(cls, *args), **options
    )
