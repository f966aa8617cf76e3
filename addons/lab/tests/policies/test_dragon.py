"""DRAGON and its baseline: each rule of section 3.3, and the gaps that the policy fills."""

from dataclasses import replace
from typing import Any

import pytest

from dljob.core import cycle
from dljob.core.model import Cause, CauseCode, JobId, Snapshot
from dljob.core.planning import Change, Plan, Start, Step, Wait
from dljob.sim import policies
from dljob_lab.policies.elastic.dragon.policy import DragonState
from tests.builders import count_gpus, make_cluster, make_snapshot, make_state

both = pytest.mark.parametrize("name", ["dragon", "locality"])
LATE = 1000.0
"""When each job that waits from the beginning is urgent, and each idle GPU idle for long."""


def decide(snapshot: Snapshot, name: str = "dragon", **options: str) -> Plan:
    return cycle.schedule(snapshot, policies.make(name, options))


def counts_of(snapshot: Snapshot, name: str = "dragon", **options: str) -> dict[str, int]:
    return count_gpus(decide(snapshot, name, **options))


def steps_of(snapshot: Snapshot, name: str = "dragon") -> dict[str, Step]:
    return {str(step.job): step for step in decide(snapshot, name).steps}


def make_crowded(now: float) -> Snapshot:
    old = make_state("old", holds={"n1": range(4)}, options=(1, 2, 4))
    return make_snapshot(make_cluster(n1=4), old, make_state("new", options=(2, 4)), now=now)


@pytest.mark.parametrize(
    ("now", "threshold", "counts", "wake_at"),
    [
        (10.0, "30", {}, 30.0),
        (29.0, "30", {}, 30.0),
        (30.0, "30", {"old": 2, "new": 2}, None),
        (30.0, "31", {}, 31.0),
        (0.0, "0", {"old": 2, "new": 2}, None),
    ],
)
def test_job_shrinks_for_an_urgent_one_only(now, threshold, counts, wake_at):
    plan = decide(make_crowded(now), urgent_seconds=threshold)
    assert (count_gpus(plan), plan.wake_at) == (counts, wake_at)


def test_urgent_job_starts_after_the_one_that_shrinks():
    steps = steps_of(make_crowded(30.0))
    assert steps["old"].cause == Cause(CauseCode.MAKES_ROOM, JobId("new"))
    assert isinstance(steps["new"], Start)
    assert steps["new"].after == ("old",)


def test_smallest_urgent_job_is_served_first():
    old = make_state("old", holds={"n1": range(4)}, options=(2, 4))
    large, small = make_state("large", options=(2,)), make_state("small", options=(1, 2))
    counts = counts_of(make_snapshot(make_cluster(n1=4), old, large, small, now=LATE))
    # The small one leaves one GPU, which is too little for the large one.
    assert counts == {"old": 2, "small": 1}


def test_no_job_shrinks_if_the_smallest_urgent_job_does_not_fit():
    old = make_state("old", holds={"n1": range(4)}, options=(3, 4))
    snapshot = make_snapshot(
        make_cluster(n1=4),
        old,
        make_state("a", options=(2,)),
        make_state("b", options=(3,)),
        now=LATE,
    )
    assert counts_of(snapshot) == {}


def test_job_with_most_surplus_shrinks_first():
    states = (
        make_state("rich", holds={"n1": range(4)}, options=(1, 2, 3, 4)),
        make_state("poor", holds={"n2": range(4)}, options=(3, 4)),
        make_state("new", options=(1,)),
    )
    counts = counts_of(make_snapshot(make_cluster(n1=4, n2=4), *states, now=LATE))
    assert counts == {"rich": 3, "new": 1}


def test_victims_shrink_to_their_minimum():
    states = (
        make_state("a", holds={"n1": (0, 1, 2, 3)}, options=(2, 3, 4)),
        make_state("b", holds={"n1": (4, 5)}, options=(1, 2)),
        make_state("new", options=(3,)),
    )
    counts = counts_of(make_snapshot(make_cluster(n1=6), *states, now=LATE))
    assert counts == {"a": 2, "b": 1, "new": 3}


