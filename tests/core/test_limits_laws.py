"""
Every policy respects the needs of pods and the limits of namespaces.

The checks here do not use the product's code: they add up the effect of each plan, while pods start on
nodes that others use and jobs end one after the other.
"""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.core import cycle
from dljob.core.model import CauseCode, Cluster, JobId, JobState, Node, Snapshot
from dljob.core.placement.limits import NamespaceLimits, namespace_of
from dljob.core.placement.needs import Needs
from dljob.core.planning import Plan, Reshape, Start, Stop, Wait
from dljob.sim import policies
from tests.builders import make_node, make_snapshot, make_state
from tests.core.examples import few_examples
from tests.core.test_policies_laws import every_policy, placement_after, with_states

NODES = ("n0", "n1", "n2", "n3")
NAMESPACES = ("red", "blue", "free")
OPTIONS = [(1,), (2,), (4,), (1, 2), (1, 2, 4), (2, 4, 8)]
KINDS = [
    Needs((("cpu", cpus), ("memory", 1000)), nodes)
    for cpus in (0, 1000, 3000, 6000)
    for nodes in (None, frozenset({"n0", "n1"}), frozenset({"n2"}))
]
AWAKE = 40
"""More rounds than any world here needs."""


def draw_world(seed: int) -> Snapshot:
    rng = random.Random(seed)
    nodes = []
    for name in NODES[: rng.randint(1, 4)]:
        cpus = rng.choice([0, 2000, 6000, 64_000])
        nodes.append(make_node(name, rng.randint(1, 4), free={"cpu": cpus, "memory": 3000}))
    states = [
        make_state(
            f"{rng.choice(NAMESPACES)}/job-{number}",
            options=(options := rng.choice(OPTIONS)),
            requested=rng.choice(options),
            priority=rng.randint(0, 2),
            order=number,
            needs=rng.choice([None, *KINDS]),
        )
        for number in range(rng.randint(1, 8))
    ]
    limits = NamespaceLimits(
        max_gpus={"red": rng.randint(0, 6), "blue": rng.randint(1, 4)}
        if rng.random() < 0.7
        else {},
        max_priority={"*": rng.choice([1, 2])} if rng.random() < 0.3 else {},
    )
    return replace(make_snapshot(Cluster(nodes), *states, seed=rng.randint(0, 3)), limits=limits)


worlds = st.integers(0, 4000).map(draw_world)


def carry_out(plan: Plan, snapshot: Snapshot) -> Snapshot:
    """Carry the plan out; the pods of a job that loses a node are gone at once."""
    states = {state.id: state for state in (*snapshot.running, *snapshot.pending)}
    nodes = {node.name: node for node in snapshot.cluster.nodes}
    for step in plan.steps:
        state = states[step.job]
        if isinstance(step, Wait):
            states[step.job] = replace(state, waiting=step.cause)
            continue
        placement = None if isinstance(step, Stop) else placement_after(step)
        had = set(state.placement.nodes) if state.placement is not None else set()
        has = set(placement.nodes) if placement is not None else set()
        for node in had ^ has:
            sign = 1 if node in had else -1
            nodes[node] = charged(nodes[node], state, sign)
        gang = 0 if isinstance(step, Stop) else step.gang
        states[step.job] = replace(state, placement=placement, gang=gang, waiting=None)
    return with_states(
        snapshot, states.values(), cluster=Cluster(nodes.values()), policy_state=plan.policy_state
    )


def charged(node: Node, state: JobState, sign: int) -> Node:
    assert node.free is not None
    asked = dict(state.needs.amounts) if state.needs is not None else {}
    return replace(
        node, free={name: amount + sign * asked.get(name, 0) for name, amount in node.free.items()}
    )


def gpus_by_namespace(snapshot: Snapshot) -> Counter[str]:
    held: Counter[str] = Counter()
    for state in snapshot.running:
        assert state.placement is not None
        held[namespace_of(state.id)] += state.placement.gpus
    return held


def judge(snapshot: Snapshot) -> None:
    """No node has more pods than room, and no namespace more GPUs than its limit."""
    for node in snapshot.cluster.nodes:
        assert node.free is not None
        assert min(node.free.values()) >= 0, f"{node.name} is overfull"
    for state in snapshot.running:
        assert state.placement is not None
        if state.needs is not None and state.needs.nodes is not None:
            assert set(state.placement.nodes) <= state.needs.nodes
    for namespace, gpus in gpus_by_namespace(snapshot).items():
        limit = snapshot.limits.gpus_of(namespace)
        assert limit is None or gpus <= limit


@every_policy
@few_examples(15)
@given(worlds)
def test_nodes_and_namespaces_stay_within_limits(name, snapshot):
    policy = policies.make(name)
    for _ in range(4):
        snapshot = carry_out(cycle.schedule(snapshot, policy), snapshot)
        judge(snapshot)


