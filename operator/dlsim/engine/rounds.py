"""
When a simulated controller may decide, and how far it may let a job grow at once.

:mod:`dlsim.engine.world` plays by these rules where a :class:`~dlsim.engine.world.Setting` has them;
:mod:`dlsim.worlds` says which published evaluation has which. A rule that policies must obey is put
into what they see, so that every policy obeys it without knowing of it.
"""

import math
from dataclasses import dataclass, replace

from dlcore.model import Job
from dlsim.engine.kernel import RESOLUTION


def next_round(now: float, round_s: float) -> float:
    """When the present round begins, if this is its beginning, else when the next one does."""
    if round_s <= 0.0:
        return now
    # The clock counts in microseconds, and a division must not make a round of one of them.
    return math.ceil((now - RESOLUTION) / round_s) * round_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How many GPUs a job may have, given the most on which it was profiled, that is, has trained."""

    factor: int = 2
    """So many times as many as it was profiled on."""
    at_first: int = 1
    """So many before it has trained at all."""
    most: int = 64

    def limit(self, job: Job, profiled: int) -> Job:
        """
        Leave out the numbers of GPUs that the job may not have yet.

        Its smallest one and the one that it requests stay: a job that could run on none would never
        be profiled, and policies for rigid jobs know no other number than the request.
        """
        demand = job.gpus
        allowed = min(self.factor * profiled if profiled else self.at_first, self.most)
        options = tuple(
            count
            for count in demand.options
            if count <= allowed or count in (demand.options[0], demand.requested)
        )
        return (
            job
            if options == demand.options
            else replace(job, gpus=replace(demand, options=options))
        )
