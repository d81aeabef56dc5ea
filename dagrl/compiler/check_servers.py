"""What is wrong with the servers that a group generates by, as far as their spec says."""

from collections.abc import Iterator
from math import inf
from urllib.parse import urlsplit

from dagrl.errors import Problem
from dagrl.graph.specs import WorkerGroup


def server_problems(group: WorkerGroup) -> Iterator[Problem]:
    """Addresses that are none, numbers out of bounds, and weights that change and cannot reach the servers."""
    spec, example = group.model.rollout, '`["http://host:8000/v1"]`'
    if not spec.urls:
        yield Problem("`server` got no urls.", spec.at, fix=f"give addresses, e.g. {example}")
    for url in dict.fromkeys(url for url in spec.urls if not _is_address(url)):
        yield Problem(
            f"`server` got the url {url!r}.", spec.at, fix=f"give addresses with http:// or https://: {example}"
        )
    twice = [url for place, url in enumerate(spec.urls) if url in spec.urls[:place]]
    if twice:
        yield Problem(f"`server` got the url {twice[0]!r} twice.", spec.at, fix="name each server once")
    if spec.api_key is not None and not (spec.api_key.isascii() and spec.api_key.isprintable()):
        fix = "give it without line ends and other control characters"
        yield Problem("`server` got an `api_key` that no HTTP header can carry.", spec.at, fix=fix)
    if spec.weights_folder == "":
        yield Problem("`server` got an empty `weights_folder`.", spec.at, fix="give a folder, or leave it out")
    if spec.concurrency < 1:
        fix = "`concurrency` is a number of rows, at least 1"
        yield Problem(f"`server` got concurrency={spec.concurrency!r}.", spec.at, fix=fix)
    if not 0 < spec.timeout_s < inf:
        fix = "`timeout_s` is a finite number of seconds above 0"
        yield Problem(f"`server` got timeout_s={spec.timeout_s!r}.", spec.at, fix=fix)
    yield from _unsynced(group)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:  # a UnicodeError too: a name that no host can have
        return False


def _unsynced(group: WorkerGroup) -> Iterator[Problem]:
    spec = group.model.rollout
    changes = group.model.optimizer is not None or group.follows is not None
    if changes and spec.weights_folder is None:
        what = (
            f"the weights of worker group `{group.name}` change, and `server` does not say how they reach the servers."
        )
        fix = "give `server(..., weights_folder=...)`, a folder at the same path for the trainer and the servers"
        yield Problem(what, spec.at, fix=fix)