def edited(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """Some users change the allowed numbers of GPUs of their running or waiting jobs."""

    def edit(state: JobState) -> JobState:
        if rng.random() < 0.6:
            return state
        options = rng.choice(OPTIONS)
        demand = replace(state.job.gpus, options=options, requested=rng.choice(options))
        return replace(state, job=replace(state.job, gpus=demand))

    states = [edit(state) for state in (*snapshot.running, *snapshot.pending)]
    return with_states(snapshot, states)


@every_policy
@few_examples(15)
@given(worlds, st.integers(0, 10**6))
def test_edits_of_running_jobs_break_no_law(name, snapshot, seed):
    policy, rng = policies.make(name), random.Random(seed)
    for _ in range(6):
        snapshot = carry_out(cycle.schedule(snapshot, policy), snapshot)
        judge(snapshot)
        assert all(state.has_allowed_size for state in snapshot.running)
        snapshot = edited(snapshot, rng)


def test_growth_beyond_the_namespace_limit_waits():
    jobs = [
        make_state("red/a", options=(4, 8), holds={"n0": (0, 1)}),
        make_state("red/b", options=(6,), holds={"n0": (2, 3, 4, 5, 6, 7)}, order=1),
    ]
    world = make_snapshot(Cluster([make_node("n0", 16)]), *jobs)
    limited = replace(world, limits=NamespaceLimits(max_gpus={"red": 8}))
    for name in policies.NAMES:
        steps = steps_of(limited, name)
        assert isinstance(steps["red/a"], Stop), name
        assert steps["red/a"].cause.code is CauseCode.SPEC_CHANGED, name
        assert "red/b" not in steps, name


def could_run_alone(state: JobState, snapshot: Snapshot, empty: Cluster) -> bool:
    """Whether the nodes that take its pods have enough GPUs if no other job runs."""
    limits, namespace = snapshot.limits, namespace_of(state.id)
    highest, limit = limits.priority_of(namespace), limits.gpus_of(namespace)
    if (highest is not None and state.job.priority > highest) or (
        limit is not None and state.least > limit
    ):
        return False
    gpus = 0
    for node in empty.nodes:
        needs = state.needs
        if needs is not None and needs.nodes is not None and node.name not in needs.nodes:
            continue
        asked = dict(needs.amounts) if needs is not None else {}
        assert node.free is not None
        if all(amount <= node.free[what] for what, amount in asked.items()):
            gpus += len(node.gpus)
    return gpus >= state.least


# kube-pods is left out, because under it some jobs wait for ever by design.
@pytest.mark.parametrize("name", sorted(set(policies.NAMES) - {"kube-pods"}))
@few_examples(15)
@given(worlds)
def test_every_job_that_could_run_does(name, snapshot):
    # A policy that decides in rounds holds one whenever time passes here.
    rounds = {"period_seconds": "100"} if "period_seconds" in policies.options_of(name) else {}
    policy, empty = policies.make(name, rounds), snapshot.cluster
    able = {s.id for s in snapshot.pending if could_run_alone(s, snapshot, empty)}
    ran: set[JobId] = set()
    for _ in range(AWAKE):
        snapshot = carry_out(cycle.schedule(snapshot, policy), snapshot)
        ran |= {state.id for state in snapshot.running}
        if not snapshot.running:
            break
        # The first of those that run ends.
        first = snapshot.running[0]
        assert first.placement is not None
        gone = set(first.placement.nodes)
        nodes = [charged(n, first, 1) if n.name in gone else n for n in snapshot.cluster.nodes]
        left = [s for s in (*snapshot.running, *snapshot.pending) if s.id != first.id]
        snapshot = with_states(snapshot, left, cluster=Cluster(nodes), now=snapshot.now + 100.0)
    assert not snapshot.running
    assert ran == able
    codes = {s.waiting.code for s in snapshot.pending if s.waiting is not None}
    assert len(codes) == 0 or codes <= {
        CauseCode.TOO_LARGE,
        CauseCode.POD_FITS_NOWHERE,
        CauseCode.NO_ROOM_FOR_POD,
        CauseCode.NAMESPACE_LIMIT,
        CauseCode.PRIORITY_NOT_ALLOWED,
    }


def steps_of(snapshot, name="adaptive"):
    return {step.job: step for step in cycle.schedule(snapshot, policies.make(name)).steps}


def test_jobs_of_a_namespace_make_room_for_each_other():
    old = make_state("red/old", options=(1, 2, 4), holds={"n0": (0, 1, 2, 3)})
    world = make_snapshot(Cluster([make_node("n0", 8)]), old, make_state("red/new", options=(1, 2)))
    steps = steps_of(replace(world, limits=NamespaceLimits(max_gpus={"red": 4})))
    assert isinstance(steps["red/old"], Reshape)
    assert steps["red/old"].cause.code is CauseCode.NAMESPACE_LIMIT
    assert steps["red/old"].new.gpus + steps["red/new"].placement.gpus <= 4


def test_lower_limit_shrinks_but_stops_no_job():
    jobs = [
        make_state("red/a", options=(2, 4), holds={"n0": (0, 1, 2, 3)}),
        make_state("red/b", options=(1, 2), holds={"n0": (4, 5)}),
    ]
    world = make_snapshot(Cluster([make_node("n0", 8)]), *jobs)
    steps = steps_of(replace(world, limits=NamespaceLimits(max_gpus={"*": 2})))
    assert [steps["red/a"].new.gpus, steps["red/b"].new.gpus] == [2, 1]


def test_limited_namespace_does_not_block_others():
    world = make_snapshot(
        Cluster([make_node("n0", 2)]),
        make_state("red/first", options=(2,)),
        make_state("blue/second", options=(2,)),
    )
    world = replace(world, limits=NamespaceLimits(max_gpus={"red": 1}))
    for name in policies.NAMES:
        steps = steps_of(world, name)
        assert isinstance(steps["blue/second"], Start), name
        assert steps["red/first"].cause.code is CauseCode.NAMESPACE_LIMIT


def test_gpus_held_for_a_pod_without_room_are_released():
    needs = Needs((("cpu", 2000),))
    first, second = (make_state(name, options=(2,), needs=needs) for name in ("first", "second"))
    world = make_snapshot(
        Cluster([make_node("n0", 4, free={"cpu": 2000})]),
        first,
        second,
        make_state("third", options=(2,)),
    )
    steps = steps_of(world, "max-min")
    assert [type(steps[name]) for name in ("first", "second", "third")] == [Start, Wait, Start]
    assert steps["second"].cause.code is CauseCode.NO_ROOM_FOR_POD
