"""On which nodes ``foresight`` puts the shares that it chose."""

import math
import random

import pytest

from dljob.core import cycle
from dljob.core.model import CauseCode, JobState, Mechanism, Node, NodeName, Placement, Snapshot
from dljob.core.planning import Change, Move, Reshape, Start, Step, Wait
from dljob.core.policies.foresight.placing import withdraw
from dljob.core.profiles import Costs, Profile
from dljob.sim import policies
from dljob_wire.messages import Shape
from tests.builders import (
    make_cluster,
    make_node,
    make_placement,
    make_profile,
    make_snapshot,
    make_state,
)

SMALL = make_profile({1: 1.0}, model="small")
N1, N2, N3 = map(NodeName, ("n1", "n2", "n3"))
CHANGES = Costs(process_initialization=10, checkpoint=5)


def decide(snapshot: Snapshot, **options: str) -> dict[str, Step]:
    plan = cycle.schedule(snapshot, policies.make("foresight", options))
    return {str(step.job): step for step in plan.steps}


def nodes_of(step: Step) -> dict[str, int]:
    if isinstance(step, Start):
        held = step.placement
    else:
        assert isinstance(step, Change)
        held = step.new
    return {str(node): len(gpus) for node, gpus in held.slices}


def make_wide(over_two: float) -> Profile:
    """A type of job that wants four GPUs, and trains so fast on two nodes."""
    return make_profile({Shape(4, 1, ""): 4.0, Shape(4, 2, ""): over_two}, model="wide")


def make_small(name: str, node: str, **rest):
    return make_state(name, model="small", options=(1,), holds={node: (0,)}, **rest)


# --- other jobs make room


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


def test_a_small_job_moves_so_that_a_wide_one_fits_on_one_node():
    steps = decide(scatter(1.0, CHANGES))
    (moved,) = (step for step in steps.values() if isinstance(step, Move))
    assert (len(steps), moved.cause.code) == (2, CauseCode.PACKING)
    (freed,) = moved.old.nodes
    assert nodes_of(steps["wide"]) == {freed: 4}


def test_no_job_moves_where_the_move_costs_more_than_two_nodes_do():
    steps = decide(scatter(3.95, CHANGES))
    assert list(steps) == ["wide"]
    assert sorted(nodes_of(steps["wide"]).values()) == [1, 3]


def test_a_job_that_may_not_spread_fits_only_if_others_move():
    steps = decide(scatter(4.0, CHANGES, max_nodes=1))
    assert list(nodes_of(steps["wide"]).values()) == [4]


def test_a_job_whose_checkpoint_is_on_a_node_does_not_move_from_there():
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


# --- jobs that are spread


def spread_out(over_two: float, *others, **sizes: int) -> Snapshot:
    held = {"n1": (0, 1), "n2": (0, 1)}
    return make_snapshot(
        make_cluster(**(sizes or {"n1": 2, "n2": 2, "n3": 4})),
        make_state("wide", model="wide", options=(4,), holds=held, speed=over_two),
        *others,
        profiles=[SMALL, make_wide(over_two)],
        costs=CHANGES,
    )


def test_a_job_over_two_nodes_is_put_together_on_one_that_is_free():
    steps = decide(spread_out(1.0))
    assert isinstance(steps["wide"], Move)
    assert nodes_of(steps["wide"]) == {"n3": 4}


def test_a_job_over_two_nodes_stays_where_that_is_nearly_as_fast():
    assert decide(spread_out(3.95)) == {}


def test_a_job_is_put_together_where_it_has_gpus_and_others_move_from_there():
    others = [
        make_state(name, model="small", options=(1,), holds={node: (2,)})
        for name, node in (("a", "n1"), ("b", "n2"))
    ]
    steps = decide(spread_out(1.0, *others, n1=4, n2=4))
    assert list(nodes_of(steps["wide"]).values()) == [4]
    (moved,) = steps.keys() - {"wide"}
    assert isinstance(steps[moved], Move)


# --- jobs that lose or get GPUs


def test_a_job_that_finds_no_place_gives_its_victims_their_gpus_back():
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


def test_gpus_that_a_job_could_not_use_go_to_a_job_beside_them():
    grows = make_profile({1: 1.0, 2: 1.3}, model="grows")
    beside = make_state("beside", model="grows", options=(1, 2), holds={"n1": (0,)})
    bound = make_state(
        "bound", model="small", options=(1,), holds={"n2": (0,)}, bound_to=("n2",), priority=1
    )
    pair = make_state("pair", model="two", options=(2,), bound_to=("n2",), priority=1)
    profiles = [SMALL, grows, make_profile({2: 2.0}, model="two")]
    snapshot = make_snapshot(make_cluster(n1=2, n2=2), beside, bound, pair, profiles=profiles)
    steps = decide(snapshot)
    assert nodes_of(steps["beside"]) == {"n1": 2}


