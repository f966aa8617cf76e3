"""
The evaluation of the ONES paper (SC '21, section 4): ``dljob reproduce ones``.

The workload of :mod:`dljob_lab.reproducing.ones_workload` on 16 nodes of four GPUs, and on fewer nodes for Figures 17
and 18. With ``--full`` experiments change one assumption each, and a table shows what the search is worth
by its population and generations. ``docs/reproduction/ones.md`` draws the conclusions.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean, median, stdev

import numpy as np
from numpy.typing import NDArray

from dljob.core.profiles import Costs
from dljob.sim import policies
from dljob.sim.clusters import Machines, build_packed
from dljob.sim.engine.controlling.costs import costs_of_change
from dljob.sim.engine.settings import Setting
from dljob.sim.jobs.workloads import TracedJob
from dljob.sim.simulating import Contestant, Watch, simulate
from dljob_lab.reproducing.contests import Progress
from dljob_lab.reproducing.findings import Reproduction, Row, Wanted
from dljob_lab.reproducing.ones_workload import GPUS_A_NODE, PAPER, Rules, make_workload
from dljob_lab.reproducing.pooling import play_all
from dljob_lab.reproducing.waiting import waits_of

SEEDS = (0, 1, 2)

FIRST_SHARE = 0.05
"""The paper does not count the first jobs, "to capture steady state"."""

BASELINES: Mapping[str, str] = {"tiresias": "tiresias", "optimus": "optimus-periodic"}
"""By their names in the paper; its Optimus re-allocates every ten minutes."""

DRL = "drl"
"""The paper's third baseline, a network that its authors trained and did not publish."""

OURS_COSTS = Costs(pod_initialization=20.0, process_initialization=1.0)
"""Figure 16: scaling in place costs about a second; a job that starts has its data to prepare."""

THEIR_COSTS = costs_of_change(20.0)
"""Figure 16: a restart from a checkpoint costs more than 20 s."""

# --- the paper's figures ------------------------------------------------------------------

ONES_JCT_S = 244.97
"""Section 4.2."""

REDUCTIONS: Mapping[int, Mapping[str, float]] = {
    64: {"tiresias": 45.6, "optimus": 41.7, DRL: 26.9},
    16: {"tiresias": 44.0, "optimus": 24.0, DRL: 19.0},
}
"""How much less the average completion time is with ONES, in percent: sections 4.2 and 4.4."""

EXECUTION_REDUCTIONS: Mapping[str, float] = {"tiresias": 53.9}
QUEUING_REDUCTIONS: Mapping[str, float] = {"tiresias": 19.1, "optimus": 56.6, DRL: 31.3}
"""Section 4.2, in percent."""

SOON_S = 200.0
COMPLETED_SOON: Mapping[str, float] = {"ones": 86.0}
"""The percentage of jobs that are complete within 200 s (section 4.2); of the baselines "about 60-80%"."""

LONGEST_EXECUTION_S: Mapping[str, float] = {"ones": 2000.0}

TWO_SIDED: Mapping[str, float] = {"tiresias": 4.53e-8, "optimus": 7.55e-10, DRL: 5.17e-4}
ONE_SIDED: Mapping[str, float] = {"tiresias": 0.99999, "optimus": 0.99999, DRL: 0.99974}
"""Table 4: the probabilities of Wilcoxon's test."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One set of assumptions."""

    name: str
    gpus: int = 64
    policy: str = "ones"
    rules: Rules = PAPER
    epoch_part: int = 1
    """An update may come after this part of an epoch."""
    costs: Costs = OURS_COSTS


NOTE = (
    "the paper does not say how many epochs its jobs need: docs/reproduction/ones.md has our assumptions; "
    "its baseline DRL is a trained network that is not published"
)

EXPERIMENTS = (
    Case(name="as assumed"),
    Case(name="32 GPUs", gpus=32),
    Case(name="jobs of a quarter of the GPU time", rules=replace(PAPER, part=4)),
    Case(name="declared lengths instead of accuracy", rules=replace(PAPER, reports=False)),
    Case(name="updates after a tenth of an epoch", epoch_part=10),
    Case(name="long jobs are not scaled down", policy="ones:penalty=0"),
    Case(name="large batches cost no convergence", rules=replace(PAPER, free=True)),
    Case(name="fixed batches", rules=replace(PAPER, elastic=False)),
    Case(name="restarts from checkpoints", costs=THEIR_COSTS),
)
"""Each changes one assumption, or the cluster; one seed of each is played."""

SEARCHED = (1, 16)
"""Sizes of the population, and numbers of generations."""
SEARCH_GPUS = 32
"""Where jobs queue, and GPUs are free now and then."""


@dataclass(frozen=True, slots=True)
class Play:
    """A workload to be played once."""

    case: Case
    seed: int


