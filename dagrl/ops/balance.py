"""Balanced shares: rows or whole groups spread over k parts so that the heaviest part is light."""

from heapq import heapify, heappop, heappush

from jaxtyping import Int64
from torch import Tensor

#: A weight, and the number of what it is the weight of: index i, or n + j for the two parts of join j.
Part = tuple[int, int]
#: Up to k parts by falling weight; the missing ones are empty.
Split = list[Part]


def balanced_partition(weights: Int64[Tensor, " B"], k: int, *, equal_size: bool = False) -> list[list[int]]:
    """The indices of ``weights`` in k parts of nearly equal weight; with ``equal_size`` of nearly equal length too.

    The largest differencing method of Karmarkar and Karp (The differencing method of set partitioning, UCB/CSD
    82/113, 1982): every weight starts as a split (w, 0, ..., 0); until one is left, the two splits of the largest
    spread, heaviest minus lightest part, become one, the heaviest part of either joined to the lightest of the other.
    ``equal_size`` starts instead from k weights at a time, in falling order, one to each part (the balanced largest
    differencing method), so lengths differ by at most one.

    Joining two splits never gives more than the larger spread, so the parts differ by at most the largest weight and
    the heaviest is at most sum / k + (1 - 1 / k) max(w): it exceeds that of any other partition, such as contiguous
    blocks, by at most (1 - 1 / k) max(w). Without ``equal_size`` it is at most 4/3 - 1/(3k) times the best possible
    (Michiels, Korst, Aarts and van Leeuwen 2007; Fischetti and Martello 1987 for k = 2).

    Ties go by weights, then by index: equal inputs give equal parts, whose weights do not depend on the order of the
    input. Indices rise within a part, parts go by their first index, and parts left empty come last.

    Raises:
        ValueError: if k is below 1 or a weight is negative.
    """
    return _partition(weights.tolist(), k, equal_size)


def balanced_groups(
    weights: Int64[Tensor, " B"], group_ids: Int64[Tensor, " B"], k: int, *, equal_size: bool = False
) -> list[list[int]]:
    """The indices of ``weights`` in k parts as `balanced_partition` makes them, the rows of a group in one part.

    A group weighs what its rows weigh; its rows need not be neighbours. With ``equal_size`` the numbers of groups in
    two parts differ by at most one, and so the numbers of rows by at most n where every group has n.

    Raises:
        ValueError: if weights and group_ids differ in length, k is below 1 or a group's weight is negative.
    """
    if len(weights) != len(group_ids):
        raise ValueError(f"there are {len(weights)} weights but {len(group_ids)} group_ids: give one of each a row")
    rows_of: dict[int, list[int]] = {}
    for row, group in enumerate(group_ids.tolist()):
        rows_of.setdefault(group, []).append(row)
    rows, values = list(rows_of.values()), weights.tolist()
    parts = _partition([sum(values[row] for row in group) for group in rows], k, equal_size)
    return [sorted(row for group in part for row in rows[group]) for part in parts]


def _partition(values: list[int], k: int, equal_size: bool) -> list[list[int]]:
    if k < 1:
        raise ValueError(f"cannot spread rows over {k} parts: give at least 1")
    if values and min(values) < 0:
        raise ValueError(f"weights must be at least 0, the lowest is {min(values)}")
    order = sorted(range(len(values)), key=lambda index: -values[index])
    parts = [(values[index], index) for index in order]
    width = k if equal_size else 1
    joins: list[tuple[int, int]] = []
    last = _difference([parts[at : at + width] for at in range(0, len(parts), width)], k, len(values), joins)
    found = sorted(sorted(_indices(number, len(values), joins)) for _, number in last)
    return found + [[] for _ in range(k - len(found))]


def _difference(splits: list[Split], k: int, n: int, joins: list[tuple[int, int]]) -> Split:
    """The last split that is left; appends to ``joins`` the two parts that became part n + its place."""
    heap = [_entry(split, k) for split in splits]
    heapify(heap)
    while len(heap) > 1:
        split = _joined(heappop(heap)[-1], heappop(heap)[-1], k, n, joins)
        while len(split) < k and heap:  # its lightest part is empty, so its spread is still the largest
            split = _joined(split, heappop(heap)[-1], k, n, joins)
        heappush(heap, _entry(split, k))
    return heap[0][-1] if heap else []


def _entry(split: Split, k: int) -> tuple[int, list[int], Split]:
    """What orders the heap: the largest spread, then the weights alone, and only between equals the indices."""
    weights = [weight for weight, _ in split]
    lightest = weights[-1] if len(split) == k else 0
    return lightest - weights[0], weights, split


def _joined(first: Split, second: Split, k: int, n: int, joins: list[tuple[int, int]]) -> Split:
    """Two splits as one; a part that meets an empty one stays as it is."""
    alone_first, alone_second = k - len(second), k - len(first)
    split = first[:alone_first] + second[:alone_second]
    for (mine, one), (theirs, other) in zip(first[alone_first:], reversed(second[alone_second:]), strict=True):
        split.append((mine + theirs, n + len(joins)))
        joins.append((one, other))
    split.sort(reverse=True)
    return split


def _indices(number: int, n: int, joins: list[tuple[int, int]]) -> list[int]:
    found: list[int] = []
    pending = [number]
    while pending:
        number = pending.pop()
        if number < n:
            found.append(number)
        else:
            pending += joins[number - n]
    return found
