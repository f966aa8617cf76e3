"""
How long jobs still take whose length is not known: what the lengths of earlier jobs say.

A job that has trained for a while and is not done belongs to the longer ones. How much longer it
takes is the question of Gittins: the rate at which jobs that have come so far come to their end. The
index is the highest chance of an end for each second invested, and its inverse is what the job is
taken to need yet.
"""

from bisect import bisect_right
from typing import NamedTuple

MOST_REMEMBERED = 400
"""So many lengths are remembered, the latest ones."""

FEWEST = 10
"""As long as fewer jobs have ended, each counts beside what is supposed at first."""

FIRST_GUESS_SECONDS = 600.0
"""The length on one GPU from which a job of unknown length is supposed to go on, at first."""


class Experience(NamedTuple):
    """The lengths of jobs that have ended, in seconds on one GPU; sorted."""

    lengths: tuple[float, ...] = ()

    def expect_left(self, attained: float) -> float:
        """How much a job needs yet that has had so many seconds on one GPU."""
        # A length of which nothing is known at all is as likely to double as to end.
        supposed = max(attained, FIRST_GUESS_SECONDS)
        first = bisect_right(self.lengths, attained)
        later = self.lengths[first:]
        if not later:
            return supposed
        learnt = 1.0 / _find_best_rate(later, attained)
        trust = len(later) / (len(later) + FEWEST)
        return float(learnt**trust * supposed ** (1.0 - trust))


def _find_best_rate(later: tuple[float, ...], attained: float) -> float:
    """The most ends for each second that is invested in jobs which have come so far."""
    best, invested, count = 0.0, 0.0, len(later)
    before = attained
    for ended, length in enumerate(later, start=1):
        invested += (length - before) * (count - ended + 1)
        before = length
        if invested > 0.0:
            best = max(best, ended / invested)
    return best
