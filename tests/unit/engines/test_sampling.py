"""Randomness by seed and place, and the draw of a token from its distribution."""

import math

import pytest
import torch

from dagrl.engines.sampling import sample_tokens, token_uniforms

INF = float("inf")


def splitmix_uniform(seed: int, position: int) -> float:
    """The same hash in Python's unbounded integers."""
    mask = 2**64 - 1
    z = (seed * 0xC13FA9A902A6328F + position * 0x91E10DA5C79E7B1D) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    z ^= z >> 31
    return (z >> 41) / 2**23


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """The statistic in standard deviations from its mean; counts below 5 are pooled by the caller."""
    freedom = len(counts) - 1
    value = float(((counts - expected) ** 2 / expected).sum())
    return (value - freedom) / math.sqrt(2 * freedom)


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """In standard deviations of independent numbers."""
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1]) * math.sqrt(len(a))


@pytest.mark.parametrize("position", [0, 1, 7, 4096, 2**40])
def test_uniforms_equal_the_scalar_hash(position):
    seeds = torch.tensor([0, 1, -1, 5, 2**63 - 1, -(2**63), 123456789012345678])
    expected = [splitmix_uniform(seed, position) for seed in seeds.tolist()]
    assert token_uniforms(seeds, position).tolist() == expected


def test_uniforms_are_float32_below_one():
    drawn = token_uniforms(torch.arange(1_000_000), 3)
    assert drawn.dtype == torch.float32
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) <= 1 - 2**-23
    assert torch.equal(drawn * 2**23, (drawn * 2**23).round())