@dataclass(frozen=True, slots=True)
class Times:
    """How long the counted jobs took, in order of arrival."""

    completion: Floats
    queuing: Floats

    @property
    def execution(self) -> Floats:
        """Without the time in the queue."""
        return self.completion - self.queuing


Found = Mapping[Play, Times]


def reproduce(
    watch: Watch | None,
    *,
    is_whole: bool = False,
    rules: Rules = PAPER,
    seeds: Sequence[int] = SEEDS,
) -> Reproduction:
    """Play the paper's comparison on 64 and 16 GPUs, and with ``is_whole`` all that it depends on."""
    cases = [Case(name=f"{gpus} GPUs", gpus=gpus, rules=rules) for gpus in (64, 16)]
    experiments = list(_list_experiments(rules)) if is_whole else []
    searches = list(_list_searches(rules)) if is_whole else []
    planned = [play for case in cases for play in _plan(case, seeds)]
    planned += [play for case in experiments for play in _plan(case, seeds[:1])]
    planned += [_plan_ones(case, seed) for case in searches for seed in seeds]
    plays = list(dict.fromkeys(planned))
    progress = Progress("ones", watch, total=len(plays))
    found = dict(zip(plays, play_all(play_once, plays, step=progress.step), strict=True))
    compared = [_Compared(case, found, seeds) for case in cases]
    changed = [_Compared(case, found, seeds[:1]) for case in experiments]
    rows = [
        *(row for each in compared for row in each.iter_reductions()),
        *compared[0].iter_details(),
        *(row for each in compared for row in each.iter_absolute()),
        *(row for each in changed for row in each.iter_changed()),
        *(_show_search(case, found, seeds) for case in searches),
    ]
    return Reproduction(tuple(rows), notes=(NOTE,))


def _list_experiments(rules: Rules) -> Iterator[Case]:
    """With as many jobs as these rules have."""
    for each in EXPERIMENTS:
        yield replace(each, rules=replace(each.rules, jobs=rules.jobs))


def _list_searches(rules: Rules) -> Iterator[Case]:
    for population, generations in product(SEARCHED, SEARCHED):
        options = f"population={population}:generations={generations}:evaluations=1000000"
        yield Case(
            name=f"population of {population}/generations: {generations}",
            gpus=SEARCH_GPUS,
            policy=f"ones:{options}",
            rules=rules,
        )


def play_policies() -> Mapping[str, Times]:
    """Play the first workload of the paper under the three schedulers, by their names in the paper."""
    plays = list(_plan(Case(name="", rules=PAPER), [0]))
    return dict(zip(("ones", *BASELINES), play_all(play_once, plays), strict=True))


def _plan(case: Case, seeds: Sequence[int]) -> Iterator[Play]:
    for seed in seeds:
        yield _plan_ones(case, seed)
        for policy in BASELINES.values():
            yield _plan_theirs(case, policy, seed)


def _plan_ones(case: Case, seed: int) -> Play:
    return Play(replace(case, name=""), seed)


def _plan_theirs(case: Case, policy: str, seed: int) -> Play:
    """Leave out what a policy that neither counts epochs nor changes batches does not notice."""
    rules = replace(case.rules, elastic=PAPER.elastic, free=PAPER.free)
    return Play(Case(name="", gpus=case.gpus, policy=policy, rules=rules, costs=THEIR_COSTS), seed)