def test_a_job_that_shrinks_withdraws_to_one_node():
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
def test_what_a_job_keeps_is_on_the_fewest_nodes(nodes, gpus, kept):
    assert withdraw(nodes, gpus) == kept


def test_a_job_that_loses_gpus_names_the_one_that_gets_them():
    old = make_state("old", options=(2, 4), holds={"n1": range(4)}, iterations_total=5000.0)
    new = make_state("new", options=(2,))
    steps = decide(make_snapshot(make_cluster(n1=4), old, new))
    assert isinstance(steps["old"], Reshape)
    assert (steps["old"].cause.code, steps["old"].cause.job) == (CauseCode.MAKES_ROOM, "new")


# --- random nodes and jobs


def make_any_node(chance: random.Random, name: str, kinds: tuple[str, ...]) -> Node:
    size = chance.choice((1, 2, 4, 8))
    broken = [gpu for gpu in range(size) if chance.random() < 0.05]
    return make_node(
        name, size, chance.choice(kinds), unavailable=broken, schedulable=chance.random() < 0.95
    )


Free = dict[Node, list[int]]


def hold_any(chance: random.Random, free: Free, gpus: int, most_nodes: int) -> Placement | None:
    """
    Take ``gpus`` GPUs of one type from the first nodes that have some; none if these have fewer.
    """
    kind = chance.choice([node.gpu_type for node in free])
    there = [node for node in free if node.gpu_type == kind and free[node]][:most_nodes]
    if chance.random() < 0.4 or sum(len(free[node]) for node in there) < gpus:
        return None
    held: dict[str, list[int]] = {}
    for node in there:
        taken = [free[node].pop() for _ in range(min(gpus, len(free[node])))]
        gpus -= len(taken)
        if taken:
            held[node.name] = taken
    return make_placement(kind, **held)


def make_any_job(chance: random.Random, order: int, free: Free) -> JobState:
    options = tuple(sorted(chance.sample((1, 2, 3, 4, 8, 16), chance.randint(1, 4))))
    max_nodes = chance.choice((None, None, 1, 2))
    holds = hold_any(chance, free, chance.choice(options), max_nodes or len(free))
    adjusting = holds is not None and chance.random() < 0.2
    trains = holds is not None and not adjusting
    return make_state(
        f"j{order}",
        options=options,
        max_nodes=max_nodes,
        mixed=chance.random() < 0.2,
        model=chance.choice(("resnet", "wide", "unknown")),
        priority=chance.choice((0, 0, 0, 1)),
        holds=holds,
        order=order,
        iterations_total=chance.choice((10.0, 1000.0, 1e6, math.inf)),
        iterations_done=chance.choice((0.0, 500.0)),
        started_at=chance.choice((None, 0.0)),
        speed=chance.uniform(0.1, 4.0) if trains else 0.0,
        adjusting=adjusting,
        bound_to=holds.nodes if holds is not None and chance.random() < 0.2 else (),
    )


def make_anything(chance: random.Random) -> Snapshot:
    """A cluster with jobs scattered over it, and others that wait; all at random."""
    kinds = chance.choice((("",), ("",), ("V100", "T4")))
    nodes = [make_any_node(chance, f"n{n}", kinds) for n in range(chance.randint(1, 6))]
    free = {node: list(range(len(node.gpus))) for node in nodes}
    states = [make_any_job(chance, n, free) for n in range(chance.randint(1, 14))]
    wide = make_profile({Shape(1, 1, ""): 1.0, Shape(4, 1, ""): 3.5, Shape(4, 2, ""): 1.0}, "wide")
    return make_snapshot(
        make_cluster(*nodes),
        *states,
        profiles=[make_profile(), wide],
        costs=chance.choice((Costs(), CHANGES, Costs(checkpoint=200))),
        mechanism=chance.choice(list(Mechanism)),
        seed=chance.randint(0, 3),
    )


def test_no_decision_breaks_a_law_whatever_there_is():
    policy = policies.make("foresight")
    for seed in range(100):
        snapshot = make_anything(random.Random(seed))
        plan = cycle.schedule(snapshot, policy)
        again = cycle.schedule(snapshot, policy)
        assert plan.steps == again.steps, seed
