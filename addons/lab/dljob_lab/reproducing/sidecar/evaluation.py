"""
The SideCar paper's evaluation, played again: ``dljob reproduce sidecar``.

First its case study (:mod:`dljob_lab.reproducing.sidecar.case`), then its four workloads
(:mod:`dljob_lab.reproducing.sidecar.runs`), all with the constants of
:mod:`dljob_lab.reproducing.sidecar.constants`. Here rows are made of the paper's figures and ours.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean, median

from dljob.sim.simulating import Watch
from dljob_lab.reproducing.findings import Reproduction, Row, Wanted
from dljob_lab.reproducing.sidecar.case import compare, play_case
from dljob_lab.reproducing.sidecar.constants import FROZEN, HELD_OUT
from dljob_lab.reproducing.sidecar.job_types import JOB_SET_ONE, make_profile
from dljob_lab.reproducing.sidecar.published import (
    ADDING,
    PENDING_AT_LAST,
    REDUCTIONS,
    SHARES,
)
from dljob_lab.reproducing.sidecar.runs import (
    APPROACHES,
    BASELINES,
    DEFAULT_SCHEDULER,
    OURS,
    SEEDS,
    Outcomes,
    Spread,
    play_seeds,
    reduce_by,
    spread_of,
)
from dljob_lab.reproducing.sidecar.workloads import PLANS
from dljob_wire.messages import Shape

Runs = Mapping[str, Sequence[Outcomes]]
"""The results of each workload, in order of the seeds."""


def reproduce(watch: Watch | None) -> Reproduction:
    """Play everything and set the paper's figures next to ours."""
    runs = play_seeds(PLANS, watch=watch)
    rows = (*_compare_cases(), *_compare_types(), *_compare_workloads(runs))
    return Reproduction(rows, notes=tuple(_say(runs)))


def _compare_cases() -> Iterator[Row]:
    """The times of the case study: as fitted to all of them, and of each approach as predicted from the others."""
    for event, paper, ours in compare(play_case(FROZEN)):
        item = f"case/{event}"
        yield Row(item, "time", "s", paper, ours, wanted=Wanted.SAME, in_sample=True)
    for approach, constants in HELD_OUT.items():
        for event, paper, ours in compare(play_case(constants)):
            if event.partition("/")[0] == approach:
                yield Row(f"held out/{event}", "time", "s", paper, ours, wanted=Wanted.SAME)


ITERATIONS_S = {("V100", 1): 0.18, ("V100", 2): 0.14, ("P100", 1): 0.25, ("P100", 2): 0.19}
"""Table IV: an iteration of job type 0, which is the first of Table VI."""

GROWTHS = {2: 1.7, 4: 2.4}
"""Section I: how many times as fast a ResNet trains on several GPUs as on one."""


def _compare_types() -> Iterator[Row]:
    """Set the paper's statements on the speeds of its jobs next to the rule that stands for them here."""
    kind = JOB_SET_ONE[0]
    speeds = make_profile(kind, ("V100", "P100")).speeds
    for (gpu_type, gpus), paper in ITERATIONS_S.items():
        ours = 1.0 / speeds[Shape(gpus, 1, gpu_type)].iterations_per_s
        item = f"types/{kind.model} {kind.batch_size} on {gpus} {gpu_type}"
        yield Row(item, "time of an iteration", "s", paper, ours, wanted=Wanted.SAME)
    alone = speeds[Shape(1, 1, "V100")].iterations_per_s
    for gpus, paper in GROWTHS.items():
        ours = speeds[Shape(gpus, 1, "V100")].iterations_per_s / alone
        item = f"types/{kind.model} {kind.batch_size} on {gpus} V100"
        yield Row(item, "speed over one GPU", "x", paper, ours, wanted=Wanted.SAME)


REDUCED = {"makespan_s": "makespan reduction", "avg_jct_s": "jct reduction"}


