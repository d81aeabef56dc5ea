"""Stateless randomness: fixed for ever, one to one, without visible structure."""

import pytest
import torch

from dagrl.ops.random import hash_ids, key_of, uniforms

MASK = (1 << 64) - 1


def reference_hash(key: int, number: int) -> int:
    """SplitMix64's finaliser on unsigned Python integers, returned as int64 holds it."""
    value = (number * 0x9E3779B97F4A7C15 + key) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    value ^= value >> 31
    return value - (1 << 64) if value >> 63 else value


def test_hash_equals_the_unsigned_reference() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(-(2**62), 2**62, (500,), generator=generator)
    for key in (0, 1, -5, 2**63 - 1, -(2**63)):
        assert hash_ids(key, ids).tolist() == [reference_hash(key, number) for number in ids.tolist()]


def test_hash_is_one_to_one_and_keys_give_unrelated_orders() -> None:
    ids = torch.arange(50_000)
    first, second = hash_ids(key_of(0, "a"), ids), hash_ids(key_of(0, "b"), ids)
    assert first.unique().numel() == ids.numel()
    ranks = torch.stack([first.argsort().double(), second.argsort().double(), ids.double()])
    correlations = torch.corrcoef(ranks)
    assert (correlations - torch.eye(3)).abs().max() < 0.02


def test_keys_depend_on_every_part_and_its_kind() -> None:
    keys = {key_of(*parts) for parts in [(0, 1), (1, 0), (0, "1"), ("0", 1), (0, 1, 1), (0,), ("01",), ("0", "1")]}
    assert len(keys) == 8
    assert key_of(3, "data", 7) == key_of(3, "data", 7)
    assert all(-(2**63) <= key < 2**63 for key in keys)


def test_uniforms_depend_on_key_id_and_place_alone() -> None:
    ids = torch.tensor([3, -5, 1 << 62, 3])
    wide = uniforms(7, ids, 12)
    assert torch.equal(wide[:, :5], uniforms(7, ids, 5))
    assert torch.equal(wide[[2, 0]], uniforms(7, ids[[2, 0]], 12))
    assert torch.equal(wide[0], wide[3])
    assert not torch.equal(wide, uniforms(8, ids, 12))
    assert wide.dtype == torch.float32


def test_uniforms_are_uniform_and_independent() -> None:
    drawn = uniforms(1, torch.arange(2000), 200).double()
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) < 1
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.002)
    assert float(drawn.var()) == pytest.approx(1 / 12, abs=0.001)
    counts = torch.histc(drawn, 20, 0, 1)
    assert float((counts / drawn.numel() - 0.05).abs().max()) < 0.002
    centred = drawn - 0.5
    for other in (centred.roll(1, 0), centred.roll(1, 1)):
        assert abs(float((centred * other).mean())) < 0.001
