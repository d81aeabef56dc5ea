"""Batches of every dtype and layout, and the plain lists of rows that they stand for."""

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from tensordict import TensorDict

from dagrl.data import DataProto

DTYPES = [
    torch.bool, torch.bfloat16, torch.float16, torch.float32, torch.float64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.complex32, torch.complex64, torch.complex128,
]  # fmt: skip

OBJECTS = st.recursive(
    st.none() | st.booleans() | st.text(max_size=5) | st.binary(max_size=5) | st.integers() | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Random bytes as a tensor of any dtype; bools are 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    count = int(np.prod(shape)) * dtype.itemsize
    raw = torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).view(shape) if count else torch.empty(shape, dtype=dtype)


def jagged_tensor(dtype: torch.dtype, lengths: list[int], kind: str, seed: int = 0) -> torch.Tensor:
    """Random rows of these lengths: ``flat``, ``wide`` (rows [j 2]), ``turned`` (rows [2 j]) or with ``holes``."""
    total = sum(lengths)
    offsets = torch.tensor([0, *np.cumsum(lengths).tolist()])
    if kind == "holes":  # each row is followed by one value that is not part of it
        values = random_tensor(dtype, (total + len(lengths),), seed)
        offsets = offsets + torch.arange(len(offsets))
        return torch.nested.nested_tensor_from_jagged(values, offsets, lengths=torch.tensor(lengths))
    shape = {"flat": (total,), "wide": (total, 2), "turned": (2, total)}[kind]
    values = random_tensor(dtype, shape, seed)
    return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=2 if kind == "turned" else 1)


@st.composite
def batches(draw: Any, least: int = 0, most: int = 17) -> DataProto:
    """Batches of dense columns in several layouts, jagged ones, and objects."""
    rows = draw(st.integers(least, most))
    dtypes = st.sampled_from(DTYPES)
    dense = random_tensor(draw(dtypes), (rows, 3), 1)
    flat = random_tensor(draw(dtypes), (2 * rows,), 2)[::2]
    turned = random_tensor(draw(dtypes), (2, rows), 3).transpose(0, 1)
    lengths = draw(st.lists(st.integers(0, 4), min_size=rows, max_size=rows))
    kinds = ["flat", "wide", "turned"] + (["holes"] if rows else [])
    first = jagged_tensor(draw(dtypes), lengths, draw(st.sampled_from(kinds)), 4)
    objects = draw(st.lists(OBJECTS, min_size=rows, max_size=rows))
    columns = {"dense": dense, "flat": flat, "turned": turned, "jagged": first}
    batch = TensorDict(columns, batch_size=[rows])
    return DataProto(batch, {"object": objects, "number": list(range(rows))}, {"name": "x", "nan": float("nan")})


def raw(tensor: torch.Tensor) -> bytes:
    """The bytes of a dense tensor, which tell NaNs apart and compare for every dtype."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return (
        plain.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8).numpy().tobytes()
        if (plain.numel())
        else b""
    )


def rows_of(tensor: torch.Tensor) -> list[tuple[Any, ...]]:
    """Each row as dtype, shape and bytes, read from the definition of the layout."""
    if tensor.layout is not torch.jagged:
        return [(row.dtype, tuple(row.shape), raw(row)) for row in tensor]
    ragged = next(dim for dim, size in enumerate(tensor.shape) if isinstance(size, torch.SymInt)) - 1
    begins = tensor.offsets().tolist()
    lengths = np.diff(begins).tolist() if tensor.lengths() is None else tensor.lengths().tolist()
    rows = [tensor.values().narrow(ragged, begin, length) for begin, length in zip(begins, lengths, strict=False)]
    return [(row.dtype, tuple(row.shape), raw(row)) for row in rows]


def as_rows(data: DataProto) -> list[dict[str, Any]]:
    """The batch as a plain list of plain rows."""
    data.check_consistency()
    columns = {} if data.batch is None else {name: rows_of(tensor) for name, tensor in data.batch.items()}
    columns |= {name: [repr(value) for value in values] for name, values in data.non_tensor_batch.items()}
    assert all(len(column) == len(data) for column in columns.values())
    return [{name: column[row] for name, column in columns.items()} for row in range(len(data))]


def dtypes_of(data: DataProto) -> dict[str, Any]:
    """What an empty batch keeps of its tensor columns."""
    return {name: (tensor.dtype, tensor.layout, tensor.ndim) for name, tensor in data.batch.items()}
