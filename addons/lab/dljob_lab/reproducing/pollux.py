"""
Pollux's and Sia's worlds on Pollux's workloads: ``dljob reproduce pollux`` and ``sia``.

Pollux's authors published the simulated results of three policies on five workloads of each of
four loads (``profiles/peers/pollux_published.csv``): their own, and their versions of Optimus and
of Tiresias. Next to each are the policies of ours that are like it, by the rules of that world
(:mod:`dljob_lab.worlds`). Sia's rules are played on the same workloads; its authors published no
figures for these, so the table shows Pollux's next to ours there too, which says how much harder its charges
and its slower jobs make the same workload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import NamedTuple

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
from dljob_lab.reproducing.pooling import play_all
from dljob_lab.worlds import WORLDS

TIRESIAS = "tiresias:thresholds=57600:exact=true"
"""With the two queues that Pollux's authors gave it: one up to 16 GPU-hours, one beyond."""

ENTRIES = (
    Entry(TIRESIAS, "tiresias", rigid=True),
    Entry("optimus-periodic", "optimus"),
    Entry("optimus", "optimus"),
    Entry("srsf", "pollux", rigid=True),
    Entry("max-min", "pollux"),
    Entry("adaptive", "pollux"),
    Entry("themis", "pollux"),
    Entry("afs-l", "pollux"),
    Entry("foresight", "pollux"),
    Entry("sia", "pollux"),
)

FIGURES: Mapping[str, Callable[[Score], float]] = {
    "avg_jct_s": lambda score: score.avg_jct_s,
    "p99_jct_s": lambda score: score.p99_jct_s,
    "makespan_s": lambda score: score.makespan_s,
}
"""The columns of the published figures, and what they are compared with."""

QUANTITIES = {"avg_jct_s": "avg jct", "p99_jct_s": "p99 jct", "makespan_s": "makespan"}

SLOW_LOADS = frozenset({"0.5", "1.0"})
"""Where a policy that searches for minutes is played, unless everything is asked for."""

NOTES = {
    "pollux": "pollux: batch sizes stay as requested here, theirs grow; see docs/reproduction/pollux.md",
    "sia": "sia: next to Pollux's published figures, which are of Pollux's world",
}


class Place(NamedTuple):
    """One of the workloads."""

    load: str
    workload: str

    @property
    def trace(self) -> str:
        """The name of its file."""
        return f"pollux_{self.load}_workload-{self.workload}.csv.gz"


Published = Mapping[Place, Mapping[str, Mapping[str, float]]]
"""By workload, policy and column."""


class Played(NamedTuple):
    """The results of one replay."""

    place: Place
    entry: Entry
    score: Score


def reproduce(
    watch: Watch | None, *, world: str = "pollux", is_whole: bool = False
) -> Reproduction:
    """
    Play the workloads under every entry by the rules of a world.

    All twenty where that world is Pollux's, and one of each load for Sia's, unless the whole is
    asked for; policies that search for minutes get one of each of the two lower loads.
    """
    published = read_published()
    plan = list(_plan(published, world, is_whole=is_whole))
    progress = Progress(world, watch, total=len(plan))
    # A policy that searches for minutes begins first, so that no processor waits for it alone at the end.
    plan.sort(key=lambda each: not each[1].is_slow)
    played = list(play_all(partial(_play, world=world), plan, step=progress.step))
    played.sort(key=lambda each: (each.place, ENTRIES.index(each.entry)))
    rows = tuple(compare(played, published))
    return Reproduction(rows, notes=(NOTES[world],))


def _play(what: tuple[Place, Entry], *, world: str) -> Played:
    place, entry = what
    outcome, _ = play(entry, find_folder() / "peers" / place.trace, arena=make_arena(world))
    return Played(place, entry, outcome.score)


def make_arena(world: str) -> Arena:
    """Build the cluster of that world."""
    rules = WORLDS[world]
    (machines,) = rules.machines
    return Arena(machines, rules.costs, rules=rules)


def read_published() -> Published:
    """Read the authors' figures, in order of load and workload."""
    columns = tuple(FIGURES)
    required = ("policy", "load", "workload", *columns)
    found: dict[Place, dict[str, Mapping[str, float]]] = {}
    for row in Table.read(find_folder() / "peers" / "pollux_published.csv", required=required):
        place = Place(row.name("load"), row.name("workload"))
        figures = {column: row.positive(column) for column in columns}
        found.setdefault(place, {})[row.name("policy")] = figures
    return dict(sorted(found.items()))


def _plan(published: Published, world: str, *, is_whole: bool) -> Iterator[tuple[Place, Entry]]:
    for place in published:
        for entry in keep_listed(ENTRIES):
            if plays(entry, place, published=published, world=world, is_whole=is_whole):
                yield place, entry


def plays(entry: Entry, place: Place, *, published: Published, world: str, is_whole: bool) -> bool:
    """Return whether the entry is played on this workload in that world."""
    if is_whole or (world != "sia" and not entry.is_slow):
        return True
    is_first = place == next(each for each in published if each.load == place.load)
    return is_first and not (entry.is_slow and place.load not in SLOW_LOADS)


def compare(played: Sequence[Played], published: Published) -> Iterator[Row]:
    """Set the means over the workloads of a load next to those of the same workloads."""
    groups: dict[tuple[str, Entry], list[Played]] = {}
    for each in played:
        groups.setdefault((each.place.load, each.entry), []).append(each)
    for (load, entry), group in sorted(groups.items(), key=lambda pair: pair[0][0]):
        for column, read in FIGURES.items():
            theirs = [published[each.place][entry.beside][column] for each in group]
            ours = [read(each.score) for each in group]
            spread = stdev(ours) if len(ours) > 1 else 0.0
            item = f"load-{load}/{entry.beside}/{entry.name}"
            yield Row(item, f"mean {QUANTITIES[column]}", "s", fmean(theirs), fmean(ours), spread)
