"""
Properties of every listed policy, on clusters, jobs and histories drawn at random.

The policies themselves are tested in ``test_policies.py``; here only what no policy may get wrong.
"""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.core import cycle
from dljob.core.checking import Law
from dljob.core.contract import Decision, Share, View
from dljob.core.model import (
    Cause,
    CauseCode,
    Cluster,
    JobId,
    JobState,
    Mechanism,
    Placement,
    Snapshot,
)
from dljob.core.placement.largest import acceptable_types
from dljob.core.planning import Move, Plan, Reshape, Start, Stop, Wait
from dljob.core.profiles import Costs, Profile
from dljob.sim import policies
from dljob_wire.messages import Shape
from tests.builders import (
    FakePolicy,
    make_cluster,
    make_node,
    make_profile,
    make_snapshot,
    make_state,
    make_view,
)
from tests.core.examples import few_examples

every_policy = pytest.mark.parametrize("name", policies.NAMES)

ELASTIC = {
    *("adaptive", "afs-l", "afs-p", "afs-s", "coach", "dragon", "foresight", "hdf", "hesrpt"),
    *(
        "lyra",
        "max-min",
        "optimus",
        "optimus-periodic",
        "sia",
        "smartfill",
        "srsf-e",
        "srtf-e",
        "themis",
    ),
}
"""Policies that may change a decision step by step; the others are at rest after one."""

CHANGES = Costs(process_initialization=10.0, checkpoint=5.0)
TYPES = ("V100", "P100")
NODES = tuple(f"n{number}" for number in range(5))

OPTIONS = [(1,), (2,), (3,), (4,), (8,), (1, 2), (1, 2, 4), (2, 4, 8), (1, 3, 6)]

# The values are drawn from pools, because to let hypothesis put together every job and node takes
# it many times as long as to schedule them.
_RANDOM = random.Random(0)


def draw_cluster() -> Cluster:
    """One to five nodes of one or two types; some GPUs and some nodes may not be given away."""
    types = _RANDOM.choice([("",), TYPES])
    nodes = []
    for name in NODES[: _RANDOM.randint(1, 5)]:
        size = _RANDOM.randint(1, 4)
        bad = {_RANDOM.randrange(size)} if _RANDOM.random() < 0.3 else ()
        healthy = _RANDOM.random() < 0.8
        kind = _RANDOM.choice(types)
        nodes.append(make_node(name, size, kind, unavailable=bad, schedulable=healthy))
    return Cluster(nodes)


def draw_job() -> JobState:
    options = _RANDOM.choice(OPTIONS)
    return make_state(
        options=options,
        requested=_RANDOM.choice(options),
        types=_RANDOM.choice([(), (), (), ("V100",), ("P100", "V100"), ("K80",)]),
        mixed=_RANDOM.random() < 0.3,
        max_nodes=_RANDOM.choice([None, None, 1, 2]),
        suspend=_RANDOM.random() < 0.1,
        priority=_RANDOM.randint(0, 1),
        model=_RANDOM.choice(["steep", "flat", "unknown"]),
        bound_to=_RANDOM.choice([(), (), (), (), ("n0",), ("n0", "n1")]),
        iterations_total=_RANDOM.choice([0.0, 10.0, 1000.0, 50_000.0]),
        iterations_done=_RANDOM.choice([0.0, 5.0, 900.0]),
        service=_RANDOM.choice([0.0, 3000.0, 5000.0, 1e6]),
    )


CLUSTERS = [make_cluster(n0=4), *(draw_cluster() for _ in range(300))]
JOBS = [make_state(), *(draw_job() for _ in range(500))]

clusters = st.sampled_from(CLUSTERS)
jobs = st.sampled_from(JOBS)


