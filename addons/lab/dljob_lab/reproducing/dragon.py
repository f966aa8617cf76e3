"""
DRAGON's evaluation, played again: ``dljob reproduce dragon``.

The twelve jobs of Table 1 on two nodes of four GPUs, and a hundred drawn jobs on four nodes of eight,
under Kubeflow, the locality-aware scheduler and DRAGON (sections 4.2 and 4.3). The assumptions
are in :mod:`dljob_lab.reproducing.dragon_jobs` and in ``docs/reproduction/dragon.md``;
``benchmarks/dragon_sensitivity.py`` changes them, one at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from dljob.core.model import Mechanism, Node
from dljob.core.profiles import Costs
from dljob.sim import policies
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.world import World
from dljob.sim.jobs.workloads import Workload
from dljob.sim.results.records import Record
from dljob.sim.results.scoring import score
from dljob.sim.simulating import Watch
from dljob_lab.reproducing.contests import Progress
from dljob_lab.reproducing.dragon_jobs import (
    COSTS,
    SIMULATED,
    TABLE_1,
    TESTBED,
    USUAL,
    Assumptions,
    Network,
    make_simulated,
    make_testbed,
)
from dljob_lab.reproducing.findings import Reproduction, Row, Wanted
from dljob_lab.reproducing.pooling import play_all
from dljob_lab.reproducing.waiting import waits_of

SCHEDULERS = {"kubeflow": "kube-pods", "locality": "locality", "dragon": "dragon"}
"""The three of section 4.1, by the policies that play them."""

INTENSITIES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
"""The ticks of Figures 9 and 10."""
SEEDS = 3

AT_ONCE_S = 1.0
"""A job that waits no longer than this starts at once."""

SOON_S = 31.0
"""DRAGON makes room only for a job that has waited for its threshold of 30 s."""

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The results of one scheduler, in seconds and shares."""

    elapsed_s: float
    waiting_s: float
    """Until all GPUs of a job are its own: a part of a gang does not train."""
    scaling_s: float
    running_s: float
    makespan_s: float
    utilization: float
    waits_s: tuple[float, ...] = ()
    """How long each job waited."""
    runs_s: tuple[float, ...] = ()
    """How long each job was from there to its end."""
    record: Record | None = None


Outcomes = Mapping[str, Outcome]
"""By scheduler."""


def play(
    workload: Workload,
    nodes: tuple[Node, ...],
    *,
    policy: str,
    costs: Costs = COSTS,
    assumptions: Assumptions = USUAL,
) -> Outcome:
    """Play a workload once."""
    spread = spreads(policy, assumptions)
    network = Network(nodes, spread=spread, assumptions=assumptions)
    setting = Setting(
        nodes=nodes,
        mechanism=Mechanism.RECREATE,
        costs=costs,
        contention=network.leave_shares if assumptions.shares_network else None,
    )
    record = World(workload, setting, policy=policies.read(policy)).play()
    figures, waits = score(record, policy=policy), waits_of(record)
    runs = tuple(job.jct - waits[job.job] for job in record.jobs)
    scaling = fmean(job.lost_s for job in record.jobs)
    return Outcome(
        elapsed_s=figures.avg_jct_s,
        waiting_s=fmean(waits.values()),
        scaling_s=scaling,
        running_s=fmean(runs) - scaling,
        makespan_s=figures.makespan_s,
        utilization=figures.utilization,
        waits_s=tuple(waits[job.job] for job in record.jobs),
        runs_s=runs,
        record=record,
    )


def spreads(policy: str, assumptions: Assumptions) -> bool:
    """Return whether a scheduler puts parameter servers on other nodes than the workers."""
    return policy == SCHEDULERS["kubeflow"] and assumptions.spreads_servers


