"""A batch as one safetensors file: the tensor columns as they are, objects and meta_info as JSON beside them."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from dagrl.data.jagged import Jagged, SharedOffsets, is_jagged, jagged_parts
from dagrl.data.json_values import from_json, to_json
from dagrl.data.objects import object_array
from dagrl.data.tensor_bytes import dense_bytes, from_bytes
from dagrl.data.tensordicts import tensors_of
from dagrl.data.wire import check_sendable
from dagrl.errors import DataError, DataTypeError
from dagrl.storage.tensor_file import read_tensor_file, write_tensor_file

#: Raised whenever an older version's file would be misread.
FORMAT = "1"
_KIND = "dagrl DataProto"
#: The tensor that holds the JSON: a header of safetensors has a limit that texts would reach.
_JSON = "json"
#: Dtypes that safetensors lacks; their bytes are written.
_AS_BYTES = frozenset({torch.float8_e8m0fnu, torch.complex32, torch.complex128})

#: Where a tensor is in the file, and what is to be made of it.
Spec = dict[str, Any]


def write_batch(url: str, batch: TensorDict | None, objects: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Write the content of a batch.

    Raises:
        DataTypeError: naming the column and row, or the meta_info key, of a value that has no form without pickle.
    """
    kept = _Kept()
    content = {
        "batch": None if batch is None else _described(batch, kept),
        "objects": {
            name: _values(f"column `{name}`, row", enumerate(values), kept) for name, values in objects.items()
        },
        "meta_keys": _values("the name of meta_info key", ((key, key) for key in meta), kept),
        "meta_values": _values("meta_info key", meta.items(), kept),
    }
    text = json.dumps(content, allow_nan=False).encode()
    kept.tensors[_JSON] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    write_tensor_file(url, kept.tensors, {"kind": _KIND, "format": FORMAT})


def read_batch(url: str) -> tuple[TensorDict | None, dict[str, np.ndarray], dict[str, Any]]:
    """The content of the batch that `write_batch` wrote.

    Raises:
        DataError: if there is no such file, or it is another one.
    """
    tensors, header = read_tensor_file(url)
    if header.get("kind") != _KIND:
        raise DataError(f"`{url}` was not written by `DataProto.save_to_disk`")
    if header["format"] != FORMAT:
        raise DataError(f"`{url}` has format {header['format']}, this version reads {FORMAT}")
    content = json.loads(tensors[_JSON].numpy().tobytes())
    shared = SharedOffsets()

    def kept(spec: Spec) -> Tensor:
        return _restored(spec, tensors, shared)

    batch = None if content["batch"] is None else _batch(content["batch"], kept)
    objects = {
        name: object_array([from_json(value, kept) for value in values]) for name, values in content["objects"].items()
    }
    keys = [from_json(key, kept) for key in content["meta_keys"]]
    values = [from_json(value, kept) for value in content["meta_values"]]
    return batch, objects, dict(zip(keys, values, strict=True))


class _Kept:
    """The tensors of the file; those with a name lie under it, for whoever opens the file with other tools."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def column(self, name: str, tensor: Tensor) -> Spec:
        """Keep a tensor column."""
        check_sendable(f"column `{name}`", tensor)
        return self._keep(f"tensor/{name}", tensor)

    def other(self, tensor: Tensor) -> Spec:
        """Keep a tensor that is inside an object."""
        check_sendable("the tensor in it", tensor)
        return self._keep(f"object/{len(self.tensors)}", tensor)

    def _keep(self, key: str, tensor: Tensor) -> Spec:
        spec: Spec = {"key": key, "requires_grad": tensor.requires_grad}
        tensor = tensor.detach()
        if is_jagged(tensor):
            parts = jagged_parts(tensor)
            spec |= {"offsets": f"offsets/{key}", "ragged": parts.dim}
            self.tensors[spec["offsets"]] = parts.offsets
            tensor = parts.values
        return spec | self._dense(key, tensor)

    def _dense(self, key: str, tensor: Tensor) -> Spec:
        if tensor.dtype not in _AS_BYTES:
            self.tensors[key] = tensor.resolve_conj().resolve_neg()
            return {}
        dtype, shape, data = dense_bytes(tensor)
        self.tensors[key] = torch.from_numpy(data)
        return {"dtype": str(dtype).removeprefix("torch."), "shape": list(shape)}


def _described(batch: TensorDict, kept: _Kept) -> dict[str, Any]:
    columns = [[name, kept.column(name, tensor)] for name, tensor in tensors_of(batch).items()]
    return {"size": list(batch.batch_size), "has_device": batch.device is not None, "columns": columns}


def _batch(content: Mapping[str, Any], kept: Callable[[Spec], Tensor]) -> TensorDict:
    columns = {name: kept(spec) for name, spec in content["columns"]}
    return TensorDict(columns, content["size"], "cpu" if content["has_device"] else None)


def _values(where: str, values: Iterable[tuple[Any, Any]], kept: _Kept) -> list[Any]:
    made: list[Any] = []
    for key, value in values:
        try:
            made.append(to_json(value, kept.other))
        except DataTypeError as error:
            raise DataTypeError(f"{where} `{key}` cannot be saved: {error}") from error
    return made


def _restored(spec: Spec, tensors: Mapping[str, Tensor], shared: SharedOffsets) -> Tensor:
    tensor = tensors[spec["key"]]
    if "dtype" in spec:
        tensor = from_bytes(getattr(torch, spec["dtype"]), tuple(spec["shape"]), tensor.numpy())
    if "ragged" in spec:
        tensor = shared.column(Jagged(tensor, tensors[spec["offsets"]], spec["ragged"]))
    return tensor.requires_grad_(spec["requires_grad"])
