"""How long jobs wait for GPUs, as papers count it: until all that they need to train are theirs."""

from collections.abc import Mapping

from dljob.core.model import JobId
from dljob.sim.results.records import Happening, Record

LEAVES = frozenset({Happening.STOPPED, Happening.LOST})


def waits_of(record: Record) -> Mapping[JobId, float]:
    """
    Return the seconds of each job in the queue, at its beginning and whenever it lost all its GPUs.

    A job whose gang comes together bit by bit waits until the last of its GPUs is granted, because it cannot train before.
    """
    since: dict[JobId, float] = {}
    granted: dict[JobId, float] = {}
    waits: dict[JobId, float] = {}
    for entry in record.log:
        job = entry.job
        if entry.what is Happening.SUBMITTED or entry.what in LEAVES:
            _end_wait(job, since, granted, waits=waits)
            since[job] = entry.time
        elif entry.what is Happening.GRANTED:
            granted[job] = entry.time
        elif entry.what is Happening.TRAINS:
            _end_wait(job, since, granted, waits=waits)
    return waits


def _end_wait(
    job: JobId, since: dict[JobId, float], granted: dict[JobId, float], *, waits: dict[JobId, float]
) -> None:
    began, ended = since.pop(job, None), granted.pop(job, None)
    if began is not None and ended is not None:
        waits[job] = waits.get(job, 0.0) + ended - began
