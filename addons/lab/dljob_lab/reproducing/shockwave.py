"""
Shockwave's table, with our policies next to it: ``dljob reproduce shockwave``.

Its authors' trace of 120 jobs on 32 GPUs, which are counted but not placed: decisions every 120 s,
20 s for a start or a change, jobs that run on exactly the GPUs they ask for and adapt their batch
size (:mod:`dljob_lab.shockwave_traces`). Their committed results are in ``profiles/shockwave/published.csv``.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from dljob.sim.clusters import Machines
from dljob.sim.engine.controlling.costs import costs_of_change
from dljob.sim.inputs.shipped import find_folder
from dljob.sim.inputs.tables import Table
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

ARENA = Arena(Machines(1, 32, "V100"), costs_of_change(20.0), counted=True, round_s=120.0)

ENTRIES = (
    Entry("themis", "themis", rigid=True),
    Entry("max-min", "gavel", rigid=True),
    Entry("tiresias", "gavel", rigid=True),
    Entry("srtf", "allox", rigid=True),
    Entry("srsf", "throughput", rigid=True),
    Entry("adaptive", "ossp", rigid=True),
    Entry("afs-l", "shockwave", rigid=True),
    Entry("foresight", "shockwave", rigid=True),
)
"""Each next to the one of theirs that wants the same most nearly; docs/reproduction/shockwave.md says why."""


class Figures(NamedTuple):
    """A row of the table."""

    makespan: float
    avg_jct: float
    worst_rho: float
    unfair: float
    """In percent of the jobs."""


UNITS = {"makespan": "s", "avg_jct": "s", "worst_rho": "", "unfair": "%"}


def reproduce(watch: Watch | None) -> Reproduction:
    """Play the trace under every entry."""
    published, entries = read_published(), keep_listed(ENTRIES)
    progress = Progress("shockwave", watch, total=len(entries))
    found: dict[Entry, Figures] = {}
    for entry in entries:
        outcome, _ = play(entry, find_folder() / "shockwave/shockwave_120.csv.gz", arena=ARENA)
        found[entry] = sum_up(outcome.score)
        progress.step()
    rows = tuple(_compare(found, published))
    return Reproduction(rows, notes=tuple(_say_orders(found, published)))


def read_published() -> Mapping[str, Figures]:
    """Read their figures by policy."""
    columns = ("makespan_s", "avg_jct_s", "worst_rho", "unfair_percent")
    table = Table.read(find_folder() / "shockwave" / "published.csv", required=("policy", *columns))
    return {row.name("policy"): Figures(*(row.number(each) for each in columns)) for row in table}


def sum_up(score: Score) -> Figures:
    """Take the figures of the table from a run; rho is defined in :mod:`dljob.sim.results.scoring`."""
    unfair = 100.0 * score.unfair_share
    return Figures(score.makespan_s, score.avg_jct_s, score.worst_rho, unfair)


def _compare(found: Mapping[Entry, Figures], published: Mapping[str, Figures]) -> Iterator[Row]:
    for entry, ours in found.items():
        theirs = published[entry.beside]
        for quantity, unit in UNITS.items():
            yield Row(
                f"{entry.beside}/{entry.name}",
                quantity.replace("_", " "),
                unit,
                getattr(theirs, quantity),
                getattr(ours, quantity),
            )


def _say_orders(found: Mapping[Entry, Figures], published: Mapping[str, Figures]) -> Iterator[str]:
    """Name the policies from best to worst, theirs and ours."""
    ours = {entry.name: figures for entry, figures in found.items()}
    for quantity in UNITS:
        title = quantity.replace("_", " ")
        yield f"{title}, theirs: {_order(published, quantity)}; ours: {_order(ours, quantity)}"


def _order(figures: Mapping[str, Figures], quantity: str) -> str:
    names: Iterable[str] = sorted(figures, key=lambda name: getattr(figures[name], quantity))
    return " < ".join(names)
