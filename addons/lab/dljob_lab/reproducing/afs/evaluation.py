"""
The evaluation of AFS on Philly's virtual clusters: ``dljob reproduce afs``.

Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning" (NSDI '21), section 5. As figures the paper gives
a range over the traces for some pairs of policies, and for traces 9 and 3 averages that can be divided by each
other; the other bars and curves of its figures 2 and 5 to 13 have no numbers. Windows of the traces are played for three seeds,
and with ``--full`` the whole traces once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from dljob.sim.errors import BadInput
from dljob.sim.inputs.shipped import find_folder
from dljob.sim.simulating import Watch
from dljob_lab.reproducing.afs.plays import Figures, Task, Variant, play
from dljob_lab.reproducing.afs.workload import CLUSTERS
from dljob_lab.reproducing.contests import Progress
from dljob_lab.reproducing.findings import Reproduction, Row, Wanted
from dljob_lab.reproducing.pooling import play_all

SEEDS = (0, 1, 2)
WINDOW = 200
"""The jobs of a window in the usual form."""

RESTART_S = 30.0
"""The cost of a restart where it is not free: "tens of seconds" (section 2.1, Figure 1)."""

HEAVY = "b436b2"
"""Trace 3, of heavy contention (Figure 2b)."""
NO_LENGTH, NO_EFFICIENCY = "without length", "without efficiency"
"""AFS-L without one of its two terms."""


RIGID = ("srtf", "srsf", "tiresias")
ELASTIC = ("srtf-e", "srsf-e", "max-min", "themis", "afs-l", "afs-p", "afs-s")

VARIANTS = (
    *(Variant(policy, policy) for policy in (*RIGID, *ELASTIC)),
    Variant("optimus", "optimus-periodic"),
    Variant(NO_LENGTH, "afs-l:by_length=false"),
    Variant(NO_EFFICIENCY, "afs-l:by_efficiency=false"),
    *(Variant(f"greedy {policy}", policy, is_greedy=True) for policy in RIGID),
    Variant("afs-p with restarts", "afs-p", restart_s=RESTART_S),
)
"""Played on every trace. The paper's Optimus shares out again periodically."""


class Claim(NamedTuple):
    """By how many times a policy's figure is above another's."""

    slower: str
    faster: str
    quantity: str
    """``least`` or ``greatest`` of the traces, or the trace that it is about."""
    paper: float
    wanted: Wanted = Wanted.MORE


CLAIMS = (
    # Section 5.2.
    Claim("srtf", "afs-l", "least", 1.2),
    Claim("srtf", "afs-l", "greatest", 2.7),
    Claim("tiresias", "afs-p", "least", 1.9),
    Claim("tiresias", "afs-p", "greatest", 3.1),
    Claim("themis", "afs-p", "least", 1.2),
    Claim("themis", "afs-p", "greatest", 2.2),
    # Figure 6. Of the one trace that improves the text says "by 21% and 17%".
    Claim("greedy srtf", "srtf", "greatest", 4.85),
    Claim("greedy srsf", "srsf", "greatest", 5.84),
    Claim("greedy tiresias", "tiresias", "greatest", 16.14),
    Claim("greedy srtf", "srtf", "least", 0.79, Wanted.SAME),
    Claim("greedy srsf", "srsf", "least", 0.83, Wanted.SAME),
    # Figure 13: at most twice.
    Claim("afs-p", "afs-l", "greatest", 2.0, Wanted.LESS),
    # Section 2.2, in hours and in days. That these are traces 9 and 3 follows from section 5.3.
    Claim("srtf", "afs-l", "2869ce", 31.1 / 15.2),
    Claim("srsf", "afs-l", "2869ce", 32.8 / 15.2),
    Claim("max-min", "afs-l", "2869ce", 18.3 / 15.2),
    Claim("srtf", "afs-l", HEAVY, 3.53 / 2.40),
    Claim("srsf", "afs-l", HEAVY, 3.32 / 2.40),
    Claim("max-min", "afs-l", HEAVY, 63.20 / 2.40),
    # Section 5.3, Figure 7: on real machines, with all times scaled down.
    Claim("tiresias", "afs-p", "2869ce", 3.54),
    Claim("optimus", "afs-p", "2869ce", 1.12),
    Claim("themis", "afs-p", "2869ce", 1.22),
    Claim("tiresias", "afs-p", HEAVY, 2.93),
    Claim("optimus", "afs-p", HEAVY, 1.66),
    Claim("themis", "afs-p", HEAVY, 1.30),
)