def make_profiles(v100: float) -> list[Profile]:
    """A job that gains from every GPU, and one that is slower with many; a third is unknown."""
    factors = {"": 1.0, "V100": v100, "P100": 1.0}
    curves = {"steep": {n: float(n) for n in (1, 2, 4, 8)}, "flat": {1: 1.0, 2: 1.5, 4: 1.2}}
    return [
        make_profile(
            {Shape(n, 1, kind): s * by for n, s in curve.items() for kind, by in factors.items()},
            model,
        )
        for model, curve in curves.items()
    ]


PROFILES = make_profiles(1.0)
"""On equal types, which a job also takes mixed."""
UNEQUAL = make_profiles(2.0)


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    """Some jobs in a cluster, all of them waiting."""
    states = [rename(job, number) for number, job in enumerate(draw(st.lists(jobs, max_size=8)))]
    return make_snapshot(
        draw(clusters),
        *states,
        profiles=draw(st.sampled_from([PROFILES, UNEQUAL])),
        seed=draw(st.integers(0, 3)),
        costs=draw(st.sampled_from([Costs(), CHANGES, Costs(checkpoint=200.0)])),
        mechanism=draw(st.sampled_from(Mechanism)),
    )


def rename(state: JobState, order: int) -> JobState:
    return replace(state, job=replace(state.job, id=JobId(f"job-{order}")), order=order)


def apply(plan: Plan, snapshot: Snapshot) -> Snapshot:
    predictor = make_view(snapshot).predictor
    states = {state.id: state for state in (*snapshot.running, *snapshot.pending)}
    for step in plan.steps:
        state = states[step.job]
        if isinstance(step, Wait):
            states[step.job] = replace(state, waiting=step.cause)
            continue
        placement = None if isinstance(step, Stop) else placement_after(step)
        states[step.job] = replace(
            state,
            placement=placement,
            gang=0 if isinstance(step, Stop) else step.gang,
            is_live=placement is not None and state.changes_live(placement),
            speed=predictor.speed(state.job, placement.shape) if placement else 0.0,
            iterations_done=state.iterations_at(snapshot.now),
            observed_at=snapshot.now,
            service=state.service_at(snapshot.now),
            waiting=None,
        )
    return with_states(snapshot, states.values(), policy_state=plan.policy_state)


def placement_after(step: Start | Reshape | Move) -> Placement:
    return step.placement if isinstance(step, Start) else step.new


def with_states(snapshot: Snapshot, states, **changes) -> Snapshot:
    ordered = sorted(states, key=lambda state: state.order)
    return replace(
        snapshot,
        running=tuple(state for state in ordered if state.placement is not None),
        pending=tuple(state for state in ordered if state.placement is None),
        **changes,
    )


class Dice(FakePolicy):
    """A random policy: the code after a policy meets any numbers, types and order."""

    def allocate(self, view: View) -> Decision:
        rng = random.Random(f"{view.seed} {view.now}")
        states = [*view.running, *view.pending]
        rng.shuffle(states)
        shares = {state.id: _throw(rng, state, view) for state in states if rng.random() < 0.8}
        return Decision(
            shares, wait=rng.choice([Cause(CauseCode.BEHIND), Cause(CauseCode.NO_ROOM)])
        )


def _throw(rng: random.Random, state: JobState, view: View) -> Share:
    cause = Cause(rng.choice([CauseCode.MAKES_ROOM, CauseCode.FAIR_SHARE, CauseCode.OUTRANKED]))
    kind = rng.choice([None, *acceptable_types(state, view.cluster)])
    options = state.job.gpus.options
    if kind is not None and state.placement is not None and kind != state.placement.gpu_type:
        # A job that must change its type for another job does not also lose GPUs for none.
        options = tuple(n for n in options if n >= state.placement.gpus) or options
        cause = Cause(CauseCode.PACKING)
    return Share(rng.choice(options), cause, kind, batch_size=rng.choice([None, None, 32, 64]))


@given(world=worlds(), data=st.data())
def test_random_policy_breaks_no_law(world: Snapshot, data: st.DataObject):
    for _ in range(data.draw(st.integers(1, 5))):
        world = change(apply(cycle.schedule(world, Dice()), world), data)


