"""
The figures of other simulators, met by this one: ``dljob reproduce peers``.

Two sets of them, shipped in ``profiles/peers`` with the traces that they were made from:

* what the Tiresias simulator makes of four traces of Microsoft's Philly clusters, on 64 GPUs that
  are only counted. The rules are the same, so every figure is the same to the printed digit;
* what the authors of Pollux simulated for Tiresias on their own workloads, on 16 nodes of four
  T4. The rules differ: ``docs/reproduction/tiresias.md`` says in what, and by how much.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from dljob.core.model import Mechanism, Node
from dljob.core.profiles import Costs
from dljob.sim import policies
from dljob.sim.clusters import Machines, build_counted, build_packed
from dljob.sim.engine.controlling.costs import costs_of_change
from dljob.sim.engine.settings import Setting
from dljob.sim.inputs.shipped import find_folder
from dljob.sim.inputs.tables import Table
from dljob.sim.jobs import workloads
from dljob.sim.results.scoring import Score
from dljob.sim.simulating import Contestant, Watch, simulate
from dljob_lab.reproducing.findings import Reproduction, Row

POLLUX_QUEUE_S = 16 * 3600.0
"""Pollux's authors gave Tiresias two queues, of which the first ends at this many GPU-seconds."""

POLLUX_RESTART_S = 30.0
"""Their charge for each start of a job."""

NOTES = (
    "philly: the same rules; an average published as a range is shown as the middle of it",
    "pollux: each simulator by its own rules; docs/reproduction/tiresias.md says in what they differ",
)


class Place(NamedTuple):
    """A cluster, and how its GPUs change hands."""

    nodes: tuple[Node, ...]
    costs: Costs
    mechanism: Mechanism = Mechanism.IN_PLACE


COUNTED = Place(build_counted([Machines(1, 64)]), Costs())
POLLUX = Place(
    build_packed([Machines(16, 4, "T4")]), costs_of_change(POLLUX_RESTART_S), Mechanism.RECREATE
)


class Published(NamedTuple):
    """Figures of others about one policy on one trace, in seconds."""

    trace: str
    policy: str
    figures: Mapping[str, float]
    """By the names of :data:`OURS`."""


OURS: Mapping[str, Callable[[Score], float]] = {
    "avg jct": lambda score: score.avg_jct_s,
    "p50 jct": lambda score: score.p50_jct_s,
    "p95 jct": lambda score: score.p95_jct_s,
    "p99 jct": lambda score: score.p99_jct_s,
    "makespan": lambda score: score.makespan_s,
}
"""How each quantity is read from a score of ours."""


def reproduce(watch: Watch | None) -> Reproduction:
    """Replay everything that others published figures of."""
    philly, pollux = read_philly(), read_pollux()
    played = _Playing(watch, total=len(philly) + len(pollux))
    rows = [row for published in philly for row in played.compare(published, COUNTED)]
    loads: dict[str, list[Row]] = {}
    for published in pollux:
        load = published.trace.partition("_workload")[0]
        loads.setdefault(load, []).extend(played.compare(published, POLLUX))
    means = [row for load, each in loads.items() for row in _average(load, each)]
    rows += [row for each in loads.values() for row in each]
    return Reproduction((*rows, *means), notes=NOTES)


def read_philly() -> list[Published]:
    """Read what the Tiresias simulator made of the Philly traces."""
    columns = {"avg": "avg jct", "p50": "p50 jct", "p95": "p95 jct", "p99": "p99 jct"}
    columns["makespan"] = "makespan"
    table = Table.read(
        find_folder() / "peers" / "philly_published.csv", required=("trace", "policy", *columns)
    )
    return [
        Published(
            row.name("trace"),
            row.name("policy"),
            {quantity: _read_middle(row.name(column)) for column, quantity in columns.items()},
        )
        for row in table
    ]


def _read_middle(text: str) -> float:
    """A number, or the middle of a range as ``1.5..2.5``."""
    low, _, high = text.partition("..")
    return (float(low) + float(high or low)) / 2


def read_pollux() -> list[Published]:
    """Read what Pollux's authors made of their workloads with Tiresias, by load and workload."""
    columns = {"avg_jct_s": "avg jct", "p99_jct_s": "p99 jct", "makespan_s": "makespan"}
    table = Table.read(
        find_folder() / "peers" / "pollux_published.csv",
        required=("policy", "load", "workload", *columns),
    )
    found = [
        Published(
            f"pollux_{row.name('load')}_workload-{row.name('workload')}",
            row.name("policy"),
            {quantity: row.positive(column) for column, quantity in columns.items()},
        )
        for row in table
        if row.name("policy") == "tiresias"
    ]
    return sorted(found)


class _Playing:
    """Replays one after the other, and reports progress."""

    def __init__(self, watch: Watch | None, *, total: int) -> None:
        self._watch = watch
        self._total = total
        self._done = 0

    def compare(self, published: Published, place: Place) -> Iterator[Row]:
        """Play it, and set our figures next to those that were published."""
        score = play(published, place)
        self._done += 1
        if self._watch is not None:
            self._watch("peers", self._done, self._total)
        for quantity, theirs in published.figures.items():
            item = f"{published.trace}/{published.policy}"
            yield Row(item, quantity, "s", theirs, OURS[quantity](score))


def play(published: Published, place: Place) -> Score:
    """Replay the trace as it was replayed there, as far as the rules are the same."""
    options = {"thresholds": f"{POLLUX_QUEUE_S}", "exact": "true"} if place is POLLUX else {}
    policy = policies.make(published.policy, options)
    width = max(len(node.gpus) for node in place.nodes)
    workload = workloads.read(
        find_folder() / "peers" / f"{published.trace}.csv.gz",
        rigid=True,
        speeds=None,
        seed=0,
        gpu_types=tuple(dict.fromkeys(node.gpu_type for node in place.nodes)),
        largest=sum(len(node.gpus) for node in place.nodes),
        node_gpus=width,
    )
    setting = Setting(nodes=place.nodes, costs=place.costs, mechanism=place.mechanism)
    (outcome,) = simulate(workload, setting, contestants=[Contestant(published.policy, policy)])
    return outcome.score


def _average(load: str, rows: Sequence[Row]) -> Iterator[Row]:
    """The means over the workloads of a load, and how much ours differ among them."""
    for quantity in dict.fromkeys(row.quantity for row in rows):
        some = [row for row in rows if row.quantity == quantity]
        ours = [row.ours for row in some]
        yield Row(
            f"{load}/tiresias",
            f"mean {quantity}",
            "s",
            fmean(row.paper for row in some),
            fmean(ours),
            stdev(ours),
        )
