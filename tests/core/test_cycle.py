"""One decision, from the snapshot to the plan."""

from typing import Any

import pytest

from dljob.core import cycle, planning
from dljob.core.checking import BrokenLaw, Law
from dljob.core.contract import Decision, Share
from dljob.core.model import Cause, CauseCode
from dljob.sim import policies
from tests.builders import (
    FakePolicy,
    make_cluster,
    make_node,
    make_plan,
    make_policy,
    make_snapshot,
    make_state,
    make_steps,
)

# Jobs and nodes are plain strings here.
Start: Any = planning.Start
Stop: Any = planning.Stop
Wait: Any = planning.Wait


class Recorder(FakePolicy):
    """A policy that records the jobs and the state that it sees, and stops all jobs."""

    breaks = frozenset(Law)

    def allocate(self, view):
        self.running = [state.id for state in view.running]
        self.pending = [state.id for state in view.pending]
        self.state = view.state
        return Decision({})


def ask(snapshot):
    policy: Any = Recorder()
    plan = cycle.schedule(snapshot, policy)
    return policy, plan


def test_plan_reports_runnable_jobs_and_policy_state():
    decision = Decision({}, wake_at=7.0, state=("remembered",))
    snapshot = make_snapshot(make_cluster(n1=1), make_state("a"), make_state("b", suspend=True))
    plan = cycle.schedule(snapshot, make_policy(decision))
    assert (plan.considered, plan.wake_at, plan.policy_state) == (1, 7.0, ("remembered",))


def test_policy_gets_its_state_back():
    policy, _ = ask(make_snapshot(make_cluster(n1=1), policy_state="before"))
    assert policy.state == "before"


def test_policy_does_not_see_suspended_jobs():
    running = make_state("running", suspend=True, holds={"n1": (0,)})
    waiting = make_state("waiting", suspend=True)
    policy, plan = ask(make_snapshot(make_cluster(n1=4), running, waiting))
    assert (policy.running, policy.pending) == ([], [])
    suspended = Cause(CauseCode.SUSPENDED)
    assert plan.steps == (Stop("running", running.placement, suspended), Wait("waiting", suspended))


@pytest.mark.parametrize(
    ("cluster", "job", "fits"),
    [
        (make_cluster(n1=4), {"options": (4,)}, True),
        (make_cluster(n1=4), {"options": (5,)}, False),
        (make_cluster(n1=4, n2=4), {"options": (8,)}, True),
        (make_cluster(n1=4, n2=4), {"options": (8,), "max_nodes": 1}, False),
        (make_cluster(n1=4, n2=4), {"options": (2, 8), "max_nodes": 1}, True),
        (make_cluster(n1=(4, "A"), n2=(4, "B")), {"options": (8,)}, False),
        (make_cluster(n1=(4, "A"), n2=(4, "B")), {"options": (8,), "mixed": True}, True),
        (make_cluster(n1=(4, "A"), n2=(2, "B")), {"options": (4,), "types": ("B",)}, False),
        (make_cluster(n1=(4, "A"), n2=(2, "B")), {"options": (4,), "types": ("B", "A")}, True),
        (make_cluster(n1=(4, "A")), {"options": (1,), "types": ("B",)}, False),
        (make_cluster(n1=4, n2=2), {"options": (6,), "bound_to": ("n1", "n2")}, True),
        (make_cluster(n1=(4, "A")), {"options": (1,), "types": ("B",), "bound_to": ("n1",)}, False),
        (make_cluster(make_node("n1", 4, unavailable=(0,))), {"options": (4,)}, False),
        (make_cluster(make_node("n1", 4, schedulable=False)), {"options": (1,)}, False),
        (make_cluster(), {"options": (1,)}, False),
    ],
)
def test_job_larger_than_the_cluster_waits(cluster, job, fits):
    policy, plan = ask(make_snapshot(cluster, make_state("job", **job)))
    assert policy.pending == (["job"] if fits else [])
    if not fits:
        too_large = Cause(CauseCode.TOO_LARGE, gpus=job["options"][0])
        assert plan.steps == (Wait("job", too_large),)


@pytest.mark.parametrize(
    "bound",
    [
        pytest.param(make_node("n1", 4, schedulable=False), id="cordoned"),
        pytest.param(make_node("n1", 1), id="too small now"),
        pytest.param(None, id="gone"),
    ],
)
def test_job_waits_for_the_node_of_its_checkpoint(bound):
    nodes = (*filter(None, [bound]), make_node("n2", 4))
    job = make_state("job", options=(2,), bound_to=("n1",))
    policy, plan = ask(make_snapshot(make_cluster(*nodes), job))
    assert policy.pending == []
    assert plan.steps == (Wait("job", Cause(CauseCode.CHECKPOINT_ELSEWHERE, gpus=2)),)


