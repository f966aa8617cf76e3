"""DRAGON and its baseline: each rule of section 3.3, and what the policy makes of its gaps."""

from dataclasses import replace
from typing import Any

import pytest

from dljob.core import cycle
from dljob.core.model import Cause, CauseCode, JobId, JobState, Snapshot
from dljob.core.planning import Change, Plan, Start, Step, Wait
from dljob.sim import policies
from dljob_lab.policies.elastic.dragon.policy import DragonState
from tests.builders import make_cluster, make_snapshot, make_state

LATE = 1000.0
"""When everything that waits since the beginning is urgent, and all that idles is idle for long."""


def decide(snapshot: Snapshot, name: str = "dragon", **options: str) -> Plan:
    return cycle.schedule(snapshot, policies.make(name, options))


def steps_of(snapshot: Snapshot, name: str = "dragon", **options: str) -> dict[str, Step]:
    return {str(step.job): step for step in decide(snapshot, name, **options).steps}


def counts_of(snapshot: Snapshot, name: str = "dragon", **options: str) -> dict[str, int]:
    """How many GPUs each job has after the decision, of those that it changes."""
    counts = {}
    for job, step in steps_of(snapshot, name, **options).items():
        if isinstance(step, Start):
            counts[job] = step.placement.gpus
        elif isinstance(step, Change):
            counts[job] = step.new.gpus
    return counts


def hold(name: str, gpus: Any, **rest: Any) -> JobState:
    return make_state(name, holds=gpus, **rest)


# --- step 1: who is urgent


def make_crowded(now: float) -> Snapshot:
    old = hold("old", {"n1": range(4)}, options=(1, 2, 4))
    return make_snapshot(make_cluster(n1=4), old, make_state("new", options=(2, 4)), now=now)


def test_no_job_is_made_smaller_for_one_that_has_just_come():
    assert counts_of(make_crowded(29.0)) == {}


def test_a_job_is_made_smaller_for_one_that_has_waited_to_the_threshold():
    steps = steps_of(make_crowded(30.0))
    assert counts_of(make_crowded(30.0)) == {"old": 2, "new": 2}
    assert steps["old"].cause == Cause(CauseCode.MAKES_ROOM, JobId("new"))
    assert isinstance(steps["new"], Start)
    assert steps["new"].after == ("old",)


def test_the_threshold_is_an_option():
    assert counts_of(make_crowded(30.0), urgent_seconds="31") == {}
    assert counts_of(make_crowded(0.0), urgent_seconds="0") == {"old": 2, "new": 2}


def test_the_policy_asks_to_be_woken_when_a_job_will_be_urgent():
    assert decide(make_crowded(10.0)).wake_at == 30.0
    assert decide(make_crowded(31.0)).wake_at is None


# --- the smallest urgent job first


def test_the_smallest_urgent_job_is_served_first_and_not_the_first_that_came():
    old = hold("old", {"n1": range(4)}, options=(2, 4))
    large, small = make_state("large", options=(2,)), make_state("small", options=(1, 2))
    counts = counts_of(make_snapshot(make_cluster(n1=4), old, large, small, now=LATE))
    # The small one leaves one GPU, which is too little for the large one.
    assert counts == {"old": 2, "small": 1}


def test_if_the_smallest_urgent_job_cannot_be_launched_no_job_is_made_smaller():
    old = hold("old", {"n1": range(4)}, options=(3, 4))
    snapshot = make_snapshot(
        make_cluster(n1=4),
        old,
        make_state("a", options=(2,)),
        make_state("b", options=(3,)),
        now=LATE,
    )
    assert counts_of(snapshot) == {}


# --- step 2: the victims


def test_the_job_with_the_most_surplus_is_the_first_victim():
    states = (
        hold("rich", {"n1": range(4)}, options=(1, 2, 3, 4)),
        hold("poor", {"n2": range(4)}, options=(3, 4)),
        make_state("new", options=(1,)),
    )
    counts = counts_of(make_snapshot(make_cluster(n1=4, n2=4), *states, now=LATE))
    assert counts == {"rich": 3, "new": 1}


def test_victims_give_down_to_their_minimum_and_not_below():
    states = (
        hold("a", {"n1": (0, 1, 2, 3)}, options=(2, 3, 4)),
        hold("b", {"n1": (4, 5)}, options=(1, 2)),
        make_state("new", options=(3,)),
    )
    counts = counts_of(make_snapshot(make_cluster(n1=6), *states, now=LATE))
    assert counts == {"a": 2, "b": 1, "new": 3}


