"""Metrics that merge exactly over micro-batches, shards and batches: sums and counts, never means of means."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import nan


@dataclass(frozen=True)
class Mean:
    """A mean kept as its sum and count; of nothing it is NaN."""

    sum: float
    count: float

    def merge(self, other: "Mean") -> "Mean":
        """The mean over both parts."""
        return Mean(self.sum + other.sum, self.count + other.count)

    @property
    def value(self) -> float:
        """Sum / count, NaN when count is 0."""
        return self.sum / self.count if self.count else nan


@dataclass(frozen=True)
class Max:
    """The largest value seen; NaN wins, so it is never hidden."""

    value: float

    def merge(self, other: "Max") -> "Max":
        """The larger of both."""
        return self if self.value != self.value or self.value >= other.value else other


@dataclass(frozen=True)
class Min:
    """The smallest value seen; NaN wins, so it is never hidden."""

    value: float

    def merge(self, other: "Min") -> "Min":
        """The smaller of both."""
        return self if self.value != self.value or self.value <= other.value else other


@dataclass(frozen=True)
class Sum:
    """A total, such as a count of rows."""

    value: float

    def merge(self, other: "Sum") -> "Sum":
        """The total of both."""
        return Sum(self.value + other.value)


#: What is left of the variance of equal numbers, by their squares.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class ExplainedVariance:
    """How much of the variance of targets a forecast explains: 1 - Var(target - forecast) / Var(target).

    Kept as sums of targets and errors and of their squares. 1 is a perfect forecast, 0 one as good as any constant;
    it may be negative. Of targets that do not vary, or none, it is NaN.
    """

    count: float
    target: float
    target_squared: float
    error: float
    error_squared: float

    def merge(self, other: "ExplainedVariance") -> "ExplainedVariance":
        """Over both parts."""
        return ExplainedVariance(
            self.count + other.count,
            self.target + other.target,
            self.target_squared + other.target_squared,
            self.error + other.error,
            self.error_squared + other.error_squared,
        )

    @property
    def value(self) -> float:
        """The explained share, NaN where the targets do not vary."""
        if not self.count:
            return nan
        varied = self.target_squared - self.target**2 / self.count
        left = self.error_squared - self.error**2 / self.count
        return 1.0 - left / varied if varied > _ROUNDING * self.target_squared else nan


Metric = Mean | Max | Min | Sum | ExplainedVariance


class Metrics(Mapping[str, Metric]):
    """An immutable mapping from a metric's name, e.g. ``reward/mean``, to its Mean, Max, Min, Sum or the like."""

    def __init__(self, values: Mapping[str, Metric] | None = None) -> None:
        self._values = dict(values or {})
        for name, metric in self._values.items():
            if not isinstance(metric, Metric):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"metric `{name}` is {metric!r}: give a Mean, Max, Min or Sum, e.g. Mean(sum, count)")

    def __getitem__(self, name: str) -> Metric:
        return self._values[name]

    def __iter__(self):
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Metrics({self._values!r})"

    def merge(self, other: Mapping[str, Metric]) -> "Metrics":
        """Both mappings, equal names merged.

        Raises:
            TypeError: if a name stands for two kinds of metric.
        """
        merged = dict(self._values)
        for name, metric in other.items():
            mine = merged.get(name, metric)
            if type(mine) is not type(metric):
                raise TypeError(
                    f"metric `{name}` is a {type(mine).__name__} in one part and a {type(metric).__name__} in another"
                )
            merged[name] = metric if name not in merged else _merge(mine, metric)
        return Metrics(merged)

    def numbers(self) -> dict[str, float]:
        """Plain floats by name."""
        return {name: float(metric.value) for name, metric in self._values.items()}


def _merge(left: Metric, right: Metric) -> Metric:
    match left, right:
        case Mean(), Mean():
            return left.merge(right)
        case Max(), Max():
            return left.merge(right)
        case Min(), Min():
            return left.merge(right)
        case Sum(), Sum():
            return left.merge(right)
        case ExplainedVariance(), ExplainedVariance():
            return left.merge(right)
        case _:
            raise TypeError(f"cannot merge {left} and {right}")


def merge_all(parts: Iterable[Mapping[str, Metric]]) -> Metrics:
    """All parts merged in order."""
    merged = Metrics()
    for part in parts:
        merged = merged.merge(part)
    return merged
