"""Where rows lie and what must move: splits, filters, balance."""

from itertools import chain

import torch
from hypothesis import given
from hypothesis import strategies as st

from dagrl.executor.layout import Layout, SourceRows, balanced, moves, narrowed, on_first_rank


def layout(*rows: list[int], where: str = "a") -> Layout:
    return Layout(where, tuple(torch.tensor(ids, dtype=torch.int64) for ids in rows))


def lists(found: Layout) -> list[list[int]]:
    return [ids.tolist() for ids in found.rows]


def test_prompts_are_split_in_order_the_first_ranks_with_one_more() -> None:
    parts = SourceRows(torch.arange(10, 15), torch.arange(5)).split(3)
    assert [part.group_ids.tolist() for part in parts] == [[0, 1], [2, 3], [4]]
    assert [part.positions.tolist() for part in parts] == [[10, 11], [12, 13], [14]]
    assert [len(part.group_ids) for part in SourceRows(torch.arange(1), torch.arange(1)).split(3)] == [1, 0, 0]


def test_filters_take_rows_away_where_they_are() -> None:
    kept = [torch.tensor([0, 3, 4]), torch.tensor([4, 3, 9])]
    assert lists(narrowed(layout([0, 1, 2], [3, 4]), kept)) == [[], [3, 4]]


def test_the_first_rank_gets_all_rows_in_rank_order() -> None:
    assert lists(on_first_rank(layout([2, 0], [1]))) == [[2, 0, 1], []]


def test_rows_in_place_do_not_move() -> None:
    assert moves(layout([0, 1], [2, 3]), layout([1], [2])) is None
    assert moves(layout([0, 1], [2, 3]), layout([1], [2], where="b")) is not None


ROWS = st.lists(st.integers(0, 3), max_size=12)


@given(ROWS, st.integers(1, 4), st.randoms(use_true_random=False), st.booleans())
def test_every_wanted_row_is_in_place_or_sent_once(holders: list[int], size: int, random, same: bool) -> None:
    have = layout(*[[row for row, rank in enumerate(holders) if rank == here] for here in range(4)])
    wanted = [row for row in range(len(holders)) if random.random() < 0.7]
    size = 4 if same else size
    want = layout(*[[row for row in wanted if row % size == rank] for rank in range(size)], where="a" if same else "b")
    sent = moves(have, want)
    for rank, ids in enumerate(want.rows):
        here = have.rows[rank].tolist() if same else []
        got = [row for row in ids.tolist() if row in here]
        for source in sent or []:
            part = source[rank]
            got += [] if part is None else part.tolist()
        assert sorted(got) == sorted(ids.tolist())


def test_an_even_layout_stays_and_an_uneven_one_is_balanced_in_every_mini_batch() -> None:
    even = layout([0, 1], [2, 3])
    assert balanced(even, torch.tensor([5, 1, 1, 5]), [torch.arange(4)]) is even
    skewed = torch.tensor([9, 9, 9, 9, 1, 1, 1, 1])
    batches = [torch.tensor([0, 1, 4, 5]), torch.tensor([2, 3, 6, 7])]
    found = balanced(layout([0, 1, 2, 3], [4, 5, 6, 7]), skewed, batches)
    assert sorted(chain.from_iterable(lists(found))) == list(range(8))
    for batch in batches:
        loads = [int(skewed[[row for row in ids if row in batch.tolist()]].sum()) for ids in lists(found)]
        assert loads == [10, 10]


def test_rows_of_a_layout_need_not_be_numbered_from_0() -> None:
    found = balanced(layout([70, 50], [60, 40]), torch.tensor([9, 9, 1, 1]), [torch.arange(4)])
    weight = {70: 9, 50: 9, 60: 1, 40: 1}
    assert sorted(chain.from_iterable(lists(found))) == [40, 50, 60, 70]
    assert [sum(weight[row] for row in ids) for ids in lists(found)] == [10, 10]
