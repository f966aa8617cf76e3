"""
DRAGON's evaluation, played again: ``dljob reproduce dragon``.

The twelve jobs of Table 1 on two nodes of four GPUs, and a hundred drawn jobs on four nodes of eight,
under Kubeflow, the locality-aware scheduler and DRAGON (sections 4.2 and 4.3). The assumptions
are in :mod:`dljob_lab.reproducing.dragon_jobs` and in ``docs/reproduction/dragon.md``;
``benchmarks/dragon_sensitivity.py`` changes them, one at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from dljob.core.model import Mechanism, Node
from dljob.core.profiles import Costs
from dljob.sim import policies
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.world import World
from dljob.sim.jobs.workloads import Workload
from dljob.sim.results.records import JobRecord
from dljob.sim.results.scoring import score
from dljob.sim.simulating import Watch
from dljob_lab.reproducing.dragon_jobs import (
    COSTS,
    SIMULATED,
    TESTBED,
    USUAL,
    Assumptions,
    make_simulated,
    make_testbed,
)
from dljob_lab.reproducing.findings import Reproduction, Row

SCHEDULERS = {"kubeflow": "kube-pods", "locality": "locality", "dragon": "dragon"}
"""The three of section 4.1, by the policies that play them."""

INTENSITIES = (0.5, 1.0, 2.0, 3.0, 4.0)
"""Of Figures 9 and 10."""
SEEDS = 3

AT_ONCE_S = 1.0
"""A job that waits no longer than this starts at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The results of one scheduler, in seconds and shares."""

    elapsed_s: float
    waiting_s: float
    scaling_s: float
    running_s: float
    makespan_s: float
    utilization: float
    at_once: int
    """How many jobs started as soon as they came."""
    runs_s: tuple[float, ...]
    """How long each job was from its first GPUs to its end."""


Outcomes = Mapping[str, Outcome]
"""By scheduler."""


def play(
    workload: Workload, nodes: tuple[Node, ...], *, policy: str, costs: Costs = COSTS
) -> Outcome:
    """Play a workload once."""
    setting = Setting(nodes=nodes, mechanism=Mechanism.RECREATE, costs=costs)
    record = World(workload, setting, policy=policies.read(policy)).play()
    figures = score(record, policy=policy)
    waits = [_wait_of(job) for job in record.jobs]
    runs = tuple(job.jct - wait for job, wait in zip(record.jobs, waits, strict=True))
    scaling = fmean(job.lost_s for job in record.jobs)
    return Outcome(
        elapsed_s=figures.avg_jct_s,
        waiting_s=fmean(waits),
        scaling_s=scaling,
        running_s=fmean(runs) - scaling,
        makespan_s=figures.makespan_s,
        utilization=figures.utilization,
        at_once=sum(wait < AT_ONCE_S for wait in waits),
        runs_s=runs,
    )


def _wait_of(job: JobRecord) -> float:
    assert job.started_at is not None
    return job.started_at - job.submitted_at


def play_testbed(
    assumptions: Assumptions = USUAL, *, costs: Costs = COSTS, options: str = ""
) -> Outcomes:
    """Table 1 under all three; ``options`` are DRAGON's, as in ``:idle_seconds=300``."""
    found = {}
    for name, policy in SCHEDULERS.items():
        workload = make_testbed(assumptions, spread=name == "kubeflow")
        chosen = policy + options if name == "dragon" else policy
        found[name] = play(workload, TESTBED, policy=chosen, costs=costs)
    return found


def play_simulated(intensity: float) -> Outcomes:
    """The hundred jobs at one intensity under all three: means over the seeds."""
    found = {}
    for name, policy in SCHEDULERS.items():
        runs = [
            play(
                make_simulated(intensity, seed, spread=name == "kubeflow"), SIMULATED, policy=policy
            )
            for seed in range(SEEDS)
        ]
        found[name] = _average(runs)
    return found


