"""The history of a number in bounded memory: as it grows, neighbouring points merge."""

from typing import NamedTuple

MOST_POINTS = 256


class Point(NamedTuple):
    """A value, and the step it belongs to; for merged points their mean, and the last of their steps."""

    step: int
    value: float


class Series:
    """A number over steps: means of equally many neighbours; the first, latest, least and greatest value exactly."""

    __slots__ = (
        "_points",
        "_step",
        "_value",
        "_waiting",
        "_waiting_sum",
        "count",
        "first",
        "greatest",
        "least",
        "stride",
    )

    def __init__(self) -> None:
        self._points: list[Point] = []
        # The values that are not yet a point: how many, and the sum of each by the number that makes a point. Divided
        # before it is summed, so that no sum is beyond the largest number.
        self._waiting = 0
        self._waiting_sum = 0.0
        self._step = 0
        self._value = 0.0
        self.stride = 1
        self.count = 0
        self.first: Point | None = None
        self.least = float("inf")
        self.greatest = float("-inf")

    @property
    def latest(self) -> Point | None:
        """The last value."""
        return Point(self._step, self._value) if self.count else None

    def add(self, step: int, value: float) -> None:
        """Add the next value; a log is read with hundreds of thousands of them."""
        self._step, self._value = step, value
        if self.first is None:
            self.first = Point(step, value)
        if value < self.least:
            self.least = value
        if value > self.greatest:
            self.greatest = value
        self.count += 1
        self._waiting += 1
        self._waiting_sum += value / self.stride
        if self._waiting == self.stride:
            self._end_point()

    def points(self) -> list[Point]:
        """The history, at most `MOST_POINTS`; all values where there were no more than that."""
        if not self._waiting:
            return list(self._points)
        return [*self._points, Point(self._step, self._waiting_sum * (self.stride / self._waiting))]

    def cut_after(self, step: int) -> None:
        """Forget what came after a step, as a run does that goes on from there."""
        if not self.count or self._step <= step:
            return
        kept = [point for point in self._points if point.step <= step]
        self._points, self._waiting, self._waiting_sum = kept, 0, 0.0
        self.count = len(kept) * self.stride
        if kept:
            self._step, self._value = kept[-1]
        self.first = self.first if kept else None
        self.least = min((point.value for point in kept), default=float("inf"))
        self.greatest = max((point.value for point in kept), default=float("-inf"))

    def _end_point(self) -> None:
        self._points.append(Point(self._step, self._waiting_sum))
        self._waiting, self._waiting_sum = 0, 0.0
        if len(self._points) == MOST_POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [Point(right.step, left.value / 2 + right.value / 2) for left, right in pairs]
            self.stride *= 2
