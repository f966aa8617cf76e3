"""
The GPUs of each job: the free room, and the placements that follow from shares.

Each placement comes from the whole cycle with a fixed policy, so it has passed the laws as well.
"""

from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dljob.core import contract
from dljob.core.model import Cause, CauseCode, Cluster
from dljob.core.placement import counting
from dljob.core.placement.free_gpus import Room
from dljob.core.planning import Start, Stop, Wait
from tests.builders import (
    make_cluster,
    make_node,
    make_placement,
    make_plan,
    make_snapshot,
    make_state,
)


def find(cluster, gpus, **job):
    """Find a place for a job, as a plain dict."""
    job.setdefault("options", (gpus,))
    fit = Room(cluster).find(make_state("job", **job), gpus)
    return fit and dict(fit.nodes)


# Nodes are plain strings here.
share: Any = contract.Share


def test_unavailable_gpus_are_not_free():
    cluster = make_cluster(
        make_node("n1", 4, unavailable=(0, 3)), make_node("n2", 4, schedulable=False)
    )
    holder = make_placement(n1=(0, 1), n2=(0,))
    full: Any = Room(cluster).nodes
    left: Any = Room(cluster, [holder]).nodes
    freed: Any = counting.count_usable(holder, cluster)
    assert full == {"n1": 2, "n2": 0}
    assert left == freed == {"n1": 1, "n2": 0}


def test_job_takes_the_smallest_sufficient_gap():
    cluster = make_cluster(n1=8, n2=4, n3=2)
    assert find(cluster, 3) == {"n2": 3}
    assert find(cluster, 2) == {"n3": 2}
    assert find(cluster, 8) == {"n1": 8}


def test_emptiest_node_has_the_largest_gap():
    room = Room(make_cluster(n1=2, n2=4, n3=3))
    assert room.find_emptiest(make_state(), "", 1) == "n2"
    assert room.find_emptiest(make_state(), "", 4) == "n2"
    assert room.find_emptiest(make_state(), "", 5) is None
    assert room.find_emptiest(make_state(), "unknown type", 1) is None


def test_wide_job_takes_the_fewest_nodes_and_a_best_fit():
    cluster = make_cluster(n1=4, n2=4, n3=2, n4=3)
    assert find(cluster, 6) == {"n1": 4, "n3": 2}
    assert find(cluster, 13) == {"n1": 4, "n2": 4, "n4": 3, "n3": 2}
    assert find(cluster, 14) is None


def test_bound_job_stays_on_its_nodes():
    cluster = make_cluster(n1=(2, "A"), n2=(4, "A"), n3=(8, "B"))
    assert find(cluster, 2, bound_to=("n2",)) == {"n2": 2}
    assert find(cluster, 2, bound_to=("n2", "n1")) == {"n1": 2}
    assert find(cluster, 6, bound_to=("n1", "n2")) == {"n2": 4, "n1": 2}
    assert find(cluster, 6, bound_to=("n1", "n2"), max_nodes=1) is None
    assert find(cluster, 8, bound_to=("n1", "n3")) == {"n3": 8}
    assert find(cluster, 10, bound_to=("n1", "n3")) is None
    assert find(cluster, 10, bound_to=("n1", "n3"), mixed=True) == {"n3": 8, "n1": 2}
    assert find(cluster, 1, bound_to=("n3",), types=("A",)) is None
    assert find(cluster, 1, bound_to=("gone",)) is None


@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    kinds=st.lists(st.sampled_from("AB"), min_size=5, max_size=5),
    gpus=st.integers(1, 12),
    max_nodes=st.sampled_from([None, 1, 2, 3]),
    mixed=st.booleans(),
)
def test_place_is_found_on_the_fewest_nodes(sizes, kinds, gpus, max_nodes, mixed):
    nodes = [make_node(f"n{i}", size, kinds[i]) for i, size in enumerate(sizes)]
    found = find(Cluster(nodes), gpus, max_nodes=max_nodes, mixed=mixed)
    most = min(max_nodes or len(nodes), len(nodes))
    possible = [
        count
        for count in range(1, most + 1)
        for chosen in combinations(nodes, count)
        if sum(len(node.gpus) for node in chosen) >= gpus
        and (mixed or len({node.gpu_type for node in chosen}) == 1)
    ]
    if not possible:
        assert found is None
        return
    assert sum(found.values()) == gpus
    pure = len({kinds[int(name[1:])] for name in found}) == 1
    assert len(found) == min(possible) or (mixed and pure)
    assert all(0 < count <= sizes[int(name[1:])] for name, count in found.items())


def placements(cluster, *states, **shares):
    """Return the placements of all jobs after the plan that follows from these shares."""
    snapshot = make_snapshot(cluster, *states)
    after = {state.id: state.placement for state in states}
    for step in make_plan(snapshot, shares).steps:
        if isinstance(step, Start):
            after[step.job] = step.placement
        elif isinstance(step, Stop):
            after[step.job] = None
        elif not isinstance(step, Wait):
            after[step.job] = step.new
    return after


