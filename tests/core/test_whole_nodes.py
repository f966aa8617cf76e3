"""Every policy keeps jobs whole-node, although none knows of the rule."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.core import checking, cycle, policies
from dljob.core.checking import BrokenLaw, Law
from dljob.core.model import Cause, CauseCode, Cluster, JobState, NodeName, Placement
from dljob.core.placement.free_gpus import Room
from dljob.core.planning import Plan, Start
from tests.builders import make_cluster, make_node, make_placement, make_snapshot, make_state
from tests.core.examples import few_examples
from tests.core.test_policies_laws import PROFILES, apply

NODES = {"n0": 4, "n1": 4, "n2": 4, "n3": 4}
CLUSTERS = [
    make_cluster(**NODES),
    make_cluster(n0=4, n1=2, n2=4),
    Cluster([make_node("n0", 4), make_node("n1", 4, unavailable={1}), make_node("n2", 4)]),
]
OPTIONS = [(1,), (2,), (1, 2, 4), (1, 2, 4, 8), (4, 8, 12), (8,), (2, 6, 8), (3, 6)]


def make_sharing_none(name: str = "j0", **given: Any) -> JobState:
    state = make_state(name, **given)
    return replace(state, job=replace(state.job, gpus=replace(state.job.gpus, whole_nodes=True)))


def on(**counts: int) -> dict[NodeName, int]:
    return {NodeName(node): count for node, count in counts.items()}


def is_whole(placement: Placement, cluster: Cluster) -> bool:
    return len(placement.slices) == 1 or all(
        len(part.gpus) == len(cluster.usable[part.node]) for part in placement.slices
    )


@st.composite
def jobs(draw: st.DrawFn) -> list[JobState]:
    drawn = draw(st.lists(st.sampled_from(OPTIONS), min_size=1, max_size=6))
    return [
        make_sharing_none(
            f"j{order}",
            order=order,
            options=options,
            requested=draw(st.sampled_from(options)),
            model=draw(st.sampled_from(["steep", "flat"])),
            iterations_total=draw(st.sampled_from([10.0, 1000.0, 50_000.0])),
        )
        for order, options in enumerate(drawn)
    ]


@pytest.mark.parametrize("name", [each for each in policies.NAMES if each != "kube-pods"])
@given(cluster=st.sampled_from(CLUSTERS), states=jobs(), steps=st.integers(1, 4))
@few_examples(8)
def test_spread_job_fills_each_node(name, cluster, states, steps):
    snapshot = make_snapshot(cluster, *states, profiles=PROFILES)
    for _ in range(steps):
        plan = cycle.schedule(snapshot, policies.make(name))
        snapshot = apply(plan, snapshot)
        for state in snapshot.running:
            assert state.placement is not None
            assert is_whole(state.placement, cluster)
        # The first job ends, so that the others grow and move onto its GPUs.
        snapshot = replace(snapshot, running=snapshot.running[1:], now=snapshot.now + 60.0)


def test_whole_nodes_are_needed():
    cluster = make_cluster(**NODES)
    job = make_sharing_none(options=(8,))
    room = Room(cluster)
    room.take(on(n0=1, n1=1))
    fit = room.find(job, 8)
    assert fit is not None
    assert fit.nodes == {"n2": 4, "n3": 4}
    room.take(on(n2=1))
    assert room.find(job, 8) is None, "thirteen GPUs are free, but only one whole node"
    assert room.find(make_state(options=(8,)), 8) is not None


def test_plan_with_partial_nodes_is_refused():
    cluster = make_cluster(**NODES)
    job = make_sharing_none(options=(8,))
    halves = make_placement(n0=range(4), n1=range(2), n2=range(2))
    plan = Plan((Start(job.id, halves, Cause(CauseCode.ITS_TURN)),), 1)
    with pytest.raises(BrokenLaw) as caught:
        checking.check(plan, make_snapshot(cluster, job), policy="las")
    assert caught.value.law is Law.ALLOWED_SHAPE
