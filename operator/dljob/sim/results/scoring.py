"""
The figures of one run: a :class:`~dljob.sim.results.records.Record` in, a :class:`Score` out.

:mod:`dljob.sim.simulating` calls it when a world has played to its end; the command prints scores
and :mod:`dljob_lab.reproducing` compares them with those of others. This module alone defines
the figures:

* Completion times (JCT) are completion less submission, of the jobs that completed. With n sorted
  times, p50 is the element ``n // 2``, p95 and p99 the elements ``ceil(0.95 n) - 1`` and
  ``ceil(0.99 n) - 1``, counted from 0.
* The *span* is from the first submission of a kept job to the last completion. Its length is the
  makespan, and every average over time is one over the span.
* Utilization is the GPU-seconds that jobs held, over the GPUs of the whole cluster times the
  makespan. A GPU is held while a process or a pod has it, whether it trains or starts; a node that
  is lost goes on counting in the cluster.
* Queue length, cluster efficiency and blocking index are those of AFS, section 2.2, averaged over
  the span. Where jobs scale better than linearly, the efficiency can exceed 1.
* The reshape share is the time that jobs, having GPUs and having trained before, did not train,
  over the time from their first GPUs to their completion (SideCar, Table VIII).
* The wait is the time in the queue, preempted jobs' included, summed over jobs and divided by their
  number.
* The *isolated time* of a job is that of its training alone on its requested GPUs, packed, of the
  cluster's type on which it is fastest, at its true speed and without the costs of starting. The
  mean slowdown is the mean of JCT over isolated time.
* Finish-time fairness is Shockwave's (NSDI'23): ``rho = JCT / (isolated time x max(1, N / M))`` on
  M GPUs. Requested GPUs are taken, not a job's best number, because its users compare with those,
  and because Shockwave's jobs are rigid. A job is treated unfairly if its rho is above 1.05. N is
  the number of jobs of the trace (``worst_rho``, ``unfair_share``), as in Shockwave's tables. Their
  traces last for some hours; where jobs come for months, all jobs of the trace never compete at
  once, and that rho is small for every policy. So there is a second pair (``worst_local_rho``,
  ``unfair_local_share``), in which N is the mean number of jobs present while the job itself is.

A job without isolated time, because it has nothing to do, has neither slowdown nor rho.

A figure that does not exist, because no job completed, is not a number.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import NamedTuple

from dljob.sim.results.records import JobRecord, Record


@dataclass(frozen=True, slots=True)
class Latency:
    """How long something took, over many times."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The figures of one policy on one trace, in the order in which they are printed."""

    policy: str
    trace: str
    jobs: int
    """The jobs that were kept, without the dropped ones."""
    dropped: int
    unfinished: int
    """Jobs that were kept and never ended; they are in no figure about completions."""
    avg_jct_s: float
    p50_jct_s: float
    p95_jct_s: float
    p99_jct_s: float
    makespan_s: float
    utilization: float
    cluster_efficiency: float
    avg_queue: float
    blocking_index: float
    avg_wait_s: float
    mean_slowdown: float
    worst_rho: float
    unfair_share: float
    worst_local_rho: float
    unfair_local_share: float
    reshapes: int
    reshape_share: float
    lost_work_s: float
    """The training that no checkpoint held and that jobs repeated; in seconds of jobs, summed."""
    decisions: int
    decision_ms: Latency
    wall_s: float
    peak_rss_mb: float
    """Of the whole process, up to the end of this run."""
    seed: int
    mechanism: str


UNFAIR_ABOVE = 1.05
"""From which finish-time fairness on Shockwave's authors call a job treated unfairly."""

MEASURED = ("decision_ms", "wall_s", "peak_rss_mb")
"""The fields that differ between two runs of the same; all others are the same to the last bit."""