def test_shrinking_job_drops_its_smallest_slices():
    old = make_state("old", options=(1, 2, 3, 5), holds={"n1": (0,), "n2": (0, 1, 2), "n3": (0,)})
    new = make_state("new", options=(2,))
    cluster = make_cluster(n1=1, n2=3, n3=1)
    assert placements(cluster, old, new, old=3, new=2)["old"] == make_placement(n2=(0, 1, 2))
    assert placements(cluster, old, new, old=2, new=2)["old"] == make_placement(n2=(0, 1))


def test_growing_job_stays_on_its_nodes():
    old = make_state("old", holds={"n1": (1, 2)})
    assert placements(make_cluster(n1=4, n2=8), old, old=4)["old"] == make_placement(
        n1=(0, 1, 2, 3)
    )


def test_job_moves_whole_if_it_cannot_grow():
    old = make_state("old", holds={"n1": (0, 1)})
    after = placements(make_cluster(n1=3, n2=8), old, old=4)
    assert after["old"] == make_placement(n2=(0, 1, 2, 3))


def test_broken_gpu_left_behind_goes_to_no_job():
    node = make_node("n1", 2, unavailable=(0,))
    old = make_state("old", holds={"n1": (0, 1)})
    new = make_state("new", options=(2,))
    after = placements(make_cluster(node, make_node("n2", 4)), old, new, old=4, new=2)
    assert after["old"] == make_placement(n2=(0, 1, 2, 3))
    assert after["new"] is None


def test_mixed_job_grows_or_moves():
    old = make_state(
        "old", options=(2, 4), mixed=True, holds={"n1": (0,), "n2": (0,)}, gpu_type="A+B"
    )
    cluster = make_cluster(n1=(1, "A"), n2=(1, "B"), n3=(4, "A"))
    assert placements(cluster, old, old=4)["old"] == make_placement("A", n3=(0, 1, 2, 3))
    cluster = make_cluster(n1=(2, "A"), n2=(2, "B"), n3=(4, "A"))
    assert placements(cluster, old, old=4)["old"] == make_placement("A+B", n1=(0, 1), n2=(0, 1))


def test_named_nodes_are_used():
    old = make_state("old", options=(2, 4), holds={"n1": (0, 1, 2, 3)})
    new = make_state("new", options=(2,))
    cluster = make_cluster(n1=4, n2=4)
    after = placements(
        cluster,
        old,
        new,
        old=share(2, Cause(CauseCode.MAKES_ROOM), nodes={"n1": 2}),
        new=share(2, nodes={"n1": 2}),
    )
    assert after == {"old": make_placement(n1=(0, 1)), "new": make_placement(n1=(2, 3))}
    same = share(4, nodes={"n1": 4})
    assert placements(cluster, old, old=same)["old"] is old.placement


def test_job_without_a_place_waits_with_the_reason():
    snapshot = make_snapshot(
        make_cluster(n1=4, n2=4),
        make_state("old", options=(2,), holds={"n1": (0, 1)}),
        make_state("wide", options=(4, 6), max_nodes=1, requested=4),
        make_state("bound", options=(4,), bound_to=("n1",)),
        make_state("narrow", options=(4,)),
    )
    plan = make_plan(
        snapshot, {"old": 2, "narrow": share(4, nodes={"n2": 4}), "wide": 4, "bound": 4}
    )
    waits = {step.job: step.cause for step in plan.steps if isinstance(step, Wait)}
    assert waits == {
        "wide": Cause(CauseCode.NO_ROOM_ON_ONE_NODE, gpus=4),
        "bound": Cause(CauseCode.CHECKPOINT_ELSEWHERE, gpus=4),
    }


def test_no_job_loses_gpus_for_one_without_a_place():
    stops = make_state("stops", options=(2,), holds={"n1": (0, 1)})
    shrinks = make_state("shrinks", options=(1, 2), holds={"n2": (0, 1)})
    new = make_state("new", options=(3,), max_nodes=1)
    after = placements(make_cluster(n1=2, n2=3), stops, shrinks, new, shrinks=1, new=3)
    assert after == {"stops": stops.placement, "shrinks": shrinks.placement, "new": None}


def test_only_the_job_whose_gpus_are_taken_stops():
    loses = make_state("loses", options=(2,), holds={"n1": (0, 1)})
    keeps = make_state("keeps", options=(2,), holds={"n2": (0, 1)})
    new = make_state("new", options=(2,))
    after = placements(make_cluster(n1=2, n2=2), loses, keeps, new, new=2)
    assert after == {"loses": None, "keeps": keeps.placement, "new": make_placement(n1=(0, 1))}
