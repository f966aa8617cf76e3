"""
The evaluation of AFS on Philly's virtual clusters: ``dljob reproduce afs``.

Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning" (NSDI '21), section 5.1: 64 GPUs on 16
machines of four, and each of eleven traces of Table 3 by itself. A job gets a model by lot among those
that scale to its request, and as much work as it did on that. Changes are free. As figures the paper
gives a range over the traces for each pair of policies, and for two traces averages
that can be divided by each other; the bars of its figure 5 have no numbers.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from dljob.core.profiles import Costs
from dljob.sim import policies
from dljob.sim.clusters import Machines, build_packed
from dljob.sim.engine.settings import Setting
from dljob.sim.errors import BadInput
from dljob.sim.inputs.shipped import find_folder
from dljob.sim.jobs import workloads
from dljob.sim.simulating import Contestant, Watch, simulate
from dljob_lab.reproducing.findings import Reproduction, Row

CLUSTERS = (
    *("0e4a51", "6c71a0", "b436b2", "e13805", "6214e9", "7f04ca"),
    *("103959", "ee9e8c", "2869ce", "11cb48", "ed69ec"),
)
"""The virtual clusters of Table 3, in its order."""

MACHINES = Machines(16, 4)

NO_LENGTH, NO_EFFICIENCY = "afs-l:by_length=false", "afs-l:by_efficiency=false"
"""AFS-L without one of its two terms."""

KNOWN_LENGTHS = ("srtf", "srsf", "srtf-e", "srsf-e", "optimus", "afs-l", NO_LENGTH, NO_EFFICIENCY)
UNKNOWN_LENGTHS = ("tiresias", "max-min", "themis", "afs-p", "afs-s")
"""The paper's two categories; a policy that this version does not list is left out."""


class Claim(NamedTuple):
    """By how many times a policy's average JCT is above another's."""

    slower: str
    faster: str
    quantity: str
    """``least`` or ``greatest`` of the traces, or the trace that it is about."""
    paper: float


CLAIMS = (
    Claim("srtf", "afs-l", "least", 1.2),
    Claim("srtf", "afs-l", "greatest", 2.7),
    Claim("tiresias", "afs-p", "least", 1.9),
    Claim("tiresias", "afs-p", "greatest", 3.1),
    Claim("themis", "afs-p", "least", 1.2),
    Claim("themis", "afs-p", "greatest", 2.2),
    # Figure 13: at most twice.
    Claim("afs-p", "afs-l", "greatest", 2.0),
    # Section 2.2, in hours and in days. That these are traces 9 and 3 follows from section 5.3.
    Claim("srtf", "afs-l", "2869ce", 31.1 / 15.2),
    Claim("srsf", "afs-l", "2869ce", 32.8 / 15.2),
    Claim("max-min", "afs-l", "2869ce", 18.3 / 15.2),
    Claim("srtf", "afs-l", "b436b2", 3.53 / 2.40),
    Claim("srsf", "afs-l", "b436b2", 3.32 / 2.40),
    Claim("max-min", "afs-l", "b436b2", 63.20 / 2.40),
)

PAIRS = (
    *(("afs-l", slower) for slower in ("srtf", "srsf", "srtf-e", "srsf-e", "optimus", "max-min")),
    *(("afs-p", slower) for slower in ("tiresias", "themis", "max-min", "optimus", "afs-s")),
    *(("afs-l", slower) for slower in ("afs-p", NO_LENGTH, NO_EFFICIENCY)),
)
"""The pairs that are shown for each trace: the faster policy by the paper, and the slower one."""

NOTES = (
    (
        "the paper's traces are larger: ours are a subset of their jobs, and of seven of the eleven a "
        "window of 400 jobs; --traces DIR plays whole ones"
    ),
    (
        "the paper's nine models were measured on GTX 1080s and are not published: jobs get A100 curves "
        "of ElasticFlow by lot"
    ),
    "a paper figure of 0 means that the paper has a bar without a number, or none",
)

Times = Mapping[str, Mapping[str, float]]
"""Average completion times in seconds, by cluster and policy."""


def reproduce(watch: Watch | None) -> Reproduction:
    """Play what is shipped: four traces whole and windows of the others."""
    folder = find_folder()
    return reproduce_from(watch, [folder / "peers", folder / "afs"])


def reproduce_from(watch: Watch | None, folders: Iterable[Path]) -> Reproduction:
    """Play the traces in these folders, named ``philly_CLUSTER.csv`` or the same with ``.gz``."""
    places = list(folders)
    paths = dict(_find_traces(places))
    if not paths:
        remedy = f"name them philly_CLUSTER.csv with one of {', '.join(CLUSTERS)}"
        raise BadInput(places[0], "no trace of a Philly cluster is in it", remedy=remedy)
    times: dict[str, Mapping[str, float]] = {}
    for done, (cluster, path) in enumerate(paths.items()):
        if watch is not None:
            watch("afs", done, len(paths))
        times[cluster] = play(path, (*KNOWN_LENGTHS, *UNKNOWN_LENGTHS))
    rows = (*iter_claims(times), *iter_pairs(times))
    return Reproduction(rows, notes=NOTES)


def _find_traces(folders: list[Path]) -> Iterator[tuple[str, Path]]:
    for cluster in CLUSTERS:
        names = (f"philly_{cluster}.csv", f"philly_{cluster}.csv.gz")
        found = (folder / name for folder in folders for name in names)
        path = next((each for each in found if each.is_file()), None)
        if path is not None:
            yield cluster, path


def play(path: Path, names: Iterable[str]) -> dict[str, float]:
    """The average completion time of each policy on a trace."""
    nodes = build_packed([MACHINES])
    workload = workloads.read(
        path,
        rigid=False,
        speeds=None,
        seed=0,
        gpu_types=("",),
        largest=MACHINES.nodes * MACHINES.gpus,
        node_gpus=MACHINES.gpus,
    )
    listed = [name for name in names if name.partition(":")[0] in policies.NAMES]
    contestants = [Contestant(name, policies.read(name)) for name in listed]
    setting = Setting(nodes=nodes, costs=Costs())
    return {
        outcome.score.policy: outcome.score.avg_jct_s
        for outcome in simulate(workload, setting, contestants=contestants)
    }


def _divide(times: Times, slower: str, *, faster: str) -> dict[str, float]:
    return {
        cluster: each[slower] / each[faster]
        for cluster, each in times.items()
        if slower in each and faster in each
    }


def iter_claims(times: Times) -> Iterator[Row]:
    """The paper's figures, and ours next to them."""
    for claim in CLAIMS:
        ratios = _divide(times, claim.slower, faster=claim.faster)
        if not ratios:
            continue
        item = f"{claim.slower} / {claim.faster}"
        if claim.quantity in ("least", "greatest"):
            ours = (min if claim.quantity == "least" else max)(ratios.values())
            yield Row(item, f"{claim.quantity} avg jct ratio", "x", claim.paper, ours)
        elif claim.quantity in ratios:
            item = f"philly_{claim.quantity}/{item}"
            yield Row(item, "avg jct ratio", "x", claim.paper, ratios[claim.quantity])


def iter_pairs(times: Times) -> Iterator[Row]:
    """All ratios of all traces that no claim is about: the bars of figures 5, 11 and 13."""
    claimed = {(claim.quantity, claim.faster, claim.slower) for claim in CLAIMS}
    for faster, slower in PAIRS:
        for cluster, ratio in _divide(times, slower, faster=faster).items():
            if (cluster, faster, slower) not in claimed:
                item = f"philly_{cluster}/{slower} / {faster}"
                yield Row(item, "avg jct ratio", "x", 0.0, ratio)