def score(record: Record, *, policy: str, wall_s: float = 0.0, peak_rss_mb: float = 0.0) -> Score:
    """Sum up a run. ``policy`` is what its user called it, options included."""
    done = record.completed
    times = sorted(job.jct for job in done)
    ends = [job.completed_at for job in record.jobs if job.completed_at is not None]
    span = max(ends) - min(job.submitted_at for job in record.jobs) if ends else math.nan
    sums = record.sums
    rivals = len(record.jobs)
    fair, local = _measure_fairness(record, lambda _job: rivals), _measure_locally(record)
    return Score(
        policy=policy,
        trace=record.workload,
        jobs=len(record.jobs),
        dropped=len(record.dropped),
        unfinished=len(record.unfinished),
        avg_jct_s=_mean(times),
        p50_jct_s=median(times),
        p95_jct_s=percentile(times, 95),
        p99_jct_s=percentile(times, 99),
        makespan_s=span,
        utilization=_over(sums.used, record.gpus * span),
        cluster_efficiency=_over(sums.efficiency, record.gpus * span),
        avg_queue=_over(sums.queue, span),
        blocking_index=_over(sums.blocking, span),
        avg_wait_s=_over(sums.queue, rivals) if done else math.nan,
        mean_slowdown=_mean([job.jct / job.isolated_s for job in done if job.isolated_s > 0.0]),
        worst_rho=fair.worst,
        unfair_share=fair.unfair,
        worst_local_rho=local.worst,
        unfair_local_share=local.unfair,
        reshapes=sum(job.reshapes for job in record.jobs),
        reshape_share=_measure_reshaping(done),
        lost_work_s=sum(job.lost_work_s for job in record.jobs),
        decisions=record.decisions,
        decision_ms=summarise([1000.0 * seconds for seconds in record.decision_s]),
        wall_s=wall_s,
        peak_rss_mb=peak_rss_mb,
        seed=record.seed,
        mechanism=record.mechanism,
    )


def summarise(values: Sequence[float]) -> Latency:
    """Sum up measured times, of any unit."""
    values = sorted(values)
    return Latency(median(values), percentile(values, 99), values[-1] if values else math.nan)


def median(values: Sequence[float]) -> float:
    """The upper of the two in the middle, if there are two, of values that are sorted."""
    return values[len(values) // 2] if values else math.nan


def percentile(values: Sequence[float], percent: int) -> float:
    """The nearest rank, of values that are sorted."""
    # In whole numbers: 0.95 * 20 is more than 19 in floating point, on some days.
    return values[-(-percent * len(values) // 100) - 1] if values else math.nan


def _measure_reshaping(done: Sequence[JobRecord]) -> float:
    lost = math.fsum(job.lost_s for job in done)
    lived = math.fsum(
        job.completed_at - job.started_at
        for job in done
        if job.completed_at is not None and job.started_at is not None
    )
    return _over(lost, lived)


class _Fairness(NamedTuple):
    worst: float
    unfair: float


def _measure_fairness(record: Record, rivals: Callable[[JobRecord], float]) -> _Fairness:
    """Measure finish-time fairness, given the N of each job."""
    rhos = [
        job.jct / (job.isolated_s * max(1.0, rivals(job) / record.gpus))
        for job in record.completed
        if job.isolated_s > 0.0
    ]
    if not rhos:
        return _Fairness(math.nan, math.nan)
    return _Fairness(max(rhos), sum(rho > UNFAIR_ABOVE for rho in rhos) / len(rhos))


def _measure_locally(record: Record) -> _Fairness:
    """Measure finish-time fairness with the mean number of jobs present in a job's own time."""
    came = _Ramp([job.submitted_at for job in record.jobs])
    left = _Ramp([job.completed_at for job in record.completed if job.completed_at is not None])

    def count_rivals(job: JobRecord) -> float:
        begin, end = job.submitted_at, job.submitted_at + job.jct
        if end <= begin:
            return 1.0
        present = came.integral(end) - came.integral(begin)
        return (present - (left.integral(end) - left.integral(begin))) / (end - begin)

    return _measure_fairness(record, count_rivals)


class _Ramp:
    """How many of some events have happened, integrated over time."""

    def __init__(self, times: Iterable[float]) -> None:
        self._times = sorted(times)
        self._sums = list(accumulate(self._times, initial=0.0))

    def integral(self, until: float) -> float:
        """Sum up, over the events so far, the time since each."""
        count = bisect_right(self._times, until)
        return count * until - self._sums[count]


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan


def _over(amount: float, whole: float) -> float:
    # Jobs of no length that come and go at one instant leave nothing to divide by.
    if math.isnan(whole):
        return math.nan
    return amount / whole if whole > 0.0 else 0.0