MAX_MIN_AHEAD = 5
"""Section 2.2: the number of traces, of eleven, on which Max-Min is ahead of both SRTF and SRSF."""

PAIRS = (
    *(("afs-l", slower) for slower in ("srtf", "srsf", "srtf-e", "srsf-e", "optimus", "max-min")),
    *(("afs-p", slower) for slower in ("tiresias", "themis", "max-min", "optimus", "afs-s")),
    *(("afs-l", slower) for slower in ("afs-p", NO_LENGTH, NO_EFFICIENCY)),
    *((policy, f"greedy {policy}") for policy in RIGID),
    ("afs-p", "afs-p with restarts"),
)
"""The pairs that are shown for each trace: the faster policy by the paper, and the slower one."""

NOT_TRIED = {
    "day 50 of 11cb48/one job without cancelling over with it": 2.12,
    "day 50 of 11cb48/one job by full restarts": 2.82,
    "day 116 of 11cb48/one job without cancelling over with it": 1.19,
    "day 116 of 11cb48/one job by full restarts": 1.30,
}
"""Figure 8: the file at hand spans 89 days, and does not say on which day of the paper it begins."""

NOTES = (
    "the speeds of the paper's nine models are not published: docs/reproduction/afs.md says which curves stand for them",
    "a paper figure of 0 means that the paper has a bar without a number, or none",
)

Played = Mapping[str, Mapping[str, Sequence[Figures]]]
"""In order of the seeds, by the cluster and the name of the variant."""


def reproduce(watch: Watch | None, *, is_whole: bool = False) -> Reproduction:
    """Play windows of the shipped traces for each seed, or all that is shipped."""
    folder = find_folder()
    folders = [folder / "afs", folder / "peers"]
    if is_whole:
        return reproduce_from(watch, folders)
    return _reproduce(watch, folders, seeds=SEEDS, is_whole=False)


def reproduce_from(watch: Watch | None, folders: Sequence[Path]) -> Reproduction:
    """Play the traces in these folders whole: ``philly_CLUSTER.csv`` or the same with ``.gz``."""
    return _reproduce(watch, folders, seeds=SEEDS[:1], is_whole=True)


def _reproduce(
    watch: Watch | None, folders: Sequence[Path], *, seeds: Sequence[int], is_whole: bool
) -> Reproduction:
    paths = dict(find_traces(folders))
    if not paths:
        remedy = f"name them philly_CLUSTER.csv with one of {', '.join(CLUSTERS)}"
        raise BadInput(folders[0], "no trace of a Philly cluster is in it", remedy=remedy)
    tasks = [
        Task(cluster, path, variant, seed, None if is_whole else WINDOW)
        for cluster, path in paths.items()
        for seed in seeds
        for variant in VARIANTS
    ]
    progress = Progress("afs", watch, total=len(tasks))
    played: dict[str, dict[str, list[Figures]]] = {}
    for task, figures in zip(tasks, play_all(play, tasks, step=progress.step), strict=True):
        played.setdefault(task.cluster, {}).setdefault(task.variant.name, []).append(figures)
    return Reproduction(tuple(make_rows(played)), notes=(*_count_jobs(played), *NOTES))


