"""
For how long a change of GPUs is expected to last.

The gain of a change has to pay for its cost before the next change follows. A job that was changed a
moment ago will likely be changed again soon, because the cause of that change is still in motion. So a
change of a running job is expected to last as long as the job has had its GPUs, or as long as jobs
usually keep theirs: the geometric mean of both.
"""

import math
from collections.abc import Mapping

from dljob.core.contract import View
from dljob.core.model import JobId
from dljob.core.policies.foresight.memory import Memory, Tenure

SHORTEST_S = 1.0

NOVELTY = 0.05
"""The part that the latest tenure has in the usual one."""


def expect_tenure(known: Tenure | None, usual: float, *, now: float) -> float:
    """Return for how many seconds a change is expected to last; infinite if nothing limits it."""
    if known is None or usual <= 0.0:
        return math.inf
    return math.sqrt(max(SHORTEST_S, now - known.since) * usual)


def remember_tenures(memory: Memory, view: View) -> tuple[Mapping[JobId, Tenure], float]:
    """Return since when each running job has its GPUs, and for how long jobs usually keep theirs."""
    tenures: dict[JobId, Tenure] = {}
    for state in (*view.running, *view.beside):
        assert state.placement is not None
        known, shape = memory.tenures.get(state.id), state.placement.shape
        if known is None or known.shape != shape:
            known = Tenure(shape, view.now)
        elif not known.has_trained and not state.adjusting:
            known = known._replace(has_trained=True)
        tenures[state.id] = known
    usual = memory.usual_tenure
    # The end of a job is no change: each bid has its own, and that of one job says nothing about others.
    stopped = view.pending.select([job for job in memory.tenures if job not in tenures])
    for job, known in memory.tenures.items():
        is_over = job in stopped or (job in tenures and tenures[job].since != known.since)
        # A job that is changed while it still starts was given its GPUs too early, not for too long.
        if is_over and known.has_trained:
            lasted = max(SHORTEST_S, view.now - known.since)
            usual = usual ** (1.0 - NOVELTY) * lasted**NOVELTY if usual > 0.0 else lasted
    return tenures, usual