@every_policy
@few_examples(30)
@given(world=worlds(), data=st.data())
def test_random_histories_break_no_law(name: str, world: Snapshot, data: st.DataObject):
    policy, enough = policies.make(name), data.draw(st.sampled_from([0, 1, 2]))
    for _ in range(data.draw(st.integers(1, 5))):
        plan = cycle.schedule(world, policy, enough=enough)  # It raises BrokenLaw.
        assert cycle.schedule(world, policies.make(name), enough=enough) == plan, (
            "the same snapshot, the same plan"
        )
        has_begun = any(isinstance(step, Start) for step in plan.steps)
        assert has_begun or not plan.is_partial, "a partial plan starts some job"
        world = change(apply(plan, world), data)


def change(world: Snapshot, data: st.DataObject) -> Snapshot:
    """Let time pass and one event happen, such as an end, an arrival or a lost node."""
    states = [*world.running, *world.pending]
    event = data.draw(
        st.sampled_from(["nothing", "end", "come", "suspend", "cluster", "jump", "train"])
    )
    cluster = world.cluster
    if event == "end" and states:
        states.remove(data.draw(st.sampled_from(states)))
    elif event == "come":
        order = max((state.order for state in states), default=0) + 1
        states.append(rename(data.draw(jobs), order))
    elif event == "suspend" and states:
        state = data.draw(st.sampled_from(states))
        states.remove(state)
        job = replace(state.job, suspend=not state.job.suspend)
        states.append(replace(state, job=job))
    elif event == "train" and world.running:
        # The work of this job from here on is not saved, or ends with its pods, or its processes stay in changes.
        state = data.draw(st.sampled_from(world.running))
        states.remove(state)
        assert state.placement is not None
        in_pods: dict[str, Any] = {"lost_if_stopped": True, "bound_to": state.placement.nodes}
        lost: dict[str, Any] = {"unsaved_from": state.iterations_done}
        kinds = [lost, in_pods]
        if world.mechanism is Mechanism.IN_PLACE:
            live = {"is_live": True}
            kinds += [live, lost | live, in_pods | live]
        states.append(replace(state, **data.draw(st.sampled_from(kinds))))
    elif event == "cluster":
        cluster = data.draw(clusters)
        states = [state for state in states if _types_agree(state, cluster)]
    later = world.now + (100_000.0 if event == "jump" else 10.0)
    return with_states(world, states, cluster=cluster, now=later)


def _types_agree(state: JobState, cluster: Cluster) -> bool:
    """A node may vanish or come back; it never comes back with GPUs of another type."""
    if state.placement is None:
        return True
    kinds = set(state.placement.gpu_type.split("+"))
    there = [node for node in state.placement.nodes if node in cluster.by_name]
    return {cluster.by_name[node].gpu_type for node in there} <= kinds


@every_policy
@few_examples(20)
@given(world=worlds())
def test_repeated_decisions_come_to_rest(name: str, world: Snapshot):
    policy = policies.make(name)
    for _ in range(20 if name in ELASTIC else 1):
        world = apply(cycle.schedule(world, policy), world)
    steps = cycle.schedule(world, policy).steps
    assert [step for step in steps if not isinstance(step, Wait)] == []


@every_policy
@few_examples(25)
@given(cluster=clusters, state=jobs)
def test_job_that_fits_starts_in_an_empty_cluster(name: str, cluster: Cluster, state: JobState):
    snapshot = make_snapshot(cluster, state, profiles=PROFILES)
    runnable, _ = cycle.find_runnable(snapshot.queue, cluster)
    plan = cycle.schedule(snapshot, policies.make(name))
    assert [type(step) for step in plan.steps] == [Start if runnable else Wait]


def test_only_declared_baselines_break_laws():
    breaks = {name: policies.make(name).breaks for name in policies.NAMES}
    assert {name: laws for name, laws in breaks.items() if laws} == {"kube-pods": {Law.WHOLE_GANG}}
