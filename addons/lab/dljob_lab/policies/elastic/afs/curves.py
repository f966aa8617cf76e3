"""
How fast a job is on each number of GPUs, as AFS compares jobs with each other.

Made by :mod:`dljob_lab.policies.elastic.afs.sharing` for each decision. AFS (Hwang et al., NSDI '21, section 3.2)
asks of a job with ``k`` GPUs its throughput ``p`` there and ``p'`` on one more. Its rule (3) gives
the next GPU to the longer job ``b`` of two, and not to the shorter ``a``, where
``(p'_b - p_b) / p'_b > (p'_a - p_a) / p_a``. With the *saturation* ``x = p / (p' - p)``, that is, how
many times the present speed is what one more GPU adds, the rule reads ``x_b + 1 < x_a``. So one
number of each job decides every comparison.

Where the text leaves room:

- The paper's jobs run on every integer. A job of ours has options, perhaps with gaps, and the
  algorithm hands out single GPUs nevertheless, as in the paper, where the numbers of GPUs that
  network packing allows have gaps too. Between two options the speed is taken as straight.
- The paper's curves rise and bend down (``1 < f_k <= 2``, appendix B). Measured ones need not. An option
  on which the job is no faster than on a smaller one is no option; without that rule a dip, for
  example at the second node, would end the growth for good. Otherwise a curve may bend as it likes.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

from dljob.core.assuming import AS_LONG_AGAIN, GUESSES, Assumes, Knowledge

BY_CURVES: Assumes = {
    Knowledge.LENGTH: AS_LONG_AGAIN,
    Knowledge.SPEED: "supposes that each GPU adds as much as the first",
    Knowledge.MEASURED: GUESSES,
}
"""The fallbacks of the elastic policies after AFS."""


class Curve:
    """The numbers of GPUs that are worth having, each faster than those before it, and the speeds."""

    __slots__ = ("_gains", "most", "options", "speeds")

    def __init__(self, options: Sequence[int], speeds: Sequence[float]) -> None:
        kept = [0]
        for place in range(1, len(options)):
            if speeds[place] > speeds[kept[-1]]:
                kept.append(place)
        self.options: tuple[int, ...] = tuple(options[place] for place in kept)
        self.speeds: tuple[float, ...] = tuple(speeds[place] for place in kept)
        self.most = self.options[-1]
        """The number of GPUs on which the job is fastest."""
        self._gains = tuple(
            (self.speeds[i + 1] - self.speeds[i]) / (self.options[i + 1] - self.options[i])
            for i in range(len(kept) - 1)
        )

    def speed(self, gpus: int) -> float:
        """The speed on ``gpus`` GPUs, between the smallest option and the largest."""
        place = bisect_right(self.options, gpus) - 1
        beyond = gpus - self.options[place]
        return self.speeds[place] + (beyond * self._gains[place] if beyond else 0.0)

    def gain(self, gpus: int) -> float:
        """The speed that one more GPU adds; ``gpus`` is below the largest option."""
        return self._gains[bisect_right(self.options, gpus) - 1]

    def saturation(self, gpus: int) -> float:
        """Return how many times the present speed is what one more GPU adds."""
        return self.speed(gpus) / self.gain(gpus)

    def round_down(self, gpus: int) -> int:
        """The largest option that is not above ``gpus``."""
        return self.options[bisect_right(self.options, gpus) - 1]

    def option_above(self, gpus: int) -> int | None:
        """The next larger option, if there is one."""
        place = bisect_right(self.options, gpus)
        return self.options[place] if place < len(self.options) else None


# Few kinds of jobs are many jobs, and an event leaves their speeds as they were.
@lru_cache(maxsize=4096)
def make_curve(options: tuple[int, ...], speeds: tuple[float, ...]) -> Curve:
    """The curve of these speeds; where nothing is known of the least, each GPU adds as much."""
    if speeds[0] <= 0.0:
        speeds = tuple(float(gpus) for gpus in options)
    return Curve(options, speeds)


def overestimate(
    options: tuple[int, ...], speeds: tuple[float, ...], *, measured: int
) -> tuple[float, ...]:
    """
    Suppose that beyond the largest number of GPUs that was measured each adds as much as before.

    CoDDL's "overestimate first and re-adjust later" (section 4.5); ``measured`` is 0 where nothing is.
    """
    known = [
        place for place, gpus in enumerate(options) if gpus <= measured and speeds[place] > 0.0
    ]
    if not known:
        return tuple(float(gpus) for gpus in options)
    last = known[-1]
    each = speeds[last] / options[last]
    return (*speeds[: last + 1], *(each * gpus for gpus in options[last + 1 :]))