def find_traces(folders: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Find the file of each cluster, in the order of Table 3; the first folder that has it is taken."""
    for cluster in CLUSTERS:
        names = (f"philly_{cluster}.csv", f"philly_{cluster}.csv.gz")
        found = (folder / name for folder in folders for name in names)
        path = next((each for each in found if each.is_file()), None)
        if path is not None:
            yield cluster, path


def _count_jobs(played: Played) -> Iterator[str]:
    jobs = sum(
        len(frozenset().union(*(figures.jobs for figures in next(iter(variants.values())))))
        for variants in played.values()
    )
    yield f"{jobs:,} of the {sum(CLUSTERS.values()):,} jobs of the paper's Table 3 are played"


# --- rows ---------------------------------------------------------------------------------


def make_rows(played: Played) -> Iterator[Row]:
    """The paper's figures with ours next to them, and all else that its figures show."""
    yield from _compare_ranges(played)
    yield from _count_max_min(played)
    for cluster, variants in played.items():
        yield from _compare_pairs(cluster, variants)
    for cluster, variants in played.items():
        yield from _describe(cluster, variants)
    for item, paper in NOT_TRIED.items():
        yield Row(item, "time of the job", "x", paper, nan, wanted=Wanted.MORE, is_tried=False)


class _Ratio(NamedTuple):
    mean: float
    spread: float


def _divide(
    variants: Mapping[str, Sequence[Figures]], slower: str, faster: str, quantity: str = "avg_jct_s"
) -> _Ratio | None:
    """Return by how many times the figure of one is above that of the other, seed by seed."""
    if slower not in variants or faster not in variants:
        return None
    pairs = zip(variants[slower], variants[faster], strict=True)
    ratios = [getattr(above, quantity) / getattr(below, quantity) for above, below in pairs]
    return _Ratio(fmean(ratios), stdev(ratios) if len(ratios) > 1 else 0.0)


def _compare_ranges(played: Played) -> Iterator[Row]:
    for claim in CLAIMS:
        if claim.quantity not in ("least", "greatest"):
            continue
        found = (_divide(variants, claim.slower, claim.faster) for variants in played.values())
        ratios = [ratio for ratio in found if ratio is not None]
        if ratios:
            ours = (min if claim.quantity == "least" else max)(ratios)
            quantity = f"{claim.quantity} avg jct ratio"
            item = f"all traces/{claim.slower} over {claim.faster}"
            yield Row(item, quantity, "x", claim.paper, ours.mean, ours.spread, claim.wanted)


def _count_max_min(played: Played) -> Iterator[Row]:
    rivals = ("srtf", "srsf")
    found = [[_divide(each, rival, "max-min") for rival in rivals] for each in played.values()]
    compared = [[ratio for ratio in pair if ratio is not None] for pair in found]
    if all(map(len, compared)):
        ahead = sum(all(ratio.mean > 1.0 for ratio in pair) for pair in compared)
        item = "all traces/max-min ahead of srtf and srsf"
        yield Row(item, "traces", "of 11", MAX_MIN_AHEAD, ahead, wanted=Wanted.SAME)


def _compare_pairs(cluster: str, variants: Mapping[str, Sequence[Figures]]) -> Iterator[Row]:
    """All ratios of a trace: the bars of Figures 5, 6, 9, 11 and 13, and the averages of sections 2.2 and 5.3."""
    claims = {(each.faster, each.slower): each for each in CLAIMS if each.quantity == cluster}
    for faster, slower in PAIRS:
        item = f"{cluster}/{slower} over {faster}"
        ratio = _divide(variants, slower, faster)
        if ratio is not None:
            claim = claims.get((faster, slower))
            paper, wanted = (claim.paper, claim.wanted) if claim else (0.0, None)
            yield Row(item, "avg jct ratio", "x", paper, ratio.mean, ratio.spread, wanted)
        tail = _divide(variants, slower, faster, "p99_jct_s")
        if tail is not None:
            yield Row(item, "p99 jct ratio", "x", 0.0, tail.mean, tail.spread)


LEVELS = {
    "queue": ("queue length", "jobs"),
    "efficiency": ("cluster efficiency", ""),
    "blocking": ("blocking index", ""),
}
"""The metrics of section 2.2, averaged over time (Figures 2 and 7 show them over time)."""


def _describe(cluster: str, variants: Mapping[str, Sequence[Figures]]) -> Iterator[Row]:
    for variant, seeds in variants.items():
        for field, (quantity, unit) in LEVELS.items():
            values = [getattr(figures, field) for figures in seeds]
            spread = stdev(values) if len(values) > 1 else 0.0
            yield Row(f"{cluster}/{variant}", quantity, unit, 0.0, fmean(values), spread)