def play_testbed(
    assumptions: Assumptions = USUAL, *, costs: Costs = COSTS, options: str = ""
) -> Outcomes:
    """Table 1 under all three; ``options`` are DRAGON's, as in ``:idle_seconds=300``."""
    found = {}
    for name, policy in SCHEDULERS.items():
        workload = make_testbed(assumptions, spread=spreads(policy, assumptions))
        chosen = policy + options if name == "dragon" else policy
        found[name] = play(workload, TESTBED, policy=chosen, costs=costs, assumptions=assumptions)
    return found


def play_simulated(intensity: float) -> Outcomes:
    """The hundred jobs at one intensity under all three: means over the seeds."""
    found = {}
    for name, policy in SCHEDULERS.items():
        spread = spreads(policy, USUAL)
        runs = [
            play(make_simulated(intensity, seed, spread=spread), SIMULATED, policy=policy)
            for seed in range(SEEDS)
        ]
        found[name] = _average(runs)
    return found


def play_intensities(step: Callable[[], None] = lambda: None) -> Mapping[float, Outcomes]:
    """Figures 9 and 10: the hundred jobs at every intensity; ``step`` is called after each."""
    outcomes = play_all(play_simulated, INTENSITIES, step=step)
    return dict(zip(INTENSITIES, outcomes, strict=True))


def _average(runs: Sequence[Outcome]) -> Outcome:
    return Outcome(
        elapsed_s=fmean(run.elapsed_s for run in runs),
        waiting_s=fmean(run.waiting_s for run in runs),
        scaling_s=fmean(run.scaling_s for run in runs),
        running_s=fmean(run.running_s for run in runs),
        makespan_s=fmean(run.makespan_s for run in runs),
        utilization=fmean(run.utilization for run in runs),
    )


def reduce_elapsed(found: Outcomes, ours: str, *, baseline: str, part: str = "elapsed_s") -> float:
    """Return by how many percent one scheduler's average elapsed time, or a part of it, is below another's."""
    theirs = float(getattr(found[baseline], part))
    return 100.0 * (1.0 - float(getattr(found[ours], part)) / theirs) if theirs else 0.0


def reproduce(watch: Watch | None) -> Reproduction:
    """Play everything and set the paper's figures next to ours."""
    testbed, progress = play_testbed(), Progress("dragon", watch, total=len(INTENSITIES))
    simulated = play_intensities(progress.step)
    rows = (*_compare(testbed), *_list_hours(testbed), *_list_reductions(simulated))
    return Reproduction(rows, notes=tuple(_say(testbed)))


def _compare(found: Outcomes) -> Iterator[Row]:
    more, less, same = Wanted.MORE, Wanted.LESS, Wanted.SAME
    for name, paper in (("dragon", 65.0), ("locality", 60.0)):
        ours = reduce_elapsed(found, name, baseline="kubeflow")
        yield Row(f"testbed/{name}", "elapsed time below kubeflow", "%", paper, ours, wanted=more)
    for name, paper in (("dragon", 79.0), ("locality", 45.0), ("kubeflow", 57.0)):
        ours = 100.0 * found[name].utilization
        wanted = more if name == "dragon" else same
        yield Row(f"testbed/{name}", "utilization", "%", paper, ours, wanted=wanted)
    whole = found["kubeflow"].elapsed_s
    for name, paper in (("dragon", 0.30), ("locality", 0.38), ("kubeflow", 0.66)):
        ours, wanted = found[name].running_s / whole, same if name == "kubeflow" else less
        quantity = "running over kubeflow's elapsed"
        yield Row(f"testbed/{name}", quantity, "", paper, ours, wanted=wanted)
    # Figure 7 prints DRAGON's waiting and scaling as 0.03 and 0.02, without saying which is which.
    for name, paper in (("dragon", 0.05), ("locality", 0.04), ("kubeflow", 0.34)):
        ours = (found[name].waiting_s + found[name].scaling_s) / whole
        quantity, wanted = "waiting over kubeflow's elapsed", same if name == "kubeflow" else less
        yield Row(f"testbed/{name}", quantity, "", paper, ours, wanted=wanted)
    ratios = compare_runs(found)
    item = "testbed/kubeflow"
    yield Row(item, "longest run over dragon's", "x", 6.3, max(ratios), wanted=more)
    yield Row(item, "shortest run over dragon's", "x", 1.2, min(ratios), wanted=more)
    makespan = found["kubeflow"].makespan_s
    yield Row(item, "makespan", "s", 7200.0, makespan, wanted=same, in_sample=True)
    for name in ("dragon", "locality", "kubeflow"):
        # "More than half of jobs were launched immediately by locality-aware scheduler and DRAGON."
        paper = 0.0 if name == "kubeflow" else len(TABLE_1) // 2 + 1.0
        for quantity, limit_s in (
            ("start at once", AT_ONCE_S),
            (f"start within {SOON_S:.0f} s", SOON_S),
        ):
            ours = float(sum(wait < limit_s for wait in found[name].waits_s))
            claimed = paper if limit_s == AT_ONCE_S else 0.0
            wanted_ = more if claimed else None
            yield Row(f"testbed/{name}", quantity, "jobs", claimed, ours, wanted=wanted_)