def _compare_workloads(runs: Runs) -> Iterator[Row]:
    for name, seeds in runs.items():
        for baseline, field, approach in product(BASELINES, REDUCED, (OURS, DEFAULT_SCHEDULER)):
            paper = getattr(REDUCTIONS[name][baseline], field)
            ours = reduce_by(seeds, baseline, quantity=field, approach=approach)
            # The paper does not have the default scheduler of DLJob.
            wanted = Wanted.MORE if approach == OURS else None
            item = f"{name}/{baseline}/{approach}"
            yield _row(item, REDUCED[field], "%", paper=paper, ours=ours, wanted=wanted)
        for approach, share in SHARES[name].items():
            ours = _measure_lost(seeds, approach)
            wanted = LOST[approach]
            item = f"{name}/{approach}"
            yield _row(item, "reshape share", "%", paper=share, ours=ours, wanted=wanted)
    for approach, wanted in LOST.items():
        paper = fmean(SHARES[name][approach] for name in runs)
        mean = fmean(_measure_lost(seeds, approach).mean for seeds in runs.values())
        yield Row(f"average/{approach}", "reshape share", "%", paper, mean, wanted=wanted)
    yield from _compare_counts(runs["workload-1"])


LOST = {"termination": Wanted.SAME, OURS: Wanted.LESS}


def _measure_lost(seeds: Sequence[Outcomes], approach: str) -> Spread:
    return spread_of(seeds, approach, quantity="reshape_share").times(100.0)


def _compare_counts(seeds: Sequence[Outcomes]) -> Iterator[Row]:
    quantity = "pending at the last submission"
    for approach, pending in PENDING_AT_LAST.items():
        ours = Spread.of(run[approach].pending[-1] for run in seeds)
        item = f"workload-1/{approach}"
        yield _row(item, quantity, "jobs", paper=pending, ours=ours, wanted=Wanted.SAME)
    for approach, adding in ADDING.items():
        ours = spread_of(seeds, approach, quantity="adding")
        item = f"workload-1/{approach}"
        yield _row(item, "adding events", "events", paper=adding, ours=ours, wanted=Wanted.SAME)


def _row(
    item: str, quantity: str, unit: str, *, paper: float, ours: Spread, wanted: Wanted | None
) -> Row:
    return Row(item, quantity, unit, paper, ours.mean, ours.deviation, wanted)


# --- what a reader must know --------------------------------------------------------------


def _say(runs: Runs) -> Iterator[str]:
    yield (
        f"Workloads: means over {SEEDS} seeds of arrivals, ± their standard deviation. The paper's "
        "iteration times are not known; docs/reproduction/sidecar.md says what was taken instead. Rows with "
        f"{DEFAULT_SCHEDULER} hold the default scheduler of DLJob against the paper's own figures."
    )
    for name, seeds in runs.items():
        yield f"{name}: {_describe_means(seeds)}."
    yield f"workload-4: {_describe_errors(runs['workload-4'])}."


def _describe_means(seeds: Sequence[Outcomes]) -> str:
    return "; ".join(
        f"{approach} makespan {fmean(run[approach].makespan_s for run in seeds):,.0f} s, "
        f"average JCT {fmean(run[approach].avg_jct_s for run in seeds):,.0f} s"
        for approach in APPROACHES
    )


FIFTHS = ("first", "second", "third", "fourth", "last")


def _describe_errors(seeds: Sequence[Outcomes]) -> str:
    """Return by how much the number of iterations was mispredicted, the further a job was the less."""
    pairs = [pair for run in seeds for pair in run[OURS].predictions]
    told = []
    for index, fifth in enumerate(FIFTHS):
        errors = [abs(ratio - 1.0) for done, ratio in pairs if min(int(5 * done), 4) == index]
        told.append(f"{median(errors):.1%} in the {fifth} fifth")
    return f"median error of the predicted iterations {', '.join(told)} of a training"