# --- step 3: gangs, in order of arrival, on the fewest nodes


@pytest.mark.parametrize("name", ["dragon", "locality"])
def test_the_first_job_in_order_of_arrival_that_fits_starts(name):
    states = [make_state(job, options=(gpus,)) for job, gpus in (("a", 3), ("b", 2), ("c", 1))]
    assert counts_of(make_snapshot(make_cluster(n1=4), *states), name) == {"a": 3, "c": 1}


@pytest.mark.parametrize("name", ["dragon", "locality"])
def test_a_gang_starts_whole_or_not_at_all(name):
    old = hold("old", {"n1": (0,)}, options=(1,))
    steps = steps_of(make_snapshot(make_cluster(n1=4), old, make_state("new", options=(4,))), name)
    assert isinstance(steps["new"], Wait)


@pytest.mark.parametrize("name", ["dragon", "locality"])
def test_a_gang_is_put_on_the_fewest_nodes(name):
    cluster = make_cluster(n1=2, n2=4, n3=2)
    steps = steps_of(make_snapshot(cluster, make_state("new", options=(4,))), name)
    assert isinstance(steps["new"], Start)
    assert steps["new"].placement.nodes == ("n2",)


@pytest.mark.parametrize("name", ["dragon", "locality"])
def test_a_job_starts_with_the_number_that_its_user_requested(name):
    new = make_state("new", options=(1, 2, 4), requested=2)
    assert counts_of(make_snapshot(make_cluster(n1=4), new), name) == {"new": 2}


def test_locality_never_makes_a_job_smaller_or_larger():
    states = (hold("old", {"n1": range(3)}, options=(1, 2, 3, 4)), make_state("new", options=(2,)))
    assert counts_of(make_snapshot(make_cluster(n1=4), *states, now=LATE), "locality") == {}


# --- steps 4 and 5: GPUs that idle


def make_idle(now: float, **rest: Any) -> Snapshot:
    """A job with two of the four GPUs of its node; the other two are free from the beginning."""
    old = hold("old", {"n1": (0, 1)}, **{"options": (1, 2, 3, 4), **rest})
    memory = DragonState({old.placement.nodes[0]: (0.0, 0.0)}, {})  # type: ignore[union-attr]
    return make_snapshot(make_cluster(n1=4), old, now=now, policy_state=memory)


def test_gpus_that_have_just_become_free_stay_free():
    assert counts_of(make_idle(59.0)) == {}
    assert decide(make_idle(59.0)).wake_at == 60.0


def test_gpus_that_idle_to_the_threshold_go_to_the_job_on_their_node():
    step = steps_of(make_idle(60.0))["old"]
    assert isinstance(step, Change)
    assert (step.new.gpus, step.cause.code) == (4, CauseCode.IDLE_GPUS)
    assert counts_of(make_idle(60.0), idle_seconds="61") == {}


def test_since_when_gpus_idle_is_remembered_from_decision_to_decision():
    snapshot = replace(make_idle(0.0), policy_state=None)
    plan = decide(snapshot)
    assert plan.wake_at == 60.0
    again = decide(replace(snapshot, now=40.0, policy_state=plan.policy_state))
    assert counts_of(replace(snapshot, now=60.0, policy_state=again.policy_state)) == {"old": 4}


def test_idle_gpus_on_other_nodes_are_left_idle():
    old = hold("old", {"n1": range(2)}, options=(2, 4))
    snapshot = make_snapshot(make_cluster(n1=2, n2=4), old, now=LATE)
    idle = DragonState({node.name: (0.0,) * 4 for node in snapshot.cluster.nodes[1:]}, {})
    assert counts_of(replace(snapshot, policy_state=idle)) == {}


def test_the_least_fulfilled_job_grows_first():
    states = (
        hold("full", {"n1": (0, 1, 2)}, options=(1, 2, 3, 4)),
        hold("lean", {"n1": (3, 4)}, options=(2, 3, 4)),
    )
    snapshot = make_snapshot(make_cluster(n1=6), *states, now=LATE)
    (node,) = snapshot.cluster.by_name
    assert counts_of(replace(snapshot, policy_state=DragonState({node: (0.0,)}, {}))) == {"lean": 3}