def _average(runs: Sequence[Outcome]) -> Outcome:
    return Outcome(
        elapsed_s=fmean(run.elapsed_s for run in runs),
        waiting_s=fmean(run.waiting_s for run in runs),
        scaling_s=fmean(run.scaling_s for run in runs),
        running_s=fmean(run.running_s for run in runs),
        makespan_s=fmean(run.makespan_s for run in runs),
        utilization=fmean(run.utilization for run in runs),
        at_once=round(fmean(run.at_once for run in runs)),
        runs_s=(),
    )


def reduce_elapsed(found: Outcomes, ours: str, *, baseline: str) -> float:
    """Return by how many percent one scheduler's average elapsed time is below another's."""
    return 100.0 * (1.0 - found[ours].elapsed_s / found[baseline].elapsed_s)


def reproduce(watch: Watch | None) -> Reproduction:
    """Play everything and set the paper's figures next to ours."""
    testbed = play_testbed()
    simulated = {}
    for done, intensity in enumerate(INTENSITIES, start=1):
        simulated[intensity] = play_simulated(intensity)
        if watch is not None:
            watch("dragon", done, len(INTENSITIES))
    rows = tuple(_compare(testbed))
    return Reproduction(rows, notes=tuple(_say(testbed, simulated)))


def _compare(found: Outcomes) -> Iterator[Row]:
    for name, paper in (("dragon", 65.0), ("locality", 60.0)):
        ours = reduce_elapsed(found, name, baseline="kubeflow")
        yield Row(f"testbed/{name}", "elapsed time below kubeflow", "%", paper, ours)
    for name, paper in (("dragon", 79.0), ("locality", 45.0), ("kubeflow", 57.0)):
        yield Row(f"testbed/{name}", "utilization", "%", paper, 100.0 * found[name].utilization)
    whole = found["kubeflow"].elapsed_s
    for name, paper in (("dragon", 0.30), ("locality", 0.38), ("kubeflow", 0.66)):
        ours = found[name].running_s / whole
        yield Row(f"testbed/{name}", "running over kubeflow's elapsed", "", paper, ours)
    waiting = found["kubeflow"].waiting_s / whole
    yield Row("testbed/kubeflow", "waiting over its elapsed", "", 0.34, waiting)
    ratios = compare_runs(found)
    yield Row("testbed/kubeflow", "longest run over dragon's", "", 6.3, max(ratios))
    yield Row("testbed/kubeflow", "shortest run over dragon's", "", 1.2, min(ratios))
    yield Row("testbed/kubeflow", "makespan", "s", 7200.0, found["kubeflow"].makespan_s)


SHORT = {"elapsed time below kubeflow": "time saved"}
"""The text below a bar, where the name of the quantity is too long."""


def compare_runs(found: Outcomes) -> list[float]:
    """Return how much longer each job runs under Kubeflow than under DRAGON (Figure 6)."""
    pairs = zip(found["kubeflow"].runs_s, found["dragon"].runs_s, strict=True)
    return [theirs / ours for theirs, ours in pairs]


def _say(testbed: Outcomes, simulated: Mapping[float, Outcomes]) -> Iterator[str]:
    yield (
        "Assumed, because the paper does not say: arrivals in minutes, batches of 64 (fitted to the two "
        "hours of Kubeflow's run), and what a parameter server on another node costs over 1 Gb/s. "
        "docs/reproduction/dragon.md has the reasons and what hangs on each."
    )
    for name, found in testbed.items():
        yield (
            f"testbed, {name}: elapsed {found.elapsed_s:,.0f} s, of which waiting "
            f"{found.waiting_s:,.0f} s and scaling {found.scaling_s:,.0f} s; makespan "
            f"{found.makespan_s:,.0f} s; {found.at_once} of 12 jobs start at once."
        )
    for intensity, runs in simulated.items():
        yield (
            f"simulated, intensity {intensity:g} (figures 9 and 10, whose values are not printed): "
            f"elapsed time {reduce_elapsed(runs, 'dragon', baseline='locality'):.0f} % below locality's and "
            f"{reduce_elapsed(runs, 'dragon', baseline='kubeflow'):.0f} % below kubeflow's."
        )
