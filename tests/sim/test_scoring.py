"""The figures of a run: each is worked out by hand here, from records and from small worlds."""

import math
from statistics import fmean

import pytest

from dlcore import policies
from dlcore.model import JobId, NodeName
from dlcore.profiles import Costs
from dlsim.engine.settings import Outage
from dlsim.results.records import JobRecord, Record, Sums
from dlsim.results.scoring import (
    Score,
    median,
    percentile,
    score,
    summarise,
)
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


# --- percentiles --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 19, 20, 21, 99, 100, 101, 422, 1000, 41226])
def test_percentiles_are_the_elements_that_their_definition_names(count):
    values = [float(value) for value in range(count)]
    # In fractions: no floating-point number is 0.95.
    assert median(values) == values[count // 2]
    assert percentile(values, 95) == values[-(-95 * count // 100) - 1]
    assert percentile(values, 99) == values[-(-99 * count // 100) - 1]


def test_percentiles_are_not_taken_one_too_high_by_rounding():
    # 0.95 x 20 is 19 exactly, but 19.000000000000004 and more in some ways to compute it.
    assert percentile([float(value) for value in range(20)], 95) == 18.0
    assert percentile([float(value) for value in range(100)], 99) == 98.0


def test_measured_times_are_sorted_before_they_are_summed_up():
    latency = summarise([3.0, 1.0, 2.0])
    assert (latency.p50, latency.p99, latency.max) == (2.0, 3.0, 3.0)


# --- completion times ---------------------------------------------------------------------


def test_completion_times_count_from_submission():
    record = make_record(make_job("a", 10, 20, 110), make_job("b", 20, 110, 320))
    figures = score_of(record)
    assert figures.avg_jct_s == 200.0
    assert figures.p50_jct_s == 300.0
    assert figures.makespan_s == 310.0


def test_the_average_does_not_depend_on_the_order_in_which_it_is_summed():
    jcts = [0.1, 1e15, 0.2, 3.3, 1e-9] * 20
    forth = make_record(*(make_job(str(i), 0, 0, each) for i, each in enumerate(jcts)))
    back = make_record(*(make_job(str(i), 0, 0, each) for i, each in enumerate(reversed(jcts))))
    assert score_of(forth).avg_jct_s == score_of(back).avg_jct_s == fmean(jcts)


def test_unfinished_jobs_are_counted_and_in_no_average():
    record = make_record(make_job("a", 0, 0, 100), make_job("b", 0, None, None))
    figures = score_of(record)
    assert (figures.jobs, figures.unfinished) == (2, 1)
    assert figures.avg_jct_s == 100.0


def test_the_span_begins_with_a_kept_job_even_if_that_never_ends():
    record = make_record(make_job("a", 50, 60, 100), make_job("b", 20, None, None))
    assert score_of(record).makespan_s == 80.0


def test_what_does_not_exist_is_not_a_number():
    figures = score_of(make_record(make_job("a", 0, None, None)))
    assert math.isnan(figures.avg_jct_s)
    assert math.isnan(figures.p99_jct_s)
    assert math.isnan(figures.makespan_s)
    assert math.isnan(figures.utilization)


def test_jobs_of_no_length_divide_nothing_by_zero():
    figures = score_of(make_record(make_job("a", 5, 5, 5)))
    assert figures.avg_jct_s == figures.makespan_s == figures.utilization == 0.0


# --- averages over time -------------------------------------------------------------------


def test_averages_over_time_are_over_the_span():
    record = make_record(make_job("a", 100, 100, 300), gpus=8)
    record.sums = Sums(used=800.0, efficiency=400.0, queue=100.0, blocking=50.0)
    figures = score_of(record)
    assert figures.utilization == 0.5
    assert figures.cluster_efficiency == 0.25
    assert figures.avg_queue == 0.5
    assert figures.blocking_index == 0.25


def test_gpus_are_used_while_they_are_held():
    record = play((make_traced("a"),), Scripted({0: {"a": 2}}))
    # Two of four GPUs from the start of the process at 50 s, when pods are ready, or before.
    figures = score_of(record)
    assert figures.makespan_s == 560.0
    assert figures.utilization == 0.5


def test_efficiency_is_speed_over_that_of_one_gpu():
    record = play((make_traced("a"),), Scripted({0: {"a": 4}}), costs=FREE)
    assert score_of(record).cluster_efficiency == 1.0
    half = play((make_traced("a"),), Scripted({0: {"a": 2}}), costs=FREE)
    assert score_of(half).cluster_efficiency == 0.5


def test_the_queue_is_as_long_as_jobs_wait():
    jobs = (make_traced("a", options=(4,)), make_traced("b", options=(4,)))
    record = play(jobs, policies.make("fifo"), costs=FREE)
    # b waits for the 250 s of a, and then trains as long itself.
    assert score_of(record).avg_queue == 0.5


def test_the_blocking_index_is_waiting_over_remaining_time_with_one_gpu():
    jobs = (make_traced("a", options=(1, 4)), make_traced("b", options=(1, 4), iterations=500.0))
    record = play(jobs, policies.make("fifo"), costs=FREE)
    # Over 250 s the index of b rises from 0 to 250 / 500; then no job waits for 125 s.
    assert score_of(record).blocking_index == pytest.approx(0.25 * 250 / 375)


def test_the_blocking_index_is_a_mean_over_those_that_wait():
    a, b, c = (make_traced(name, options=(4,)) for name in "abc")
    record = play((a, b, c), policies.make("fifo"), costs=FREE)
    # With one option, one GPU is taken to do its part. Both wait 250 s, then one 250 s more.
    first, second = 0.125 * 250, (0.25 + 0.5) / 2 * 250
    assert score_of(record).blocking_index == pytest.approx((first + second) / 750)


def test_a_lost_node_counts_among_the_gpus_all_the_same():
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


# --- reshaping ----------------------------------------------------------------------------


def test_the_reshape_share_is_time_lost_over_time_since_the_first_gpus():
    record = make_record(
        make_job("a", 0, 100, 200, lost_s=10.0),
        make_job("b", 0, 0, 300, lost_s=30.0),
        make_job("never", 0, 0, None, lost_s=500.0),
    )
    assert score_of(record).reshape_share == 0.1


def test_reshapes_of_a_world_are_counted_and_cost_what_they_cost():
    record = play((make_traced("a"),), Scripted({0: {"a": 2}, 160: {"a": 4}}), costs=COSTS)
    figures = score_of(record)
    # 100 s on two GPUs, 15 s of change, 200 s on four; its first start took 60 s.
    assert figures.reshapes == 1
    assert figures.reshape_share == 15.0 / 375.0


# --- slowdown and fairness ----------------------------------------------------------------


def test_slowdown_is_completion_time_over_the_time_alone_on_the_requested_gpus():
    record = make_record(
        make_job("a", 0, 0, 100, isolated_s=50.0), make_job("b", 0, 0, 100, isolated_s=100.0)
    )
    assert score_of(record).mean_slowdown == 1.5


def test_a_world_knows_how_long_each_job_trains_alone_on_what_it_asked_for():
    jobs = (make_traced("a", requested=2, iterations=1000), make_traced("b", iterations=1000))
    record = play(jobs, policies.make("fifo"))
    assert {job.job: job.isolated_s for job in record.jobs} == {"a": 500.0, "b": 250.0}


def test_rho_is_slowdown_over_the_jobs_of_the_trace_for_each_gpu():
    jobs = [make_job(str(i), 0, 0, 100.0 * (i + 1), isolated_s=100.0) for i in range(8)]
    figures = score_of(make_record(*jobs, gpus=4))
    assert figures.worst_rho == 800 / (100 * 8 / 4)
    assert figures.unfair_share == 6 / 8


def test_a_cluster_with_more_gpus_than_jobs_owes_no_job_more_than_it_asked_for():
    figures = score_of(make_record(make_job("a", 0, 0, 110, isolated_s=100.0), gpus=4))
    assert figures.worst_rho == pytest.approx(1.1)
    assert figures.unfair_share == 1.0


def test_local_fairness_counts_the_jobs_that_were_there_with_it():
    # Beside "a" are four others half of its time, so on average three jobs share two GPUs.
    rivals = [make_job(str(i), 50, 50, 150, isolated_s=1000.0) for i in range(4)]
    figures = score_of(make_record(make_job("a", 0, 0, 100, isolated_s=50.0), *rivals, gpus=2))
    assert figures.worst_local_rho == pytest.approx(100 / (50 * 3 / 2))
    assert figures.worst_rho == pytest.approx(100 / (50 * 5 / 2))


def test_jobs_that_never_end_are_rivals_all_the_same():
    record = make_record(
        make_job("a", 0, 0, 100, isolated_s=50.0),
        *(make_job(str(i), 0, None, None, isolated_s=10.0) for i in range(3)),
        gpus=2,
    )
    assert score_of(record).worst_local_rho == pytest.approx(100 / (50 * 4 / 2))


def test_a_job_with_nothing_to_do_has_no_slowdown_and_no_rho():
    figures = score_of(make_record(make_job("a", 0, 0, 0)))
    assert math.isnan(figures.mean_slowdown)
    assert math.isnan(figures.worst_rho)
    assert math.isnan(figures.unfair_local_share)


def test_the_wait_is_time_in_the_queue_by_job():
    record = make_record(make_job("a", 0, 30, 100), make_job("b", 0, 0, 100))
    record.sums = Sums(queue=30.0)
    assert score_of(record).avg_wait_s == 15.0
