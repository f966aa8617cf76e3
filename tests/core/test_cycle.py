"""One decision from the snapshot to the plan: who is asked about, and what becomes of the others."""

from typing import Any

import pytest

from dljob.core import cycle, planning
from dljob.core.checking import BrokenLaw, Law
from dljob.core.contract import Decision, Share
from dljob.core.model import Cause, CauseCode
from dljob.sim import policies
from tests.builders import (
    make_cluster,
    make_node,
    make_plan,
    make_snapshot,
    make_state,
    make_steps,
    tell,
)

# Jobs and nodes are plain strings here.
Start: Any = planning.Start
Stop: Any = planning.Stop
Wait: Any = planning.Wait


class Asked:
    """A policy that notes about which jobs it was asked, and stops all jobs."""

    name = "asked"
    paper = needs = ""
    breaks = frozenset(Law)

    def allocate(self, view):
        self.running = [state.id for state in view.running]
        self.pending = [state.id for state in view.pending]
        return Decision({})


def ask(snapshot):
    policy: Any = Asked()
    plan = cycle.schedule(snapshot, policy)
    return policy, plan


def test_the_plan_tells_how_many_were_looked_at_and_what_the_policy_wants_to_remember():
    decision = Decision({}, wake_at=7.0, state=("remembered",))
    snapshot = make_snapshot(make_cluster(n1=1), make_state("a"), make_state("b", suspend=True))
    plan = cycle.schedule(snapshot, tell(decision))
    assert (plan.considered, plan.wake_at, plan.policy_state) == (1, 7.0, ("remembered",))


def test_the_policy_is_given_back_what_it_remembered():
    seen = []

    class Remembers(Asked):
        def allocate(self, view):
            seen.append(view.state)
            return Decision({})

    policy: Any = Remembers()
    cycle.schedule(make_snapshot(make_cluster(n1=1), policy_state="before"), policy)
    assert seen == ["before"]


def test_a_suspended_job_is_no_policys_business():
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
def test_a_job_that_can_never_fit_waits_and_is_told_so(cluster, job, fits):
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
def test_a_job_whose_checkpoint_is_on_a_node_that_cannot_take_it_waits_for_that_node(bound):
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
def test_a_job_whose_gpus_are_gone_is_stopped_whatever_the_policy_says(cluster, code):
    old = make_state("old", holds={"n1": (0, 1), "n2": (0,)}, options=(3,))
    policy, plan = ask(make_snapshot(cluster, old, make_state("new", options=(4,))))
    assert policy.running == []
    assert plan.steps[0] == Stop("old", old.placement, Cause(code))


def make_crowd():
    """Two newcomers that fit, a third for whom room is made, one that has to wait, and one that cannot run."""
    old = make_state("old", holds={"n1": (0, 1, 2, 3)}, options=(1, 2, 4))
    crowd = [make_state(f"new-{n}", options=(2,)) for n in range(4)]
    return make_snapshot(make_cluster(n1=4, n2=4), old, *crowd, make_state("giant", options=(64,)))


@pytest.mark.parametrize("enough", [1, 2])
def test_newcomers_beyond_what_is_enough_are_left_for_the_next_time(enough):
    """
    They receive no reason to wait, and the jobs before them get the same as in a whole decision.
    """
    whole = cycle.schedule(make_crowd(), policies.make("adaptive"))
    part = cycle.schedule(make_crowd(), policies.make("adaptive"), enough=enough)
    started = [step for step in whole.steps if isinstance(step, Start)]
    assert [step for step in part.steps if isinstance(step, Start)] == started[:enough]
    assert [step for step in part.steps if isinstance(step, Wait)] == [
        Wait("giant", Cause(CauseCode.TOO_LARGE, gpus=64))
    ]
    assert (whole.is_partial, part.is_partial) == (False, True)


def test_where_one_of_the_first_finds_no_place_the_others_are_asked_about_at_once():
    class Mistaken:
        """A policy that gives the first newcomers too much, and stops there if it may."""

        name = "mistaken"
        paper = needs = ""
        breaks = frozenset[Law]()

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


def test_a_policy_that_leaves_newcomers_out_unasked_is_not_asked_for_ever():
    class Lazy:
        """A policy that claims at every call that it has left newcomers out."""

        name = "lazy"
        paper = needs = ""
        breaks = frozenset[Law]()

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


def test_a_job_goes_on_with_gpus_that_may_not_be_given_away():
    node = make_node("n1", 4, unavailable=(0, 1), schedulable=False)
    old = make_state("old", holds={"n1": (0, 1)})
    assert make_steps(make_snapshot(make_cluster(node), old), {"old": 2}) == []


def test_half_a_gang_left_by_another_policy_is_stopped():
    part = make_state("part", options=(4,), holds={"n1": (0, 1)}, gang=4, speed=0.0)
    incomplete = Cause(CauseCode.GANG_INCOMPLETE, gpus=4)
    for name in set(policies.NAMES) - {"kube-pods"}:
        plan = cycle.schedule(make_snapshot(make_cluster(n1=4), part), policies.make(name))
        assert plan.steps == (Stop("part", part.placement, incomplete),), name


def test_a_plan_that_breaks_a_law_is_not_returned():
    snapshot = make_snapshot(make_cluster(n1=4), make_state("new", options=(2,)))
    with pytest.raises(
        BrokenLaw, match=r"allowed-shape\" at t=0 s: job new cannot run on 3 GPUs\."
    ) as error:
        make_plan(snapshot, {"new": 3})
    assert (error.value.law, error.value.job) == (Law.ALLOWED_SHAPE, "new")
