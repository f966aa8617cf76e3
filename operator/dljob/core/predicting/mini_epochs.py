"""
Coach's mini-epochs: a plan of short measurements before a job trains.

Lövenvald (Umeå University, 2021), section 4.1: "Coach runs four mini-epochs, taking 20-40 seconds
to complete for each job", with one and two workers and one and two parameter servers. ``dljob
profiles measure --mini-epochs`` carries such a plan out, and ``dljob simulate --known mini-epochs``
lets policies know its results, and charges for it (:mod:`dljob_lab.knowing`).

Parameter servers are their user's here, so of the four two are with the fewest GPUs that the job
can run on and two with the next number. A mini-epoch is as much training on all of them: the number
of iterations that takes half a minute with the fewest, which Coach finds by trial (its "initial
tuning"), and which costs one mini-epoch more.
"""

from collections.abc import Sequence
from typing import NamedTuple

SECONDS = 30.0
"""How long a mini-epoch takes with the fewest GPUs: the middle of 20 and 40."""

EACH = 2
"""How many mini-epochs there are with each number of GPUs."""


class MiniEpoch(NamedTuple):
    """A short training on a number of GPUs."""

    gpus: int
    iterations: int


def count_gpus(options: Sequence[int]) -> tuple[int, ...]:
    """The numbers of GPUs that mini-epochs measure: the two smallest that the job can run on."""
    return tuple(options[:2])


def plan(
    options: Sequence[int], per_s: float, *, seconds: float = SECONDS
) -> tuple[MiniEpoch, ...]:
    """Plan the mini-epochs of a job that makes ``per_s`` iterations a second with its fewest
    GPUs."""
    iterations = max(1, round(seconds * per_s))
    return tuple(MiniEpoch(gpus, iterations) for gpus in count_gpus(options) for _ in range(EACH))
