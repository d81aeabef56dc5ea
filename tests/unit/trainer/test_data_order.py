"""Data order: a function of seed and step; every row once an epoch; evaluation sees every row once."""

import pytest

from dagrl.trainer.data_order import ShuffledOrder, walk_in_order


def test_ten_rows_in_batches_of_three_are_three_steps_an_epoch() -> None:
    order = ShuffledOrder(10, 3, seed=0)
    assert order.steps_per_epoch == 3
    epochs = [[order.rows(step).positions.tolist() for step in range(start, start + 3)] for start in (0, 3)]
    for epoch in epochs:
        rows = [row for batch in epoch for row in batch]
        assert len(set(rows)) == 9
        assert set(rows) <= set(range(10))
    assert epochs[0] != epochs[1]


def test_group_ids_number_the_stream_and_never_repeat() -> None:
    order = ShuffledOrder(10, 3, seed=0)
    ids = [number for step in range(7) for number in order.rows(step).group_ids.tolist()]
    assert ids == list(range(21))


def test_a_step_can_be_asked_for_alone() -> None:
    first, again = ShuffledOrder(100, 8, seed=5), ShuffledOrder(100, 8, seed=5)
    assert first.rows(25).positions.tolist() == again.rows(25).positions.tolist()
    assert ShuffledOrder(100, 8, seed=6).rows(25).positions.tolist() != first.rows(25).positions.tolist()


@pytest.mark.parametrize(("num_rows", "batch_size", "sizes"), [(5, 2, [2, 2, 1]), (4, 4, [4]), (3, 8, [3])])
def test_evaluation_walks_every_row_once(num_rows: int, batch_size: int, sizes: list[int]) -> None:
    batches = walk_in_order(num_rows, batch_size)
    assert [len(batch.positions) for batch in batches] == sizes
    assert [row for batch in batches for row in batch.positions.tolist()] == list(range(num_rows))