@pytest.mark.parametrize(
    "draw",
    [
        lambda n: token_uniforms(torch.arange(n), 0),
        lambda n: token_uniforms(torch.arange(n) * 2**32 - 2**62, 5),
        lambda n: torch.cat([token_uniforms(torch.arange(n // 100), place) for place in range(100)]),
        lambda n: torch.cat([token_uniforms(torch.tensor([17]), place) for place in range(n // 20)]),
    ],
    ids=["seeds", "far seeds", "seeds and places", "places"],
)
def test_uniforms_are_uniform(draw):
    drawn = draw(200_000)
    for bins in (2, 64, 1000):
        counts = torch.histc(drawn, bins, 0, 1)
        assert abs(chi_square(counts, torch.full_like(counts, len(drawn) / bins))) < 4.5


def test_uniforms_use_all_their_bits():
    bits = (token_uniforms(torch.arange(200_000), 1) * 2**23).long()
    for bit in range(23):
        ones = float(((bits >> bit) & 1).double().mean())
        assert abs(ones - 0.5) < 4.5 * 0.5 / math.sqrt(len(bits))


def test_uniforms_of_neighbours_are_independent():
    table = torch.stack([token_uniforms(torch.arange(50_001), place) for place in range(4)])
    pairs = [
        (table[0, :-1], table[0, 1:]),
        (table[0], table[1]),
        (table[0, :-1], table[1, 1:]),
        (table[0, 1:], table[1, :-1]),
        (table[0], table[3]),
    ]
    for a, b in pairs:
        assert abs(correlation(a, b)) < 4.5
        assert abs(correlation((a - 0.5).abs(), (b - 0.5).abs())) < 4.5
        joint = torch.histc((a * 8).floor() * 8 + (b * 8).floor(), 64, 0, 64)
        assert abs(chi_square(joint, torch.full_like(joint, len(a) / 64))) < 4.5


def test_seeds_and_places_do_not_alias():
    table = torch.stack([token_uniforms(torch.arange(300), place) for place in range(300)])
    # 90,000 draws of 2**23 values: about 480 pairs coincide by chance, structure would give thousands.
    assert table.numel() - len(table.unique()) < 700


def test_frequencies_match_softmax():
    logits = torch.tensor([1.0, -1.0, 0.0, 2.5, -INF, 0.3])
    rows = 200_000
    for temperature in (1.0, 0.5, 2.0):
        uniforms = token_uniforms(torch.arange(rows), 11)
        tokens, _ = sample_tokens(logits.expand(rows, -1), uniforms, temperature)
        expected = (logits.double() / temperature).softmax(-1) * rows
        counts = torch.bincount(tokens, minlength=6).double()
        assert counts[4] == 0
        possible = expected > 0
        assert chi_square(counts[possible], expected[possible]) < 4.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logprobs_are_those_of_the_temperature(dtype):
    logits = (torch.randn(64, 50, generator=torch.Generator().manual_seed(0)) * 4).to(dtype)
    for temperature in (1.0, 0.5, 1.7):
        tokens, logprobs = sample_tokens(logits, token_uniforms(torch.arange(64), 0), temperature)
        expected = (logits.double() / temperature).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        assert logprobs.dtype == torch.float32
        torch.testing.assert_close(logprobs.double(), expected, atol=2e-6, rtol=0)


def test_greedy_takes_the_first_best_at_temperature_one():
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 3.0]])
    for uniforms in (torch.zeros(2), torch.full((2,), 1 - 2**-23)):
        tokens, logprobs = sample_tokens(logits, uniforms, 0)
        assert tokens.tolist() == [0, 1]
        torch.testing.assert_close(logprobs, torch.tensor([-0.407606, 3 - math.log(1 + 2 * math.exp(3))]))


def test_impossible_tokens_are_never_drawn():
    logits = torch.tensor([[-INF, -INF, 0.0, -INF, 1.0, -INF, -INF]])
    edges = [0.0, 2**-23, 0.25, 0.26894, 0.26895, 1 - 2**-22, 1 - 2**-23, 1 - 2**-24]
    for uniform in edges:
        tokens, logprobs = sample_tokens(logits, torch.tensor([uniform]), 1.0)
        assert tokens.item() == (2 if uniform < 0.268941 else 4)
        assert bool(logprobs.isfinite())


def test_the_ends_of_the_unit_interval_take_the_ends_of_the_vocabulary():
    logits = torch.zeros(2, 5)
    tokens, _ = sample_tokens(logits, torch.tensor([0.0, 1 - 2**-23]), 1.0)
    assert tokens.tolist() == [0, 4]


def test_a_boundary_belongs_to_the_next_token():
    # The draw is made half a step above the uniform: the second of these meets the boundary exactly.
    for uniform, token in ((0.5, 2), (0.5 - 2**-24, 2), (0.5 - 2**-23, 1)):
        tokens, _ = sample_tokens(torch.zeros(1, 4), torch.tensor([uniform]), 1.0)
        assert tokens.tolist() == [token]


def test_a_nearly_impossible_first_token_is_not_drawn_at_zero():
    tokens, _ = sample_tokens(torch.tensor([[-60.0, 0.0, 0.0]]), torch.zeros(1), 1.0)
    assert tokens.tolist() == [1]


def test_a_large_vocabulary_keeps_its_tail():
    vocabulary, rows, chunk = 150_000, 800, 50
    logits = torch.full((1, vocabulary), -12.0)
    logits[0, 0] = 0.0
    drawn = [
        sample_tokens(logits.expand(chunk, -1), token_uniforms(torch.arange(start, start + chunk), 2), 1.0)
        for start in range(0, rows, chunk)
    ]
    tokens, logprobs = (torch.cat(part) for part in zip(*drawn, strict=True))
    total = 1 + (vocabulary - 1) * math.exp(-12)
    assert abs(float((tokens == 0).double().mean()) - 1 / total) < 4.5 * math.sqrt((1 - 1 / total) / total / rows)
    tail = tokens[tokens > 0]
    assert abs(float(tail.double().mean()) / vocabulary - 0.5) < 4.5 / math.sqrt(12 * len(tail))
    expected = torch.where(tokens == 0, 0.0, -12.0) - math.log(total)
    torch.testing.assert_close(logprobs, expected, atol=2e-6, rtol=0)


def test_nan_logits_show_in_the_logprob_only():
    logits = torch.tensor([[0.0, float("nan")], [0.0, 1.0]])
    for temperature in (0, 1.0, 0.5):
        tokens, logprobs = sample_tokens(logits, torch.tensor([0.9, 0.9]), temperature)
        assert tokens.max() <= 1
        assert logprobs.isnan().tolist() == [True, False]


def kept_tokens(probs: list[float], top_p: float, top_k: int) -> set[int]:
    """The likeliest tokens one by one, the first of equals first, until their share of the k likeliest is enough."""
    order = sorted(range(len(probs)), key=lambda token: -probs[token])[: top_k or len(probs)]
    total, share, kept = math.fsum(probs[token] for token in order), 0.0, set[int]()
    for token in order:
        if share >= top_p * total and top_p < 1:
            break
        kept.add(token)
        share += probs[token]
    return kept


@pytest.mark.parametrize(
    ("top_p", "top_k"), [(0.9, 0), (0.5, 0), (1e-6, 0), (1.0, 1), (1.0, 3), (0.7, 5), (1.0, 99), (1.0, 0)]
)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_only_the_likeliest_tokens_are_drawn(temperature: float, top_p: float, top_k: int) -> None:
    generator = torch.Generator().manual_seed(int(100 * top_p) + top_k)
    logits = 2 * torch.randn((4, 9), generator=generator)
    logits[3] = 0.0  # all tokens are equally likely
    for row in logits:
        weights = [math.exp(float(score) / temperature) for score in row]
        kept = kept_tokens([weight / math.fsum(weights) for weight in weights], top_p, top_k)
        total = math.fsum(weights[token] for token in kept)
        uniforms = (torch.arange(4096) + 0.5) / 4096
        tokens, logprobs = sample_tokens(row.expand(4096, -1), uniforms, temperature, top_p=top_p, top_k=top_k)
        counts = torch.bincount(tokens, minlength=9).tolist()
        for token, count in enumerate(counts):
            share = weights[token] / total if token in kept else 0.0
            assert count == pytest.approx(4096 * share, abs=2)
        expected = [math.log(weights[token] / total) for token in tokens.tolist()]
        assert logprobs.tolist() == pytest.approx(expected, abs=1e-5)


def test_nan_logits_show_in_the_logprob_of_the_likeliest_too() -> None:
    logits = torch.tensor([[0.0, float("nan"), 1.0], [0.0, 1.0, 2.0]])
    _, logprobs = sample_tokens(logits, torch.tensor([0.9, 0.9]), 1.0, top_p=0.9, top_k=2)
    assert logprobs.isnan().tolist() == [True, False]
