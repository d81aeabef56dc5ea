"""New weights for servers: a folder that trainer and servers share, and a call that has each of them read it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from dagrl.engines.rollout.in_background import result_of
from dagrl.engines.rollout.server_client import Client, Refused, Server, Unavailable, connected
from dagrl.engines.rollout.server_dialect import Dialect
from dagrl.engines.rollout.vllm_loading import buckets
from dagrl.engines.weights import BUCKET_BYTES
from dagrl.errors import EngineError
from dagrl.graph.rollouts import RolloutSpec


class FolderHandover:
    """Writes weights to a new folder under ``weights_folder``, has all servers load them, and removes them again."""

    def __init__(self, spec: RolloutSpec, weights_folder: Path, dialect: Dialect) -> None:
        self._spec = spec
        self._dialect = dialect
        self._parent = weights_folder

    def load(self, weights: Iterable[tuple[str, Tensor]], servers: Sequence[Server]) -> None:
        """Hand the weights to every server, lost ones too; their prefix caches are empty afterwards.

        Raises:
            EngineError: naming a server that did not take them.
            OSError: when the folder cannot be written.
        """
        self._parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="weights-", dir=self._parent.resolve()))
        folder.chmod(0o755)  # servers may run as other users
        try:
            write_weights(weights, folder)
            result_of(lambda: self._loaded(folder, servers))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _loaded(self, folder: Path, servers: Sequence[Server]) -> None:
        async with connected(self._spec.api_key, self._spec.timeout_s) as client:
            results = await asyncio.gather(
                *(_load(client, server, self._dialect, folder) for server in servers), return_exceptions=True
            )
        for result in results:
            if isinstance(result, BaseException):
                raise result


def write_weights(weights: Iterable[tuple[str, Tensor]], folder: Path, bucket_bytes: int = BUCKET_BYTES) -> None:
    """A safetensors file for each bucket: no more than one is held at a time."""
    for number, bucket in enumerate(buckets(weights, bucket_bytes)):
        # A tied tensor comes under two names, and a file holds no memory twice.
        copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in bucket}
        save_file(copies, folder / f"model-{number:05}.safetensors", metadata={"format": "pt"})


async def _load(client: Client, server: Server, dialect: Dialect, folder: Path) -> None:
    try:
        mark = await dialect.load(client, server, folder)
    except (Unavailable, Refused) as error:
        raise EngineError(f"the server {server.url} did not take the weights: {error}. Start it again") from error
    server.mark, server.lost = mark, None
