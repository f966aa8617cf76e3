"""
Rubick's trace under our policies: ``dljob reproduce rubick``.

The 406 jobs of its base workload on eight nodes of eight A800, with decisions every 60 s and 260 s
for a start and for each change, as its simulator has it. Nothing is published of the trace that ours could be
set next to job by job; what it does say is how long each job runs on the GPUs that it asks for, with
the execution plan that its user chose. The mean of that is the first column: what the average
completion time would be if every job ran at once, as asked for, and started for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

from dljob.sim.clusters import Machines
from dljob.sim.engine.controlling.costs import costs_of_change
from dljob.sim.inputs.shipped import find_folder
from dljob.sim.inputs.traces import read_trace
from dljob.sim.results.scoring import Score
from dljob.sim.simulating import Watch
from dljob_lab.reproducing.contests import (
    Arena,
    Entry,
    Progress,
    keep_listed,
    play,
)
from dljob_lab.reproducing.findings import Reproduction, Row
from dljob_lab.rubick_traces import GPU_TYPE

CHANGE_S = 260.0

ROUND_S = 60.0

ARENA = Arena(Machines(8, 8, GPU_TYPE), costs_of_change(CHANGE_S), round_s=ROUND_S)

AS_ASKED = "as asked for, at once"

ENTRIES = (
    Entry("fifo", AS_ASKED, rigid=True),
    Entry("tiresias", AS_ASKED, rigid=True),
    Entry("srtf", AS_ASKED, rigid=True),
    Entry("srsf", AS_ASKED, rigid=True),
    Entry("optimus-periodic", AS_ASKED),
    Entry("optimus", AS_ASKED),
    Entry("max-min", AS_ASKED),
    Entry("adaptive", AS_ASKED),
    Entry("themis", AS_ASKED),
    Entry("afs-l", AS_ASKED),
    Entry("foresight", AS_ASKED),
    Entry("sia", AS_ASKED),
)

WIDE = 24
"""The number of GPUs from which a job is wide: the least that LLaMA-30B asks for."""


def reproduce(watch: Watch | None, *, is_whole: bool = False) -> Reproduction:
    """Play the trace under every entry; those that search for minutes only if all is wanted."""
    path = find_folder() / "rubick" / "rubick_base.csv.gz"
    entries = [entry for entry in keep_listed(ENTRIES) if is_whole or not entry.is_slow]
    progress = Progress("rubick", watch, total=len(entries))
    alone, rows = measure_alone(path), list[Row]()
    for entry in entries:
        outcome, _ = play(entry, path, arena=ARENA)
        wide = [job.jct for job in outcome.record.completed if job.requested >= WIDE]
        rows += _compare(entry, outcome.score, wide_s=fmean(wide), alone=alone)
        progress.step()
    notes = (
        f"avg jct: next to the mean of the durations in the trace, {AS_ASKED}",
        f"wide avg jct: of the jobs that ask for {WIDE} GPUs or more",
    )
    return Reproduction(tuple(rows), notes=notes)


def measure(entry: Entry, path: Path) -> tuple[Score, float]:
    """Play a trace under one entry; return its score and the average completion time of wide jobs."""
    outcome, _ = play(entry, path, arena=ARENA)
    wide = [job.jct for job in outcome.record.completed if job.requested >= WIDE]
    return outcome.score, fmean(wide)


def measure_alone(path: Path) -> Mapping[str, float]:
    """The means of the durations in the trace, and the least time that all of it could take."""
    requests = read_trace(path).requests
    wide = [each.duration for each in requests if each.gpus >= WIDE]
    last = max(each.submitted_at + each.duration for each in requests)
    return {
        "avg jct": fmean(each.duration for each in requests),
        "wide avg jct": fmean(wide),
        "makespan": last - requests[0].submitted_at,
    }


def _compare(
    entry: Entry, score: Score, *, wide_s: float, alone: Mapping[str, float]
) -> Iterator[Row]:
    ours = {"avg jct": score.avg_jct_s, "wide avg jct": wide_s, "makespan": score.makespan_s}
    for quantity, seconds in ours.items():
        yield Row(entry.name, quantity, "s", alone[quantity], seconds)