SHORT = {"elapsed time below kubeflow": "time saved"}
"""The text below a bar, where the name of the quantity is too long."""


def compare_runs(found: Outcomes) -> list[float]:
    """Return how much longer each job runs under Kubeflow than under DRAGON (Figure 6)."""
    pairs = zip(found["kubeflow"].runs_s, found["dragon"].runs_s, strict=True)
    return [theirs / ours for theirs, ours in pairs]


def _list_hours(found: Outcomes) -> Iterator[Row]:
    """
    Figure 8, whose curves have no numbers, by hours.

    In the second hour "only one job left to run on a single GPU" under Kubeflow.
    """
    for name in ("dragon", "locality", "kubeflow"):
        record = found[name].record
        assert record is not None
        for hour in (0, 1):
            ours = _measure_use(record, hour * HOUR_S, (hour + 1) * HOUR_S)
            quantity = f"utilization in hour {hour + 1}"
            is_told = name == "kubeflow" and hour == 1
            paper, wanted = (100.0 / record.gpus, Wanted.SAME) if is_told else (0.0, None)
            yield Row(f"figure 8/{name}", quantity, "%", paper, ours, wanted=wanted)


def _measure_use(record: Record, begin: float, end: float) -> float:
    """The percentage of GPUs held between two times."""
    times = (*record.series.time, record.ended_at)
    held = 0.0
    for now, later, used in zip(times, times[1:], record.series.used, strict=False):
        held += used * max(0.0, min(later, end) - max(now, begin))
    return 100.0 * held / (record.gpus * (end - begin))


PARTS = {"elapsed": "elapsed_s", "running": "running_s", "waiting": "waiting_s"}
FIGURES = {"locality": "figure 9", "kubeflow": "figure 10"}


def _list_reductions(simulated: Mapping[float, Outcomes]) -> Iterator[Row]:
    """Figures 9 and 10, whose values are not printed."""
    for baseline, figure in FIGURES.items():
        for intensity, found in simulated.items():
            for part, field in PARTS.items():
                ours = reduce_elapsed(found, "dragon", baseline=baseline, part=field)
                yield Row(f"{figure}/{intensity:g}", f"{part} time reduction", "%", 0.0, ours)


def _say(testbed: Outcomes) -> Iterator[str]:
    yield (
        f"Assumed, because the paper does not say: arrivals in minutes, batches of {USUAL.batch} (fitted to the "
        "two hours of Kubeflow's run), and what a parameter server on another node costs over 1 Gb/s. "
        "docs/reproduction/dragon.md has the reasons and what hangs on each."
    )
    for name, found in testbed.items():
        yield (
            f"testbed, {name}: elapsed {found.elapsed_s:,.0f} s, of which waiting "
            f"{found.waiting_s:,.0f} s and scaling {found.scaling_s:,.0f} s; makespan "
            f"{found.makespan_s:,.0f} s."
        )
