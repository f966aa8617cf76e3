"""
One workload under several policies: worlds are built and played, and their records scored.

The command calls :func:`simulate` for ``dljob simulate``, and :mod:`dljob_lab.reproducing` for the
evaluations of papers. All that can be wrong with the input was found before; here everything is a
value.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from dljob.core.contract import Policy
from dljob.core.recording.record import Record as Happenings
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.world import World
from dljob.sim.jobs.workloads import Workload
from dljob.sim.results.recording import Recorder
from dljob.sim.results.records import Record
from dljob.sim.results.scoring import Score, score

Watch = Callable[[str, int, int], None]
"""Called with (policy, jobs done, jobs in all) during a replay, for a progress bar."""


class Contestant(NamedTuple):
    """A policy, and what its user called it: the name with its options."""

    label: str
    policy: Policy


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of one policy."""

    score: Score
    record: Record
    happenings: Happenings | None = None
    """All that happened, where it was asked for."""


def simulate(
    workload: Workload,
    setting: Setting,
    *,
    contestants: Iterable[Contestant],
    watch: Watch | None = None,
    records: bool = False,
) -> Iterator[Outcome]:
    """
    Play the workload once for each policy, one after the other, in an equal and fresh world.

    They come one by one, so that a caller that needs only the scores can let go of the records. With
    ``records`` each also has all that happened, for ``dljob simulate --record``.
    """
    for label, policy in contestants:
        began = time.perf_counter()
        recorder = Recorder(setting.nodes) if records else None
        bound = None if watch is None else partial(watch, label)
        world = World(workload, setting, policy=policy, watch=bound, recorder=recorder)
        record = world.play()
        happenings = None
        if recorder is not None:
            happenings = recorder.record(until=record.ended_at, policy=label, title=workload.name)
        wall_s = time.perf_counter() - began
        # Linux counts in KiB, macOS in bytes.
        scale = 1024.0 * 1024.0 if sys.platform == "darwin" else 1024.0
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale
        figures = score(record, policy=label, wall_s=wall_s, peak_rss_mb=peak_mb)
        yield Outcome(figures, record, happenings)
