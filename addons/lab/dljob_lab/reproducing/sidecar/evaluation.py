"""
The SideCar paper's evaluation, played again: ``dljob reproduce sidecar``.

First its case study (:mod:`dljob_lab.reproducing.sidecar.case`), then its four workloads
(:mod:`dljob_lab.reproducing.sidecar.runs`), all with the constants of
:mod:`dljob_lab.reproducing.sidecar.constants`. Here rows are made of the paper's figures and ours.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median

from dljob.sim.simulating import Watch
from dljob_lab.reproducing.findings import Reproduction, Row
from dljob_lab.reproducing.sidecar.case import Played, compare, play_case
from dljob_lab.reproducing.sidecar.constants import FROZEN
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

Runs = Mapping[str, Sequence[Outcomes]]
"""The results of each workload, in order of the seeds."""


def reproduce(watch: Watch | None) -> Reproduction:
    """Play everything and set the paper's figures next to ours."""
    case = play_case(FROZEN)
    runs = play_seeds(PLANS, watch=watch)
    rows = (*_compare_case(case), *_compare_workloads(runs))
    return Reproduction(rows, notes=tuple(_say(runs)))


def _compare_case(case: Sequence[Played]) -> Iterator[Row]:
    for event, paper, ours in compare(case):
        yield Row(f"case/{event}", "time", "s", paper, ours)


REDUCED = {"makespan_s": "makespan reduction", "avg_jct_s": "jct reduction"}


def _compare_workloads(runs: Runs) -> Iterator[Row]:
    for name, seeds in runs.items():
        for baseline in BASELINES:
            for field, quantity in REDUCED.items():
                paper = getattr(REDUCTIONS[name][baseline], field)
                ours = reduce_by(seeds, baseline, quantity=field)
                yield _row(f"{name}/{baseline}", quantity, unit="%", paper=paper, ours=ours)
                other = reduce_by(seeds, baseline, quantity=field, approach=DEFAULT_SCHEDULER)
                yield _row(
                    f"{name}/{baseline}, {DEFAULT_SCHEDULER}",
                    quantity,
                    unit="%",
                    paper=paper,
                    ours=other,
                )
        for approach, share in SHARES[name].items():
            lost = spread_of(seeds, approach, quantity="reshape_share").times(100.0)
            yield _row(f"{name}/{approach}", "reshape share", unit="%", paper=share, ours=lost)
    yield from _compare_counts(runs["workload-1"])


def _compare_counts(seeds: Sequence[Outcomes]) -> Iterator[Row]:
    for approach, pending in PENDING_AT_LAST.items():
        ours = Spread.of(run[approach].pending[-1] for run in seeds)
        item = f"workload-1/{approach}"
        yield _row(item, "pending at the last submission", unit="jobs", paper=pending, ours=ours)
    for approach, adding in ADDING.items():
        ours = spread_of(seeds, approach, quantity="adding")
        yield _row(
            f"workload-1/{approach}", "adding events", unit="events", paper=adding, ours=ours
        )


def _row(item: str, quantity: str, *, unit: str, paper: float, ours: Spread) -> Row:
    return Row(item, quantity, unit, paper, ours.mean, ours.deviation)


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
