"""What is wrong with the servers that a group generates by, as far as their spec says."""

from collections.abc import Iterator
from math import inf

from dagrl.errors import Problem
from dagrl.graph.specs import WorkerGroup


def server_problems(group: WorkerGroup) -> Iterator[Problem]:
    """Addresses that are none, numbers out of bounds, and weights that change and cannot reach the servers."""
    spec, example = group.model.rollout, '`["http://host:8000/v1"]`'
    if not spec.urls:
        yield Problem("`server` got no urls.", spec.at, fix=f"give addresses, e.g. {example}")
    for url in dict.fromkeys(url for url in spec.urls if not url.startswith(("http://", "https://"))):
        yield Problem(
            f"`server` got the url {url!r}.", spec.at, fix=f"give addresses with http:// or https://: {example}"
        )
    twice = [url for place, url in enumerate(spec.urls) if url in spec.urls[:place]]
    if twice:
        yield Problem(f"`server` got the url {twice[0]!r} twice.", spec.at, fix="name each server once")
    if spec.concurrency < 1:
        fix = "`concurrency` is a number of rows, at least 1"
        yield Problem(f"`server` got concurrency={spec.concurrency!r}.", spec.at, fix=fix)
    if not 0 < spec.timeout_s < inf:
        fix = "`timeout_s` is a finite number of seconds above 0"
        yield Problem(f"`server` got timeout_s={spec.timeout_s!r}.", spec.at, fix=fix)
    yield from _unsynced(group)


def _unsynced(group: WorkerGroup) -> Iterator[Problem]:
    spec = group.model.rollout
    changes = group.model.optimizer is not None or group.follows is not None
    if changes and spec.weights_folder is None:
        what = (
            f"the weights of worker group `{group.name}` change, and `server` does not say how they reach the servers."
        )
        fix = "give `server(..., weights_folder=...)`, a folder at the same path for the trainer and the servers"
        yield Problem(what, spec.at, fix=fix)
