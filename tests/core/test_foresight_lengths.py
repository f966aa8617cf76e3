"""The lengths that ``foresight`` expects of jobs and of changes."""

import math
import random
from dataclasses import replace

import pytest

from dljob.core.model import JobId, JobState
from dljob.core.policies.foresight.bids import MOST_SAMPLES, Bid, Bidders
from dljob.core.policies.foresight.lengths import FIRST_GUESS_SECONDS, Experience, draw_shares
from dljob.core.policies.foresight.memory import Memory, expect_tenure, remember_tenures
from tests.builders import make_cluster, make_profile, make_snapshot, make_state, make_view


def test_without_experience_a_job_needs_as_much_again():
    nothing = Experience()
    assert nothing.expect_left(5000.0, 0.5) == pytest.approx(5000.0)
    assert nothing.expect_left(0.0, 0.5) == pytest.approx(FIRST_GUESS_SECONDS)
    assert nothing.expect_left(5000.0, 0.75) == pytest.approx(3 * 5000.0)


def test_heavy_tail_lengthens_the_expected_rest():
    chance = random.Random(5)
    heavy = Experience(tuple(sorted(600.0 * chance.paretovariate(0.8) for _ in range(400))))
    left = [heavy.expect_left(attained, 0.5) for attained in (600.0, 2000.0, 6000.0, 18_000.0)]
    assert left == sorted(left)
    assert left[-1] > 5 * left[0]


def test_equal_lengths_shorten_the_expected_rest():
    alike = Experience(tuple(10_000.0 + n for n in range(400)))
    left = [alike.expect_left(attained, 0.5) for attained in (0.0, 5000.0, 9000.0)]
    assert left == sorted(left, reverse=True)
    assert left[-1] < 1500.0


def test_shares_are_spread_evenly():
    for samples in (1, 2, 5, 8):
        shares = draw_shares(JobId("job"), 0, samples=samples)
        assert sorted(shares) == pytest.approx([(n + 0.5) / samples for n in range(samples)])


def test_order_of_shares_differs_by_job_and_seed():
    orders = {tuple(draw_shares(JobId(f"job{n}"), 0, samples=8)) for n in range(20)}
    assert len(orders) == 20
    assert draw_shares(JobId("job"), 0, samples=8) != draw_shares(JobId("job"), 1, samples=8)


def test_order_of_shares_is_unbiased():
    drawn = [draw_shares(JobId(f"job-{n:04}"), 0, samples=8) for n in range(400)]
    pairs = [pair for n in range(0, 400, 2) for pair in zip(drawn[n], drawn[n + 1], strict=True)]
    longer, alike = (
        sum(each) / len(pairs) for each in zip(*((a > b, a == b) for a, b in pairs), strict=True)
    )
    assert longer == pytest.approx(7 / 16, abs=0.04)
    assert alike == pytest.approx(1 / 8, abs=0.04)


SPEEDS = {1: 1.0, 2: 1.8, 4: 3.0}
CLUSTER = make_cluster(n1=4, n2=4)


def bid_of(state: JobState, *, now: float = 0.0) -> Bid:
    snapshot = make_snapshot(CLUSTER, state, now=now, profiles=[make_profile(SPEEDS)])
    view = make_view(snapshot)
    (bid,) = Bidders(view).collect(view, Experience())
    return bid


def test_iterations_without_a_speed_give_no_length():
    odd = make_state(model="odd", iterations_total=10.0, service=3600.0)
    assert len(bid_of(odd).lefts) == MOST_SAMPLES
    assert bid_of(odd).left == pytest.approx(3600.0)
    assert bid_of(make_state(iterations_total=10.0)).lefts == ()


def test_warm_up_speed_only_bounds_the_rest():
    odd = make_state(
        model="odd", holds={"n1": range(2)}, speed=0.1, iterations_total=30.0, options=(1, 2)
    )
    bid = bid_of(odd)
    assert max(bid.lefts) == pytest.approx(300.0 * bid.speed_now)
    assert min(bid.lefts) < max(bid.lefts)


def remember(memory: Memory, *states: JobState, now: float) -> Memory:
    view = make_view(make_snapshot(CLUSTER, *states, now=now, profiles=[make_profile(SPEEDS)]))
    tenures, usual = remember_tenures(memory, view)
    return Memory(now, tenures=tenures, usual_tenure=usual)


def test_change_is_expected_to_last_like_the_last_one():
    small, large = (make_state("job", holds={"n1": range(gpus)}) for gpus in (1, 2))
    first = remember(Memory(0.0), small, now=0.0)
    assert expect_tenure(first.tenures[JobId("job")], first.usual_tenure, now=9.0) == math.inf
    starting = remember(first, large, now=10.0)
    assert starting.usual_tenure == 0.0
    second = remember(remember(first, small, now=100.0), large, now=400.0)
    assert second.usual_tenure == 400.0
    known = second.tenures[JobId("job")]
    assert expect_tenure(known, 400.0, now=401.0) == pytest.approx(20.0)
    assert expect_tenure(known, 400.0, now=800.0) == pytest.approx(400.0)
    assert expect_tenure(None, 400.0, now=800.0) == math.inf


def test_unchanged_job_keeps_its_tenure():
    job = make_state("job", holds={"n1": range(2)})
    memory = remember(Memory(0.0), job, now=0.0)
    memory = remember(memory, job, now=100.0)
    assert memory.tenures[JobId("job")].since == 0.0
    gone = remember(memory, now=250.0)
    assert (gone.tenures, gone.usual_tenure) == ({}, 0.0)
    view = make_view(replace(make_snapshot(CLUSTER, now=250.0), paused=frozenset({job.id})))
    assert remember_tenures(memory, view) == ({}, 250.0)
    stopped = remember(memory, make_state("job"), now=250.0)
    assert (stopped.tenures, stopped.usual_tenure) == ({}, 250.0)
