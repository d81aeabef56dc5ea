"""Which rows make which mini-batch: by their seeds alone, and rows of one seed together."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from dagrl.ops.minibatches import mini_batches


def seeds_of(batches: tuple[torch.Tensor, ...], seeds: torch.Tensor) -> list[list[int]]:
    return [sorted(seeds[batch].tolist()) for batch in batches]


@given(st.sets(st.integers(-99, 99), max_size=17), st.integers(1, 6), st.randoms(use_true_random=False), st.data())
def test_padding_changes_no_mini_batch(numbers, size, random, data):
    whole = torch.tensor(random.sample(sorted(numbers), len(numbers)), dtype=torch.int64)
    wanted = seeds_of(mini_batches(whole, size), whole)
    assert [seed for batch in wanted for seed in batch] == sorted(numbers) or len(wanted) == 1
    repeated = data.draw(st.lists(st.sampled_from(sorted(numbers)), max_size=9) if numbers else st.just([]))
    padded = torch.cat([whole, torch.tensor(repeated, dtype=torch.int64)])
    found = mini_batches(padded, size)
    assert sorted(torch.cat(found).tolist()) == list(range(len(padded)))
    assert [sorted(set(batch)) for batch in seeds_of(found, padded)] == wanted


def test_one_mini_batch_is_in_place():
    seeds = torch.tensor([5, 1, 3, 5])
    for size in (0, 3, 9):
        assert [batch.tolist() for batch in mini_batches(seeds, size)] == [[0, 1, 2, 3]]
    assert [batch.tolist() for batch in mini_batches(seeds, 2)] == [[1, 2], [0, 3]]
