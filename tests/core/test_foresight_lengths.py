"""The lengths and the speeds of jobs that ``foresight`` learns."""

import math
import random

import pytest

from dlcore.contract import View
from dlcore.model import JobId
from dlcore.policies.foresight.lengths import FIRST_GUESS_SECONDS, Experience, draw_shares
from dlcore.policies.foresight.sightings import MOST_TYPES, SETTLING_S, Sightings, expect, update
from dlcore.profiles import JobType
from dlwire.messages import Shape
from tests.builders import (
    MODEL,
    make_cluster,
    make_job,
    make_profile,
    make_snapshot,
    make_state,
    make_view,
)

# --- lengths


def test_before_anything_was_learnt_a_job_is_as_likely_to_need_as_much_again_as_it_has_had():
    nothing = Experience()
    assert nothing.expect_left(5000.0, 0.5) == pytest.approx(5000.0)
    assert nothing.expect_left(0.0, 0.5) == pytest.approx(FIRST_GUESS_SECONDS)
    assert nothing.expect_left(5000.0, 0.75) == pytest.approx(3 * 5000.0)


def test_where_a_few_jobs_are_very_long_one_that_goes_on_is_expected_to_go_on_for_longer():
    chance = random.Random(5)
    heavy = Experience(tuple(sorted(600.0 * chance.paretovariate(0.8) for _ in range(400))))
    left = [heavy.expect_left(attained, 0.5) for attained in (600.0, 2000.0, 6000.0, 18_000.0)]
    assert left == sorted(left)
    assert left[-1] > 5 * left[0]


def test_where_all_jobs_take_as_long_one_that_goes_on_is_expected_to_end():
    alike = Experience(tuple(10_000.0 + n for n in range(400)))
    left = [alike.expect_left(attained, 0.5) for attained in (0.0, 5000.0, 9000.0)]
    assert left == sorted(left, reverse=True)
    assert left[-1] < 1500.0


def test_shares_are_spread_evenly():
    for samples in (1, 2, 5, 8):
        shares = draw_shares(JobId("job"), 0, samples=samples)
        assert sorted(shares) == pytest.approx([(n + 0.5) / samples for n in range(samples)])


def test_shares_come_in_an_order_that_differs_by_job_and_by_seed():
    orders = {tuple(draw_shares(JobId(f"job{n}"), 0, samples=8)) for n in range(20)}
    assert len(orders) == 20
    assert draw_shares(JobId("job"), 0, samples=8) != draw_shares(JobId("job"), 1, samples=8)


def test_of_two_jobs_each_is_as_often_the_longer_one_whatever_their_names():
    drawn = [draw_shares(JobId(f"job-{n:04}"), 0, samples=8) for n in range(400)]
    pairs = [pair for n in range(0, 400, 2) for pair in zip(drawn[n], drawn[n + 1], strict=True)]
    longer, alike = (
        sum(each) / len(pairs) for each in zip(*((a > b, a == b) for a, b in pairs), strict=True)
    )
    assert longer == pytest.approx(7 / 16, abs=0.04)
    assert alike == pytest.approx(1 / 8, abs=0.04)


# --- speeds that were seen

SPEEDS = {1: 1.0, 2: 1.8, 4: 3.0}
KIND = JobType(MODEL)
TWO, FOUR = Shape(2, 1, ""), Shape(4, 1, "")


def view_of(*states, now: float = 0.0) -> View:
    cluster = make_cluster(n1=4, n2=4, n3=4)
    return make_view(make_snapshot(cluster, *states, now=now, profiles=[make_profile(SPEEDS)]))


def watch(sightings: Sightings, *states) -> Sightings:
    """Look at jobs until their speeds are believed."""
    return update(update(sightings, view_of(*states)), view_of(*states, now=SETTLING_S))


def see(speed: float, sightings: Sightings | None = None) -> Sightings:
    return watch(sightings or Sightings(), make_state("job", holds={"n1": range(2)}, speed=speed))


def expect_in(shape: Shape, sightings: Sightings) -> float:
    return expect(view_of(), make_job(), shape=shape, seen=sightings.speeds_of(KIND))


def test_a_speed_below_expectation_is_kept_for_the_type():
    seen = see(0.9)
    assert seen.speeds_of(KIND) == {TWO: 0.9}
    assert expect_in(TWO, seen) == 0.9


def test_what_was_seen_stays_when_the_job_is_gone():
    seen = update(see(0.9), view_of())
    assert expect_in(TWO, seen) == 0.9
    assert seen.by_job == {}


def test_shapes_that_were_never_seen_move_half_way_in_logs():
    assert expect_in(FOUR, see(0.45)) == pytest.approx(3.0 * math.sqrt(0.45 / 1.8))


def test_a_deviation_within_two_percent_is_noise():
    for speed in (1.8 * 0.985, 1.8 * 1.015):
        seen = see(speed)
        assert seen.speeds_of(KIND) == {}
        assert expect_in(FOUR, seen) == pytest.approx(3.0)
    assert see(1.8 * 0.97).speeds_of(KIND) == {TWO: 1.8 * 0.97}


def test_of_two_jobs_of_a_type_that_differ_neither_alone_speaks_for_it():
    first = see(1.6)
    both = watch(
        first,
        make_state("job", holds={"n1": range(2)}, speed=1.6),
        make_state("other", holds={"n2": range(2)}, speed=0.4),
    )
    assert both.speeds_of(KIND)[TWO] == pytest.approx(math.sqrt(1.6 * 0.4))
    assert both.by_job[JobId("other")].slowness == pytest.approx(2.0)


def test_a_job_is_looked_at_once_in_a_shape_and_again_in_the_next_one():
    first = see(0.9)
    again = see(0.5, first)
    assert again.speeds_of(KIND) is first.speeds_of(KIND)
    grown = make_state("job", holds={"n1": range(4)}, speed=1.0)
    assert watch(again, grown).speeds_of(KIND) == {TWO: 0.9, FOUR: 1.0}


def test_a_speed_is_not_noted_before_it_has_settled():
    early = make_state("job", holds={"n1": range(2)}, speed=2.4)
    settled = make_state("job", holds={"n1": range(2)}, speed=1.8)
    first = update(Sightings(), view_of(early))
    almost = update(first, view_of(early, now=SETTLING_S - 1.0))
    assert almost.by_type == {}
    assert almost.slowness_of(early) == 1.0
    assert update(almost, view_of(settled, now=SETTLING_S)).by_type == {}


def test_a_job_of_which_nothing_was_expected_says_nothing_of_its_type():
    unknown = make_state("odd", model="odd", holds={"n1": range(2)}, speed=5.0)
    cluster = make_cluster(n1=4)
    seen = Sightings()
    for now in (0.0, SETTLING_S):
        seen = update(seen, make_view(make_snapshot(cluster, unknown, now=now, profiles=[])))
    assert seen.by_type == {}
    assert seen.slowness_of(unknown) == 1.0


def test_only_the_latest_types_are_remembered():
    old = Sightings({JobType(f"old{n}"): {TWO: 1.0} for n in range(MOST_TYPES)})
    seen = see(0.9, old)
    assert len(seen.by_type) == MOST_TYPES
    assert JobType("old0") not in seen.by_type
    assert KIND in seen.by_type
