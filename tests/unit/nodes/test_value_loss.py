"""The clipped value loss against a scalar reference, at masked places and bounds, and how its metrics merge."""

import math

import pytest
import torch
from reference_values import explained_variance
from reference_values import value_clip as expected
from torch import Tensor

from dagrl.data.metrics import Metrics, merge_all
from dagrl.nodes import value_clip
from dagrl.ops.value_loss import explained_variance as explained_by

NAN, INF = math.nan, math.inf


def columns(seed: int, rows: int = 6, width: int = 5) -> dict[str, Tensor]:
    """Random values and returns; holes, an empty row, and nonsense where nothing is trained."""
    draw = torch.Generator().manual_seed(seed)
    mask = torch.rand((rows, width), generator=draw) > 0.3
    mask[seed % rows] = False
    found = {
        name: torch.randn((rows, width), generator=draw, dtype=torch.float64)
        for name in ("new_values", "values", "returns")
    }
    nonsense = (NAN, INF, -INF)
    found = {name: column.masked_fill(~mask, nonsense[n]) for n, (name, column) in enumerate(found.items())}
    return {**found, "response_mask": mask}


def run(given: dict[str, Tensor], eps: float) -> tuple[Tensor, Tensor, Metrics]:
    """Losses and the gradient of their sum over trained places."""
    new = given["new_values"].clone().requires_grad_()
    losses, metrics = value_clip(new, given["values"], given["returns"], given["response_mask"], eps=eps)
    losses.masked_fill(~given["response_mask"], 0.0).sum().backward()
    assert new.grad is not None
    return losses.detach().masked_fill(~given["response_mask"], 0.0), new.grad, metrics


@pytest.mark.parametrize("eps", [0.05, 0.5, INF])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_it_is_the_reference(seed: int, eps: float, dtype: torch.dtype, tolerance: float) -> None:
    exact = columns(seed)
    given = {name: column if column.dtype == torch.bool else column.to(dtype) for name, column in exact.items()}
    losses, gradient, metrics = run(given, eps)
    lists = [given[name].tolist() for name in ("new_values", "values", "returns", "response_mask")]
    *wanted, clipped = expected(*lists, eps)
    wanted_losses, wanted_gradient = (torch.tensor(rows, dtype=torch.float64) for rows in wanted)
    torch.testing.assert_close(losses.double(), wanted_losses, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradient.double(), wanted_gradient, rtol=tolerance, atol=tolerance)
    mask = given["response_mask"]
    numbers = metrics.numbers()
    assert numbers["critic/clip_fraction"] == pytest.approx(clipped)
    assert numbers["critic/value_loss"] == pytest.approx(float(wanted_losses[mask].mean()), rel=1e-5)
    known = (given["returns"][mask].tolist(), given["new_values"][mask].tolist())
    assert numbers["critic/explained_variance"] == pytest.approx(explained_variance(*known), rel=1e-6)


def test_the_number_that_everybody_knows() -> None:
    """v_old 0, v 1, return 2, clip 0.2: 0.5 max(1, 1.8^2), clipped, so without a gradient."""
    one = {"new_values": [[1.0]], "values": [[0.0]], "returns": [[2.0]]}
    given = {name: torch.tensor(value, dtype=torch.float64) for name, value in one.items()}
    losses, gradient, metrics = run({**given, "response_mask": torch.tensor([[True]])}, 0.2)
    assert losses.item() == pytest.approx(1.62)
    assert gradient.item() == 0
    assert metrics.numbers()["critic/clip_fraction"] == 1


def test_the_gradient_is_that_of_the_loss() -> None:
    given = columns(2)
    _, gradient, _ = run(given, 0.3)
    for row, place in given["response_mask"].nonzero().tolist():
        sides = []
        for step in (1e-6, -1e-6):
            moved = given["new_values"].clone()
            moved[row, place] += step
            sides.append(float(run({**given, "new_values": moved}, 0.3)[0].sum()))
        assert float(gradient[row, place]) == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=1e-5)


def test_a_number_that_is_not_finite_at_a_trained_place_is_not_hidden() -> None:
    given = columns(1)
    row, place = given["response_mask"].nonzero()[0].tolist()
    given["returns"][row, place] = NAN
    losses, _, metrics = run(given, 0.2)
    assert math.isnan(float(losses[row, place]))
    assert all(math.isnan(metrics.numbers()[name]) for name in ("critic/value_loss", "critic/explained_variance"))


def test_metrics_of_parts_merge_to_those_of_the_whole() -> None:
    given = columns(3, rows=9)
    whole = run(given, 0.2)[2].numbers()
    for size in (1, 2, 4):
        cut = [{name: column[start : start + size] for name, column in given.items()} for start in range(0, 9, size)]
        assert merge_all(run(part, 0.2)[2] for part in cut).numbers() == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize(
    ("returns", "values", "share"),
    [([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], 1.0), ([1.0, 2.0, 3.0], [5.0, 5.0, 5.0], 0.0), ([1.0, 3.0], [3.0, 1.0], -3.0),
     ([0.1] * 7, [0.3] * 7, NAN), ([], [], NAN), ([1e3, 1e3 + 1e-2], [1e3, 1e3], 0.0)],
)  # fmt: skip
def test_explained_variance(returns: list[float], values: list[float], share: float) -> None:
    given = (torch.tensor([column], dtype=torch.float64) for column in (values, returns))
    merged = explained_by(*given, torch.ones(1, len(returns), dtype=torch.bool))
    assert merged.value == pytest.approx(share, nan_ok=True, abs=1e-4)
    assert explained_variance(returns, values) == pytest.approx(share, nan_ok=True, abs=1e-6)
