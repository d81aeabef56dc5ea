"""What DataProto costs over the bare tensor operations under it, and its wire format over a plain copy of its bytes.

1024 rows of ten [1024, 512] float columns, a column of chat messages and one of answers. Each side is timed in turn,
in rounds; the numbers are medians in milliseconds of CPU time, so that another process's turns are nobody's. The
allocator keeps what is freed: else page faults, which fall on one side or the other by chance, hide the rest.
`chunk` and `select` make views only and take microseconds; no tensor operation at all stands under `select`.
`repeat` copies the messages, which the bare side shares between rows.

Run: python -m tests.bench.dataproto [--rounds 31]
"""

import argparse
import ctypes
import gc
import json
import os
import pickle
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dagrl.data import DataProto

ROWS, WIDTH, COLUMNS, PARTS = 1024, 512, 10, 8
Tensors = dict[str, torch.Tensor]
Objects = dict[str, np.ndarray]
#: Name, the call on DataProto, and the same on bare tensors and object arrays.
Case = tuple[str, Callable[[], Any], Callable[[], Any]]


def make() -> DataProto:
    """A batch like one of a step."""
    generator = torch.Generator().manual_seed(0)
    tensors = {f"column_{i}": torch.randn(ROWS, WIDTH, generator=generator) for i in range(COLUMNS)}
    messages = [[{"role": "user", "content": f"What is {i} plus {i}?"}] for i in range(ROWS)]
    return DataProto.from_dict(tensors, {"messages": messages, "answers": [str(2 * i) for i in range(ROWS)]})


def cases(data: DataProto) -> list[Case]:
    """What is measured."""
    assert data.batch is not None
    tensors: Tensors = dict(data.batch.items())
    objects = data.non_tensor_batch
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    twice = torch.arange(ROWS).repeat_interleave(2)
    some = order[: ROWS // 2]
    parts, bare_parts = data.chunk(PARTS), bare_chunk(tensors, objects)
    kept = (tensors, objects)
    no_objects = DataProto(data.batch)

    def bare_reorder() -> None:
        nonlocal kept
        kept = bare_rows(*kept, order)

    keys = list(tensors)[: COLUMNS // 2]
    return [
        ("chunk", lambda: data.chunk(PARTS), lambda: bare_chunk(tensors, objects)),
        ("select", lambda: data.select(keys), lambda: ({key: tensors[key] for key in keys}, dict(objects))),
        ("select_idxs", lambda: data.select_idxs(some), lambda: bare_rows(tensors, objects, some)),
        ("concat", lambda: DataProto.concat(parts), lambda: bare_concat(bare_parts)),
        ("repeat", lambda: data.repeat(2), lambda: bare_rows(tensors, objects, twice)),
        ("repeat, tensors only", lambda: no_objects.repeat(2), lambda: bare_rows(tensors, {}, twice)),
        ("reorder", lambda: data.reorder(order), bare_reorder),
    ]


def bare_chunk(tensors: Tensors, objects: Objects) -> list[tuple[Tensors, Objects]]:
    """Eight parts as dicts of views."""
    pieces = {name: tensor.chunk(PARTS) for name, tensor in tensors.items()}
    arrays = {name: np.array_split(array, PARTS) for name, array in objects.items()}
    return [
        ({name: piece[i] for name, piece in pieces.items()}, {name: piece[i] for name, piece in arrays.items()})
        for i in range(PARTS)
    ]


def bare_rows(tensors: Tensors, objects: Objects, index: torch.Tensor) -> tuple[Tensors, Objects]:
    """Rows by the faster of torch's ways."""
    places = index.numpy()
    chosen = {name: tensor.index_select(0, index) for name, tensor in tensors.items()}
    return chosen, {name: array[places] for name, array in objects.items()}


def bare_concat(parts: list[tuple[Tensors, Objects]]) -> tuple[Tensors, Objects]:
    """Parts put together again."""
    names, arrays = parts[0]
    return (
        {name: torch.cat([tensors[name] for tensors, _ in parts]) for name in names},
        {name: np.concatenate([objects[name] for _, objects in parts]) for name in arrays},
    )


def wire_cases(data: DataProto) -> list[Case]:
    """What the wire format costs over copies of the bytes.

    The first pickles with the buffers out of band and reads them from read-only memory, as from Ray's store: one copy.
    The second has a transport that copies them into that memory: two copies. The third is one stream of pickle: one
    copy into it and one out of it.
    """
    assert data.batch is not None
    tensors = DataProto(data.batch)
    memory = [tensor.numpy().reshape(-1).view(np.uint8) for tensor in data.batch.values()]
    shared = [np.empty_like(array) for array in memory]

    def out_of_band(carry: Callable[[list[Any]], list[Any]], sent: DataProto = data) -> DataProto:
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(sent, protocol=5, buffer_callback=buffers.append)
        return pickle.loads(head, buffers=carry([buffer.raw() for buffer in buffers]))

    def uncopied(buffers: list[Any]) -> list[Any]:
        return [buffer.toreadonly() for buffer in buffers]

    def copied(buffers: list[Any]) -> list[Any]:
        for buffer, place in zip(buffers, shared, strict=True):
            place[:] = np.frombuffer(buffer, np.uint8)
        return [memoryview(place).toreadonly() for place in shared]

    return [
        ("wire", lambda: out_of_band(uncopied), lambda: [array.copy() for array in memory]),
        ("wire, tensors only", lambda: out_of_band(uncopied, tensors), lambda: [array.copy() for array in memory]),
        ("wire, memory copied", lambda: out_of_band(copied), lambda: [array.copy() for array in memory]),
        ("wire, one stream", lambda: pickle.loads(pickle.dumps(data, protocol=5)), lambda: b"".join(memory)),
    ]


def seconds(call: Callable[[], Any], least: float) -> float:
    """Of one call, the mean over as many as take ``least`` seconds together; what they make is freed in between."""
    count, begin = 0, time.thread_time()
    while True:
        call()
        count += 1
        passed = time.thread_time() - begin
        if passed >= least:
            return passed / count


def measure(measured: list[Case], rounds: int) -> dict[str, Any]:
    """Medians of both sides, which take turns."""
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name, _, _ in measured}
    gc.disable()
    for number in range(rounds + 1):
        for name, ours, bare in measured:
            pair = seconds(ours, 0.01), seconds(bare, 0.01)
            if number:  # the first round warms up
                for side, value in zip(times[name], pair, strict=True):
                    side.append(value)
    gc.enable()
    return {name: _row(*sides) for name, sides in times.items()}


def keep_freed_memory() -> None:
    """Have glibc give no memory back to the kernel; elsewhere nothing happens."""
    if sys.platform == "linux":
        m_trim_threshold, m_mmap_threshold = -1, -3
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_threshold, 1 << 25)
        libc.mallopt(m_trim_threshold, (1 << 31) - 1)


def _row(ours: list[float], bare: list[float]) -> dict[str, float]:
    mine, theirs = statistics.median(ours), statistics.median(bare)
    ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
    return {"dataproto_ms": round(mine * 1e3, 4), "bare_ms": round(theirs * 1e3, 4), "ratio": round(ratio, 2)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.bench.dataproto")
    parser.add_argument("--rounds", type=int, default=31)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    results = measure([*cases(make()), *wire_cases(make())], options.rounds)
    print(json.dumps({"bench": "dataproto", "load1": os.getloadavg()[0], "times": results}, indent=1))


if __name__ == "__main__":
    main()
