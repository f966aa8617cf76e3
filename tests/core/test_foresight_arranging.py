"""The nodes that ``foresight`` gives to its shares."""

import pytest

from dljob.core.model import CauseCode, NodeName, Snapshot
from dljob.core.planning import Change, Move, Reshape, Start, Step, Wait
from dljob.core.policies.foresight.placing import withdraw
from dljob.core.profiles import Costs, Profile
from dljob_wire.messages import Shape
from tests.builders import decide, make_cluster, make_profile, make_snapshot, make_state

SMALL = make_profile({1: 1.0}, model="small")
N1, N2, N3 = map(NodeName, ("n1", "n2", "n3"))
CHANGES = Costs(process_initialization=10, checkpoint=5)


def nodes_of(step: Step) -> dict[str, int]:
    if isinstance(step, Start):
        held = step.placement
    else:
        assert isinstance(step, Change)
        held = step.new
    return {str(node): len(gpus) for node, gpus in held.slices}


def make_wide(over_two: float) -> Profile:
    """A type of job for four GPUs, with this speed on two nodes."""
    return make_profile({Shape(4, 1, ""): 4.0, Shape(4, 2, ""): over_two}, model="wide")


def make_small(name: str, node: str, **rest):
    return make_state(name, model="small", options=(1,), holds={node: (0,)}, **rest)


def scatter(over_two: float, costs: Costs, **wide) -> Snapshot:
    """Two nodes with three of four GPUs free each, and a job that wants four."""
    return make_snapshot(
        make_cluster(n1=4, n2=4),
        make_small("a", "n1"),
        make_small("b", "n2"),
        make_state("wide", model="wide", options=(4,), **wide),
        profiles=[SMALL, make_wide(over_two)],
        costs=costs,
    )


def test_small_job_moves_so_that_a_wide_one_fits():
    steps = decide(scatter(1.0, CHANGES))
    (moved,) = (step for step in steps.values() if isinstance(step, Move))
    assert (len(steps), moved.cause.code) == (2, CauseCode.PACKING)
    (freed,) = moved.old.nodes
    assert nodes_of(steps["wide"]) == {freed: 4}


def test_no_move_if_it_costs_more_than_spreading():
    steps = decide(scatter(3.95, CHANGES))
    assert list(steps) == ["wide"]
    assert sorted(nodes_of(steps["wide"]).values()) == [1, 3]


def test_single_node_job_fits_after_a_move():
    steps = decide(scatter(4.0, CHANGES, max_nodes=1))
    assert list(nodes_of(steps["wide"]).values()) == [4]


def test_job_bound_to_a_node_does_not_move():
    snapshot = make_snapshot(
        make_cluster(n1=4, n2=4),
        make_small("a", "n1", bound_to=("n1",)),
        make_small("b", "n2", bound_to=("n2",)),
        make_state("wide", model="wide", options=(4,)),
        profiles=[SMALL, make_wide(1.0)],
    )
    steps = decide(snapshot)
    assert list(steps) == ["wide"]
    assert sorted(nodes_of(steps["wide"]).values()) == [1, 3]


def spread_out(over_two: float, *others, **sizes: int) -> Snapshot:
    held = {"n1": (0, 1), "n2": (0, 1)}
    return make_snapshot(
        make_cluster(**(sizes or {"n1": 2, "n2": 2, "n3": 4})),
        make_state("wide", model="wide", options=(4,), holds=held, speed=over_two),
        *others,
        profiles=[SMALL, make_wide(over_two)],
        costs=CHANGES,
    )


def test_spread_job_moves_to_one_free_node():
    steps = decide(spread_out(1.0))
    assert isinstance(steps["wide"], Move)
    assert nodes_of(steps["wide"]) == {"n3": 4}


def test_spread_job_stays_if_nearly_as_fast():
    assert decide(spread_out(3.95)) == {}


def test_spread_job_is_packed_where_it_holds_gpus():
    others = [
        make_state(name, model="small", options=(1,), holds={node: (2,)})
        for name, node in (("a", "n1"), ("b", "n2"))
    ]
    steps = decide(spread_out(1.0, *others, n1=4, n2=4))
    assert list(nodes_of(steps["wide"]).values()) == [4]
    (moved,) = steps.keys() - {"wide"}
    assert isinstance(steps[moved], Move)


def test_victims_keep_gpus_if_the_newcomer_finds_no_place():
    bound = [
        make_state(
            f"bound{node}",
            model="small",
            options=(1,),
            holds={node: (0,)},
            bound_to=(node,),
            priority=2,
        )
        for node in ("n1", "n2")
    ]
    victims = [
        make_state(f"victim{node}", model="small", options=(1,), holds={node: (1,)})
        for node in ("n1", "n2")
    ]
    pair = make_state("pair", model="two", options=(2,), max_nodes=1, priority=1)
    profiles = [SMALL, make_profile({2: 2.0}, model="two")]
    cluster = make_cluster(n1=2, n2=2)
    steps = decide(make_snapshot(cluster, *bound, *victims, pair, profiles=profiles))
    assert isinstance(steps.pop("pair"), Wait)
    assert steps == {}  # fmt: skip


def test_unusable_gpus_go_to_a_neighbour():
    grows = make_profile({1: 1.0, 2: 1.3}, model="grows")
    neighbour = make_state("neighbour", model="grows", options=(1, 2), holds={"n1": (0,)})
    bound = make_state(
        "bound", model="small", options=(1,), holds={"n2": (0,)}, bound_to=("n2",), priority=1
    )
    pair = make_state("pair", model="two", options=(2,), bound_to=("n2",), priority=1)
    profiles = [SMALL, grows, make_profile({2: 2.0}, model="two")]
    snapshot = make_snapshot(make_cluster(n1=2, n2=2), neighbour, bound, pair, profiles=profiles)
    steps = decide(snapshot)
    assert nodes_of(steps["neighbour"]) == {"n1": 2}


def test_shrinking_job_withdraws_to_one_node():
    peak = make_profile({2: 2.0, Shape(4, 1, ""): 1.0, Shape(4, 2, ""): 1.0})
    held = {"n1": (0, 1), "n2": (0, 1)}
    state = make_state(options=(2, 4), holds=held)
    steps = decide(make_snapshot(make_cluster(n1=2, n2=2), state, profiles=[peak]))
    assert isinstance(steps["job"], Reshape)
    assert list(nodes_of(steps["job"]).values()) == [2]
    assert steps["job"].cause.code == CauseCode.FASTER_WITH_FEWER


@pytest.mark.parametrize(
    ("nodes", "gpus", "kept"),
    [
        ({N1: 3, N2: 1}, 1, {N2: 1}),
        ({N1: 3, N2: 1}, 2, {N1: 2}),
        ({N1: 2, N2: 2}, 3, {N1: 2, N2: 1}),
        ({N1: 1, N2: 2, N3: 2}, 4, {N2: 2, N3: 2}),
    ],
)
def test_withdrawing_keeps_the_fewest_nodes(nodes, gpus, kept):
    assert withdraw(nodes, gpus) == kept


def test_shrink_names_the_job_that_gains():
    old = make_state("old", options=(2, 4), holds={"n1": range(4)}, iterations_total=5000.0)
    new = make_state("new", options=(2,))
    steps = decide(make_snapshot(make_cluster(n1=4), old, new))
    assert isinstance(steps["old"], Reshape)
    assert (steps["old"].cause.code, steps["old"].cause.job) == (CauseCode.MAKES_ROOM, "new")