@pytest.mark.parametrize(
    ("cluster", "code"),
    [
        (make_cluster(n2=4), CauseCode.NODE_LOST),
        # No node was lost where a node has fewer GPUs than before.
        (make_cluster(n1=1, n2=4), CauseCode.GPUS_GONE),
    ],
)
def test_job_stops_when_its_gpus_are_gone(cluster, code):
    old = make_state("old", holds={"n1": (0, 1), "n2": (0,)}, options=(3,))
    policy, plan = ask(make_snapshot(cluster, old, make_state("new", options=(4,))))
    assert policy.running == []
    assert plan.steps[0] == Stop("old", old.placement, Cause(code))


def make_crowd():
    """Two newcomers that fit, one that needs a victim, one that waits, and one that cannot run."""
    old = make_state("old", holds={"n1": (0, 1, 2, 3)}, options=(1, 2, 4))
    crowd = [make_state(f"new-{n}", options=(2,)) for n in range(4)]
    return make_snapshot(make_cluster(n1=4, n2=4), old, *crowd, make_state("giant", options=(64,)))


@pytest.mark.parametrize("enough", [1, 2])
def test_partial_decision_starts_only_enough_jobs(enough):
    """The jobs left out get no reason to wait, and the others the same as in a whole decision."""
    whole = cycle.schedule(make_crowd(), policies.make("adaptive"))
    part = cycle.schedule(make_crowd(), policies.make("adaptive"), enough=enough)
    started = [step for step in whole.steps if isinstance(step, Start)]
    assert [step for step in part.steps if isinstance(step, Start)] == started[:enough]
    assert [step for step in part.steps if isinstance(step, Wait)] == [
        Wait("giant", Cause(CauseCode.TOO_LARGE, gpus=64))
    ]
    assert (whole.is_partial, part.is_partial) == (False, True)


def test_partial_decision_continues_if_a_job_finds_no_place():
    class Mistaken(FakePolicy):
        """A policy that gives the first newcomers too much, and stops there if it may."""

        def allocate(self, view):
            most = view.enough or len(view.pending)
            shares = {state.id: Share(state.placement.gpus) for state in view.running}
            shares |= {state.id: Share(2) for state in list(view.pending)[:most]}
            return Decision(shares, is_partial=most < len(view.pending))

    holder = make_state("holder", holds={"n1": (0, 1, 2)}, options=(2, 3))
    newcomers = [make_state(name, options=(2,)) for name in "abc"]
    snapshot = make_snapshot(make_cluster(n1=4), holder, *newcomers)
    policy: Any = Mistaken()
    plan = cycle.schedule(snapshot, policy, enough=1)
    assert {step.job for step in plan.steps} == {"a", "b", "c"}
    assert plan == cycle.schedule(snapshot, policy)


def test_endless_partial_decisions_stop():
    class Lazy(FakePolicy):
        """A policy that claims at every call that it has left newcomers out."""

        def __init__(self, *shares):
            self.shares = dict(shares)

        def allocate(self, view):
            return Decision(self.shares, is_partial=True)

    snapshot = make_snapshot(make_cluster(n1=1), make_state("a"), make_state("b", options=(2,)))
    for enough in (0, 1):
        idle: Any = Lazy()
        assert not cycle.schedule(snapshot, idle, enough=enough).is_partial
        wrong: Any = Lazy(("b", Share(2)))
        assert not cycle.schedule(snapshot, wrong, enough=enough).is_partial


def test_job_keeps_unavailable_gpus_that_it_holds():
    node = make_node("n1", 4, unavailable=(0, 1), schedulable=False)
    old = make_state("old", holds={"n1": (0, 1)})
    assert make_steps(make_snapshot(make_cluster(node), old), {"old": 2}) == []


def test_incomplete_gang_of_another_policy_stops():
    part = make_state("part", options=(4,), holds={"n1": (0, 1)}, gang=4, speed=0.0)
    incomplete = Cause(CauseCode.GANG_INCOMPLETE, gpus=4)
    for name in set(policies.NAMES) - {"kube-pods"}:
        plan = cycle.schedule(make_snapshot(make_cluster(n1=4), part), policies.make(name))
        assert plan.steps == (Stop("part", part.placement, incomplete),), name


def test_illegal_plan_is_not_returned():
    snapshot = make_snapshot(make_cluster(n1=4), make_state("new", options=(2,)))
    with pytest.raises(
        BrokenLaw, match=r"allowed-shape\" at t=0 s: job new cannot run on 3 GPUs\."
    ) as error:
        make_plan(snapshot, {"new": 3})
    assert (error.value.law, error.value.job) == (Law.ALLOWED_SHAPE, "new")
