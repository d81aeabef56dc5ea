"""The history of a number in bounded memory: as it grows, neighbouring points merge."""

from typing import NamedTuple

MOST_POINTS = 256


class Point(NamedTuple):
    """A value, and the step it belongs to; for merged points their mean, and the last of their steps."""

    step: int
    value: float


class Series:
    """A number over steps: means of equally many neighbours; the first, latest, least and greatest value exactly."""

    __slots__ = ("_bucket", "_points", "count", "first", "greatest", "latest", "least", "stride")

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._bucket: list[float] = []
        self.stride = 1
        self.count = 0
        self.first: Point | None = None
        self.latest: Point | None = None
        self.least = float("inf")
        self.greatest = float("-inf")

    def add(self, step: int, value: float) -> None:
        """Add the next value."""
        self.latest = Point(step, value)
        self.first = self.first or self.latest
        self.least, self.greatest = min(self.least, value), max(self.greatest, value)
        self.count += 1
        self._bucket.append(value)
        if len(self._bucket) == self.stride:
            self._close_bucket(step)

    def points(self) -> list[Point]:
        """The history, at most `MOST_POINTS`; all values where there were no more than that."""
        if not self._bucket or self.latest is None:
            return list(self._points)
        return [*self._points, Point(self.latest.step, _mean(self._bucket))]

    def cut_after(self, step: int) -> None:
        """Forget what came after a step, as a run does that goes on from there."""
        if self.latest is None or self.latest.step <= step:
            return
        kept = [point for point in self._points if point.step <= step]
        self._points, self._bucket = kept, []
        self.count = len(kept) * self.stride
        self.latest = kept[-1] if kept else None
        self.first = self.first if kept else None
        self.least = min((point.value for point in kept), default=float("inf"))
        self.greatest = max((point.value for point in kept), default=float("-inf"))

    def _close_bucket(self, step: int) -> None:
        self._points.append(Point(step, _mean(self._bucket)))
        self._bucket = []
        if len(self._points) == MOST_POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [Point(right.step, left.value / 2 + right.value / 2) for left, right in pairs]
            self.stride *= 2


def _mean(values: list[float]) -> float:
    """Divided before it is summed, so that no sum is beyond the largest number."""
    return sum(value / len(values) for value in values)
