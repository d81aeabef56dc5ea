"""Rows of all ranks on each: what no padding knows must have one size everywhere."""

from pathlib import Path

import pytest
import torch
from ranks import run_on_ranks

from dagrl.data.columns import ColumnType
from dagrl.data.join import Widths
from dagrl.engines.all_rows import AllRows
from dagrl.engines.parallel import DataParallel
from dagrl.errors import NodeError

KIND = ColumnType("f32", ("B", "T", "K"))


def gathered(rank: int, size: int, counts: list[int], sizes: list[int]) -> list[int] | str:
    """The shape of a column of all rows, or what was refused."""
    parallel, count = DataParallel(rank, size, "replicate"), counts[rank]
    seeds = torch.arange(count) + 10 * rank
    rows = AllRows.of(seeds, torch.ones(count, 2).bool(), Widths(1, 2), parallel)
    try:
        return list(rows.gather("likely", torch.ones(count, 2, sizes[rank]), KIND).shape)
    except NodeError as error:
        return str(error)


@pytest.mark.parametrize(
    ("counts", "sizes", "expected"),
    [([2, 1], [4, 3], "has other sizes on other ranks: [(3,), (4,)] at dims [2]"), ([2, 0], [4, 0], [2, 2, 4])],
    ids=["other sizes", "a rank without rows"],
)
def test_sizes_that_nothing_pads(
    counts: list[int], sizes: list[int], expected: list[int] | str, tmp_path: Path
) -> None:
    found = run_on_ranks(gathered, 2, tmp_path, counts, sizes)
    for one in found:
        assert expected in one if isinstance(expected, str) else one == expected
