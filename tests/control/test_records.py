"""The effect of decisions, pods and conditions on a status."""

from dataclasses import replace

import pytest

from dljob.control.situation.status import (
    Booking,
    Condition,
    ConditionType,
    DecisionNumber,
    StartNumber,
    Status,
)
from dljob.control.situation.status_documents import read_status, write_status
from dljob.core.model import GpuRef, NodeName
from tests.builders import make_placement
from tests.statuses import make_full_status

N0, N1 = NodeName("n0"), NodeName("n1")
FOUR = DecisionNumber(4)
TWO, ONE = make_placement(n0=(0, 1)), make_placement(n0=(1,))


def test_decision_has_a_stop_and_a_run_generation():
    status = Status().decided(TWO, now=1.0)
    assert (status.generation, status.stop_generation, status.run_generation) == (1, 2, 3)
    status = status.decided(ONE, now=2.0)
    assert (status.generation, status.stop_generation, status.run_generation) == (2, 4, 5)


def test_adopted_start_stays_until_the_next_decision():
    status = replace(Status().decided(TWO, now=1.0).decided(ONE, now=2.0), adopted=StartNumber(3))
    assert (status.stop_generation, status.run_generation) == (4, 3)
    assert status.decided(TWO, now=3.0).run_generation == 7


def test_released_gpus_are_leftover_until_given_again():
    status = Status().decided(TWO, now=1.0).decided(ONE, now=2.0)
    assert status.leftover == {GpuRef(N0, 0)}
    assert status.decided(None, now=3.0).leftover == {GpuRef(N0, 0), GpuRef(N0, 1)}
    assert status.decided(TWO, now=3.0).leftover == frozenset()


def test_decision_counts_the_gpu_seconds_before_it():
    status = Status().decided(TWO, now=10.0)
    assert status.decided(ONE, now=14.0).service == 8.0
    counted = replace(status, service=4.0, counted_at=12.0)
    assert counted.decided(None, now=14.0).service == 8.0
    assert counted.decided(None, now=14.0).decided(ONE, now=99.0).service == 8.0


@pytest.mark.parametrize(
    ("placement", "gang", "shaped"),
    [
        (TWO, 0, 1),
        (ONE, 0, 2),
        (make_placement(n0=(0, 1, 2)), 0, 2),
        (make_placement(n0=(0, 1, 2)), 4, 1),
        (None, 0, 2),
    ],
)
def test_pods_last_as_long_as_their_gpus(placement, gang, shaped):
    """A gang that grows step by step keeps its pods."""
    assert Status().decided(TWO, now=1.0).decided(placement, now=2.0, gang=gang).shaped == shaped


def test_pods_differ_by_serial():
    status = Status(shaped=FOUR).with_pods([N0, N1], now=5.0)
    assert status.pods == (Booking(N0, 1, FOUR), Booking(N1, 2, FOUR))
    assert status.booked_at == 5.0
    again = status.without_pods([N0]).with_pods([N0], now=6.0)
    assert again.pods == (Booking(N1, 2, FOUR), Booking(N0, 3, FOUR))


def test_end_of_a_pod_leaves_nothing_on_its_node():
    refs = frozenset({GpuRef(N0, 0), GpuRef(N1, 0)})
    status = Status(leftover=refs).with_pods([N0, N1], now=0.0).without_pods([N0])
    assert status.leftover == {GpuRef(N1, 0)}


def test_condition_keeps_the_time_of_its_last_change():
    waits = Condition(ConditionType.SCHEDULED, status=False, reason="NoRoom", message="no room")
    status = Status().with_condition(waits, 5.0)
    assert [each.since for each in status.conditions] == [5.0]
    other = replace(waits, message="still no room")
    assert [each.since for each in status.with_condition(other, 7.0).conditions] == [5.0]
    has = replace(waits, status=True)
    assert [each.since for each in status.with_condition(has, 7.0).conditions] == [7.0]
    assert status.with_condition(waits, 9.0) is status
    assert status.condition(ConditionType.FINISHED) is None


def test_every_field_is_written_and_read():
    full = make_full_status()
    assert read_status(write_status(full)) == full