@both
def test_first_job_that_fits_starts(name):
    states = [make_state(job, options=(gpus,)) for job, gpus in (("a", 3), ("b", 2), ("c", 1))]
    assert counts_of(make_snapshot(make_cluster(n1=4), *states), name) == {"a": 3, "c": 1}


@both
def test_gang_starts_whole_or_not_at_all(name):
    old = make_state("old", holds={"n1": (0,)}, options=(1,))
    steps = steps_of(make_snapshot(make_cluster(n1=4), old, make_state("new", options=(4,))), name)
    assert isinstance(steps["new"], Wait)


@both
def test_gang_uses_the_fewest_nodes(name):
    cluster = make_cluster(n1=2, n2=4, n3=2)
    steps = steps_of(make_snapshot(cluster, make_state("new", options=(4,))), name)
    assert isinstance(steps["new"], Start)
    assert steps["new"].placement.nodes == ("n2",)


@both
def test_job_starts_with_its_requested_gpus(name):
    new = make_state("new", options=(1, 2, 4), requested=2)
    assert counts_of(make_snapshot(make_cluster(n1=4), new), name) == {"new": 2}


def test_locality_never_reshapes():
    states = (
        make_state("old", holds={"n1": range(3)}, options=(1, 2, 3, 4)),
        make_state("new", options=(2,)),
    )
    assert counts_of(make_snapshot(make_cluster(n1=4), *states, now=LATE), "locality") == {}


def make_idle(now: float, **rest: Any) -> Snapshot:
    """A job with two of the four GPUs of its node; the other two are free from the beginning."""
    old = make_state("old", holds={"n1": (0, 1)}, **{"options": (1, 2, 3, 4), **rest})
    memory = DragonState({old.placement.nodes[0]: (0.0, 0.0)}, {})  # type: ignore[union-attr]
    return make_snapshot(make_cluster(n1=4), old, now=now, policy_state=memory)


def test_newly_free_gpus_stay_free():
    assert counts_of(make_idle(59.0)) == {}
    assert decide(make_idle(59.0)).wake_at == 60.0


def test_idle_gpus_go_to_the_job_on_their_node():
    step = steps_of(make_idle(60.0))["old"]
    assert isinstance(step, Change)
    assert (step.new.gpus, step.cause.code) == (4, CauseCode.IDLE_GPUS)
    assert counts_of(make_idle(60.0), idle_seconds="61") == {}


def test_idle_times_are_remembered():
    snapshot = replace(make_idle(0.0), policy_state=None)
    plan = decide(snapshot)
    assert plan.wake_at == 60.0
    again = decide(replace(snapshot, now=40.0, policy_state=plan.policy_state))
    assert counts_of(replace(snapshot, now=60.0, policy_state=again.policy_state)) == {"old": 4}


def test_idle_gpus_on_other_nodes_stay_idle():
    old = make_state("old", holds={"n1": range(2)}, options=(2, 4))
    snapshot = make_snapshot(make_cluster(n1=2, n2=4), old, now=LATE)
    idle = DragonState({node.name: (0.0,) * 4 for node in snapshot.cluster.nodes[1:]}, {})
    assert counts_of(replace(snapshot, policy_state=idle)) == {}


def test_least_fulfilled_job_grows_first():
    states = (
        make_state("full", holds={"n1": (0, 1, 2)}, options=(1, 2, 3, 4)),
        make_state("lean", holds={"n1": (3, 4)}, options=(2, 3, 4)),
    )
    snapshot = make_snapshot(make_cluster(n1=6), *states, now=LATE)
    (node,) = snapshot.cluster.by_name
    assert counts_of(replace(snapshot, policy_state=DragonState({node: (0.0,)}, {}))) == {"lean": 3}
