"""The figures of a run, worked out by hand from records and small worlds."""

import math

import pytest

from dljob.core.model import JobId, NodeName
from dljob.core.profiles import Costs
from dljob.sim import policies
from dljob.sim.engine.settings import Outage
from dljob.sim.results.records import JobRecord, Record, Sums
from dljob.sim.results.scoring import Score, median, percentile, score
from tests.sim.worlds import COSTS, Scripted, make_traced, play

FREE = Costs()


def make_record(*jobs: JobRecord, gpus: int = 4, **fields) -> Record:
    return Record("trace", "fifo", "in-place", 0, gpus, jobs=list(jobs), **fields)


def make_job(
    name: str, submitted: float, started: float | None, completed: float | None, **fields
) -> JobRecord:
    return JobRecord(JobId(name), 1, submitted, started, completed, **fields)


def score_of(record: Record) -> Score:
    return score(record, policy="p")


@pytest.mark.parametrize("count", [1, 2, 20, 21, 100, 422])
def test_percentiles_follow_their_definition(count):
    values = [float(value) for value in range(count)]
    # In fractions, because 0.95 x 20 rounds to more than 19.
    assert median(values) == values[count // 2]
    assert percentile(values, 95) == values[-(-95 * count // 100) - 1]
    assert percentile(values, 99) == values[-(-99 * count // 100) - 1]


def test_completion_times_count_from_submission():
    record = make_record(make_job("a", 10, 20, 110), make_job("b", 20, 110, 320))
    figures = score_of(record)
    assert figures.avg_jct_s == 200.0
    assert figures.p50_jct_s == 300.0
    assert figures.makespan_s == 310.0


def test_unfinished_jobs_are_in_no_average():
    record = make_record(make_job("a", 0, 0, 100), make_job("b", 0, None, None))
    figures = score_of(record)
    assert (figures.jobs, figures.unfinished) == (2, 1)
    assert figures.avg_jct_s == 100.0


def test_undefined_figures_are_nan():
    figures = score_of(make_record(make_job("a", 0, None, None)))
    assert math.isnan(figures.avg_jct_s)
    assert math.isnan(figures.p99_jct_s)
    assert math.isnan(figures.makespan_s)
    assert math.isnan(figures.utilization)


def test_averages_cover_the_span():
    record = make_record(make_job("a", 100, 100, 300), gpus=8)
    record.sums = Sums(used=800.0, efficiency=400.0, queue=100.0, blocking=50.0)
    figures = score_of(record)
    assert figures.utilization == 0.5
    assert figures.cluster_efficiency == 0.25
    assert figures.avg_queue == 0.5
    assert figures.blocking_index == 0.25


def test_held_gpus_count_as_used():
    record = play((make_traced("a"),), Scripted({0: {"a": 2}}))
    # Two of four GPUs from the start of the process at 50 s, when pods are ready, or before.
    figures = score_of(record)
    assert figures.makespan_s == 560.0
    assert figures.utilization == 0.5


def test_blocking_index_is_wait_over_remaining_time():
    jobs = (make_traced("a", options=(1, 4)), make_traced("b", options=(1, 4), iterations=500.0))
    record = play(jobs, policies.make("fifo"), costs=FREE)
    # Over 250 s the index of b rises from 0 to 250 / 500; then no job waits for 125 s.
    assert score_of(record).blocking_index == pytest.approx(0.25 * 250 / 375)


def test_lost_node_counts_in_utilization():
    record = play(
        (make_traced("a", iterations=800.0, options=(4,)),),
        policies.make("fifo"),
        costs=FREE,
        outages=(Outage(NodeName("n1"), 100.0, 200.0),),
        checkpoint_every_s=50.0,
    )
    figures = score_of(record)
    assert figures.makespan_s == 300.0
    assert figures.utilization == pytest.approx(2 / 3)


def test_reshapes_are_counted_with_their_cost():
    record = play((make_traced("a"),), Scripted({0: {"a": 2}, 160: {"a": 4}}), costs=COSTS)
    figures = score_of(record)
    # 100 s on two GPUs, 15 s of change, 200 s on four; its first start took 60 s.
    assert figures.reshapes == 1
    assert figures.reshape_share == 15.0 / 375.0


def test_local_fairness_counts_concurrent_jobs():
    # Four other jobs run for half of its time, so on average three jobs share two GPUs.
    rivals = [make_job(str(i), 50, 50, 150, isolated_s=1000.0) for i in range(4)]
    figures = score_of(make_record(make_job("a", 0, 0, 100, isolated_s=50.0), *rivals, gpus=2))
    assert figures.worst_local_rho == pytest.approx(100 / (50 * 3 / 2))
    assert figures.worst_rho == pytest.approx(100 / (50 * 5 / 2))


def test_wait_is_queue_time_per_job():
    record = make_record(make_job("a", 0, 30, 100), make_job("b", 0, 0, 100))
    record.sums = Sums(queue=30.0)
    assert score_of(record).avg_wait_s == 15.0
