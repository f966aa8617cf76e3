"""
How long jobs still take whose length is not known: what the lengths of earlier jobs say.

A job that has trained for a while and is not done belongs to the longer ones: of the earlier jobs only
those count that took longer still. One number would hide how uncertain that is. Jobs of which the same
is known would be served one after the other as if their order were known, where equal shares are best.
So a job of unknown length has several, each as likely as the others; prices are found for each and
averaged (:mod:`.pricing`).
"""

import hashlib
from bisect import bisect_right
from typing import NamedTuple

from dljob.core.model import JobId

MOST_REMEMBERED = 400
"""The number of lengths that are remembered, the latest ones."""

FEWEST = 10
"""As long as fewer jobs have ended, the first guess counts more than their lengths."""

FIRST_GUESS_SECONDS = 600.0
"""The median length on one GPU that is supposed of a job at first."""


class Experience(NamedTuple):
    """The lengths of jobs that have ended, in seconds on one GPU; sorted."""

    lengths: tuple[float, ...] = ()

    def expect_left(self, attained: float, share: float) -> float:
        """
        The remaining need of a job that has had ``attained`` seconds on one GPU.

        It needs less with the probability ``share``. Before anything was learnt, a job is as likely to
        need as much again as it has had as not to.
        """
        supposed = max(attained, FIRST_GUESS_SECONDS) * share / (1.0 - share)
        later = self.lengths[bisect_right(self.lengths, attained) :]
        if not later:
            return supposed
        learnt = max(1e-9, later[int(share * len(later))] - attained)
        trust = len(later) / (len(later) + FEWEST)
        return float(learnt**trust * supposed ** (1.0 - trust))


def draw_shares(job: JobId, seed: int, *, samples: int) -> list[float]:
    """The probabilities at which the lengths of a job are taken: evenly spread, in an order of its own."""
    # Not crc32: it is linear, so that names of one length would share a handful of orders.
    digest = hashlib.blake2b(f"{seed}/{job}".encode(), digest_size=4 * samples).digest()
    order = sorted(range(samples), key=lambda n: digest[4 * n : 4 * n + 4])
    return [(n + 0.5) / samples for n in order]
