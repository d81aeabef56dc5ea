"""Memory of buckets: used again when nobody looks at it any more, and not before."""

import torch

from dagrl.engines.bucket_memory import BucketMemory

CPU = torch.device("cpu")


def test_memory_is_used_again_once_no_tensor_of_it_is_alive() -> None:
    memory = BucketMemory()
    first = memory.take(1000, torch.float32, CPU)
    place = first.data_ptr()
    view = first.view(10, 100)[3]
    del first
    assert memory.take(10, torch.float32, CPU).data_ptr() != place
    view.fill_(3.0)
    assert view.tolist() == [3.0] * 100


def test_the_largest_bucket_decides_what_is_kept() -> None:
    memory = BucketMemory()
    sizes = []
    places = []
    for numel in (1000, 10, 500, 2000, 7):
        taken = memory.take(numel, torch.bfloat16, CPU)
        assert taken.shape == (numel,)
        assert taken.dtype == torch.bfloat16
        places.append(taken.data_ptr())
        sizes.append(memory.num_bytes)
        del taken
    assert sizes == [2000, 2000, 2000, 4000, 4000]
    assert places[0] == places[1] == places[2]
    assert places[3] == places[4]


def test_no_numbers_take_no_memory() -> None:
    memory = BucketMemory()
    assert memory.take(0, torch.float32, CPU).shape == (0,)
    assert memory.num_bytes == 0
