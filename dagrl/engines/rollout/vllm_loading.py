"""The two ways in which vLLM takes new weights, behind one method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from dagrl.engines.sharding import tensor_bytes
from dagrl.engines.weights import BUCKET_BYTES

Named = tuple[str, Tensor]
_Result = TypeVar("_Result")


class WorkerCalls(Protocol):
    """What of vLLM's ``LLM`` loading needs: a method of its worker, called in this process."""

    def collective_rpc(self, method: str, *, kwargs: dict[str, Any]) -> list[Any]:
        """The results of all workers."""
        ...


class ModelCalls(Protocol):
    """What of vLLM's ``LLM`` a look at its model needs."""

    def apply_model(self, func: Callable[[nn.Module], _Result]) -> list[_Result]:
        """What the function returns of the model of each worker."""
        ...


class Loader(Protocol):
    """Puts weights into an engine; after an error the engine has none."""

    def load(self, weights: Iterable[Named]) -> None:
        """All weights of the model, by Hugging Face names."""
        ...


def make_loader(llm: WorkerCalls, *, native: bool) -> Loader:
    """By vLLM's own protocol of weight updates where the engine was started for it, else by a reload."""
    return NativeUpdate(llm) if native else Reload(llm)


class Reload:
    """One reload from an iterator: what a CPU engine takes, whose weights are packed for its kernels."""

    def __init__(self, llm: WorkerCalls) -> None:
        self._llm = llm

    def load(self, weights: Iterable[Named]) -> None:
        """Have the worker ask for one tensor after the other."""
        given = {"weights_iterator": iter(weights), "is_checkpoint_format": True}
        self._llm.collective_rpc("reload_weights", kwargs=given)


class NativeUpdate:
    """vLLM's protocol: start a weight update, send the buckets, finish it.

    The engine was started with the transfer of ``vllm_transfer``, which takes the tensors themselves: trainer and
    engine are one process.
    """

    def __init__(self, llm: WorkerCalls, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._llm = llm
        self._bucket_bytes = bucket_bytes

    def load(self, weights: Iterable[Named]) -> None:
        """Send the weights in buckets; a failed update is never finished."""
        self._llm.collective_rpc("start_weight_update", kwargs={})
        for bucket in buckets(weights, self._bucket_bytes):
            self._llm.collective_rpc("update_weights", kwargs={"update_info": {"weights": bucket}})
        self._llm.collective_rpc("finish_weight_update", kwargs={})


def buckets(weights: Iterable[Named], bucket_bytes: int) -> Iterator[list[Named]]:
    """The weights in lists of at most so many bytes, or one tensor; none is asked for before its bucket is."""
    stream = iter(weights)
    first = next(stream, None)
    while first is not None:
        bucket, size = [first], first[1].nbytes
        first = None
        for name, tensor in stream:
            if size + tensor.nbytes > bucket_bytes:
                first = (name, tensor)
                break
            bucket.append((name, tensor))
            size += tensor.nbytes
        yield bucket


def without_place(llm: ModelCalls, tied: frozenset[str]) -> frozenset[str]:
    """Those of the tied weights that the engine's model has no module for.

    Most models of vLLM want a tied head by its own name too. Some, as Gemma 2, take logits from the embeddings and
    refuse a head.
    """
    (modules,) = llm.apply_model(_module_names)
    return frozenset(name for name in tied if name.split(".")[-2] not in modules)


def held_weight_bytes(llm: ModelCalls) -> int:
    """What the weights of the engine's model take in this process, where others may have shares of their own.

    On a CPU most layers keep theirs packed for its kernels, out of torch's sight: they count as they were before.
    """
    (held,) = llm.apply_model(_weight_bytes)
    return held


def _weight_bytes(model: nn.Module) -> int:
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    packed = 0
    for layer in model.modules():
        loaded, _ = get_layerwise_info(layer).restore_metadata
        own = layer.named_parameters(recurse=False)
        packed += sum(loaded[name].nbytes for name, value in own if name in loaded and value.numel() == 0)
    return packed + tensor_bytes(model.parameters())


def _module_names(model: nn.Module) -> frozenset[str]:
    """The last parts alone: a model of vLLM may hold the language model one level deeper."""
    return frozenset(name.rpartition(".")[2] for name, _ in model.named_modules(remove_duplicate=False))
