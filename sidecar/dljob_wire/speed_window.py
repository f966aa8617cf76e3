"""
The speed of a training by the times of its latest iterations.

The SideCar measures with it what the training reports, and the simulator what a played training would.
"""

from __future__ import annotations

MOST_POINTS = 48
WINDOW_SECONDS = 120.0
INSTANT_SECONDS = 0.02

FEWEST_COMPARED = 8
"""With fewer reports no warm-up can be distinguished."""

CLEARLY_FASTER = 1.3
"""A start that becomes faster by this factor was warming up before."""


class SpeedWindow:
    """
    Measures the speed of one start.

    The speed is the median of the slopes between all pairs of reports (Theil and Sen), so a pause
    for a checkpoint or an evaluation has little effect, and one wrong line has none. If there are
    enough reports, the first ones are ignored, because they include compilation and warm-up; a
    longer warm-up is forgotten once the later half of the reports is clearly faster.
    """

    def __init__(self) -> None:
        self._points: list[tuple[float, float]] = []
        self._is_beginning = True
        self._speed: float | None = None
        self._is_stale = False

    def add(self, now: float, iteration: float) -> None:
        """Take a report that the training has done an iteration."""
        if self._points and iteration <= self._points[-1][1]:
            # Several ranks report the same number; a lower number begins a new count.
            if iteration < self._points[0][1]:
                self._points = [(now, iteration)]
                self._is_stale = True
            return
        if self._points and now - self._points[-1][0] < INSTANT_SECONDS:
            # Lines that are read together were not written together.
            self._points[-1] = (self._points[-1][0], iteration)
            self._is_stale = True
            return
        self._points = [point for point in self._points if now - point[0] <= WINDOW_SECONDS]
        self._points.append((now, iteration))
        if self._is_beginning and len(self._points) > 4:
            self._is_beginning = False
            del self._points[0]
        if len(self._points) > MOST_POINTS:
            # Drop every second point and keep the newest, so the window keeps its length.
            self._points = self._points[::-1][::2][::-1]
        self._is_stale = True

    @property
    def iterations_per_second(self) -> float | None:
        """The speed; None until two different iterations were reported."""
        if self._is_stale:
            self._is_stale = False
            self._forget_warm_up()
            self._speed = _slope(self._points)
        return self._speed

    def _forget_warm_up(self) -> None:
        if len(self._points) < FEWEST_COMPARED:
            return
        middle = len(self._points) // 2
        before, after = _slope(self._points[: middle + 1]), _slope(self._points[middle:])
        if before is not None and after is not None and after > CLEARLY_FASTER * before:
            del self._points[:middle]


def _slope(points: list[tuple[float, float]]) -> float | None:
    """Return the median of the slopes between all pairs of points."""
    slopes = sorted(
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for index, earlier in enumerate(points)
        for later in points[index + 1 :]
        if later[0] > earlier[0]
    )
    if not slopes:
        return None
    # Avoid the module `statistics`, which takes half a megabyte of memory.
    middle = len(slopes) // 2
    return (slopes[middle] + slopes[~middle]) / 2