def play_once(play: Play) -> Times:
    """Play a workload, and count its jobs but for the first."""
    case = play.case
    workload = make_workload(play.seed, case.rules)
    if case.epoch_part > 1:
        jobs = tuple(_cut(each, case.epoch_part) for each in workload.jobs)
        workload = replace(workload, jobs=jobs)
    nodes = build_packed([Machines(case.gpus // GPUS_A_NODE, GPUS_A_NODE, "V100")])
    setting = Setting(nodes=nodes, costs=case.costs, seed=play.seed)
    contestant = Contestant(case.policy, policies.read(case.policy))
    (outcome,) = simulate(workload, setting, contestants=[contestant])
    record = outcome.record
    assert len(record.completed) == len(workload.jobs)
    counted = record.jobs[math.ceil(FIRST_SHARE * len(record.jobs)) :]
    waits = waits_of(record)
    return Times(
        np.array([job.jct for job in counted]), np.array([waits[job.job] for job in counted])
    )


def _cut(traced: TracedJob, part: int) -> TracedJob:
    """Let an epoch end sooner, with as much to train in all."""
    training = traced.job.training
    each = max(1, (training.iterations_per_epoch or 1) // part)
    return replace(
        traced, job=replace(traced.job, training=replace(training, iterations_per_epoch=each))
    )


class _Compared:
    """The three schedulers in one case, in rows."""

    def __init__(self, case: Case, found: Found, seeds: Sequence[int]) -> None:
        self._case = case
        self.ones = [found[_plan_ones(case, seed)] for seed in seeds]
        self.theirs = {
            name: [found[_plan_theirs(case, policy, seed)] for seed in seeds]
            for name, policy in BASELINES.items()
        }

    def iter_reductions(self) -> Iterator[Row]:
        """By how much the average completion time is less with ONES (Figure 18)."""
        yield from self._reduce("completion", "jct reduction", REDUCTIONS.get(self._case.gpus, {}))

    def iter_changed(self) -> Iterator[Row]:
        """The same in an experiment, which the paper does not have."""
        yield from self._reduce("completion", "jct reduction in an experiment", {})

    def iter_absolute(self) -> Iterator[Row]:
        """The average completion times themselves (Figures 15a and 17)."""
        is_largest = self._case.gpus == 64
        for name, runs in (("ones", self.ones), *self.theirs.items()):
            paper = 0.0
            if is_largest:
                less = REDUCTIONS[64].get(name, 0.0)
                paper = ONES_JCT_S / (1.0 - less / 100.0)
            ours = [float(run.completion.mean()) for run in runs]
            wanted = Wanted.LESS if is_largest and name == "ones" else None
            yield self._row(name, "avg jct", "s", paper=paper, ours=ours, wanted=wanted)

    def iter_details(self) -> Iterator[Row]:
        """The other figures of Figure 15, its text and Table 4."""
        yield from self._reduce("execution", "execution time reduction", EXECUTION_REDUCTIONS)
        yield from self._reduce("queuing", "queuing time reduction", QUEUING_REDUCTIONS)
        for name, runs in (("ones", self.ones), *self.theirs.items()):
            soon = [100.0 * float((run.completion <= SOON_S).mean()) for run in runs]
            paper, quantity = COMPLETED_SOON.get(name, 0.0), f"completed within {SOON_S:.0f} s"
            yield self._row(
                name, quantity, "%", paper=paper, ours=soon, wanted=Wanted.MORE if paper else None
            )
            longest = [float(run.execution.max()) for run in runs]
            paper = LONGEST_EXECUTION_S.get(name, 0.0)
            wanted = Wanted.LESS if paper else None
            yield self._row(
                name, "longest execution", "s", paper=paper, ours=longest, wanted=wanted
            )
        yield from self._test("two-sided", TWO_SIDED, wanted=Wanted.LESS)
        yield from self._test("greater", ONE_SIDED, wanted=Wanted.MORE)

    def _reduce(self, part: str, quantity: str, papers: Mapping[str, float]) -> Iterator[Row]:
        for name, runs in self.theirs.items():
            ours = [
                100.0 * (1.0 - getattr(a, part).mean() / getattr(b, part).mean())
                if getattr(b, part).any()
                else math.nan
                for a, b in zip(self.ones, runs, strict=True)
            ]
            paper = papers.get(name, 0.0)
            wanted = Wanted.MORE if paper else None
            yield self._row(name, quantity, "%", paper=paper, ours=ours, wanted=wanted)
        if DRL in papers:
            yield self._miss(quantity, "%", papers)

    def _miss(self, quantity: str, unit: str, papers: Mapping[str, float]) -> Row:
        """The row of the baseline that was not published."""
        item, paper = f"{self._case.name}/{DRL}", papers[DRL]
        return Row(item, quantity, unit, paper, math.nan, wanted=Wanted.MORE, is_tried=False)

    def _test(self, kind: str, papers: Mapping[str, float], *, wanted: Wanted) -> Iterator[Row]:
        """
        Table 4: Wilcoxon's test on the completion times of each job, the median over the seeds.

        The paper's one-sided test gives a probability near 1 where ONES is ahead, so its alternative is
        that ONES takes longer.
        """
        # An extra brings scipy, and the policies need to be importable without it.
        from scipy.stats import wilcoxon  # noqa: PLC0415

        quantity = f"wilcoxon p, {'one-sided' if kind == 'greater' else kind}"
        for name, runs in self.theirs.items():
            found = [
                float(wilcoxon(a.completion, b.completion, alternative=kind).pvalue)
                for a, b in zip(self.ones, runs, strict=True)
            ]
            item = f"{self._case.name}/{name}"
            yield Row(item, quantity, "", papers[name], median(found), wanted=wanted)
        yield self._miss(quantity, "", papers)

    def _row(
        self,
        name: str,
        quantity: str,
        unit: str,
        *,
        paper: float,
        ours: Sequence[float],
        wanted: Wanted | None,
    ) -> Row:
        spread = stdev(ours) if len(ours) > 1 else 0.0
        item = f"{self._case.name}/{name}"
        return Row(item, quantity, unit, paper, fmean(ours), spread, wanted)


def _show_search(case: Case, found: Found, seeds: Sequence[int]) -> Row:
    ours = [float(found[_plan_ones(case, seed)].completion.mean()) for seed in seeds]
    spread = stdev(ours) if len(ours) > 1 else 0.0
    quantity = f"avg jct by the search on {case.gpus} GPUs"
    return Row(case.name, quantity, "s", 0.0, fmean(ours), spread)
