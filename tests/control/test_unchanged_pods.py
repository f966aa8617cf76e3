"""The judge skips jobs whose pods are starting, and misses nothing."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dljob.control.acting.desired_pods import Desired, Present, desired_of
from dljob.control.acting.job_in_scene import JobInScene
from dljob.control.judging import judging
from dljob.control.judging.conditions import NOT_STARTED
from dljob.control.judging.judging import judge
from dljob.control.judging.unchanged_pods import LONGEST_S, UnchangedPods, is_coming_up
from dljob.control.situation.ports import NODE_NOT_READY, UNSCHEDULABLE, PodPhase
from dljob.control.situation.rules import Rules
from dljob.control.situation.status import Condition, ConditionType
from dljob.core.model import JobId, Limits, Mechanism, NodeName, Phase
from tests.control.deeds import Place
from tests.control.scenes import NOW, PENDING, Sat, cast, make_scene, ready

A, N0 = JobId("a"), NodeName("n0")
RULES = Rules(
    initialize_seconds=25.0, stuck_seconds=9.0, unscheduled_seconds=4.0, quiet_seconds=3.0
)


def coming_up(name="a", pods=("n0",), pod=None, **rest):
    sat = replace(PENDING, pod=pod or {})
    status: dict[str, Any] = {
        "phase": Phase.INITIALIZED,
        "booked_at": NOW,
        "decided_at": NOW,
        "started_at": NOW,
        "iterations_total": 1000.0,
    }
    holds = dict.fromkeys(pods, (0,))
    return cast(name, holds, job_pods=dict.fromkeys(pods, sat), **(status | rest))


def settle(scene, starting=None):
    """Judge the scene until no verdict is new; return it."""
    for _ in range(5):
        verdicts = judge(scene, RULES, starting=starting)
        if not verdicts:
            return scene
        scene = scene.with_statuses({job: each.status for job, each in verdicts.items()})
    raise AssertionError("each verdict is followed by another one")


def count_looks(monkeypatch, scene, starting, **rest):
    looked = []

    reach_verdict = judging.reach_verdict

    def note_and_reach(case, learnt):
        looked.append(case.job.id)
        return reach_verdict(case, learnt)

    with monkeypatch.context() as patched:
        patched.setattr(judging, "reach_verdict", note_and_reach)
        judge(scene, RULES, starting=starting, **rest)
    return len(looked)


def test_unchanged_job_is_judged_once(monkeypatch):
    starting = UnchangedPods()
    scene = settle(make_scene(coming_up(), coming_up("b")), starting)
    later = replace(scene, now=NOW + 1)
    assert count_looks(monkeypatch, later, starting) == 0
    entries = {**later.entries, A: replace(later.entries[A], spec_generation=2)}
    later = replace(later, entries=entries)
    assert [count_looks(monkeypatch, later, starting) for _ in range(2)] == [1, 0]
    job_pods = {**later.job_pods, A: {N0: Sat(ready(), fresh=True).job_pod(A, N0)}}
    assert count_looks(monkeypatch, replace(later, job_pods=job_pods), starting) == 1


def test_job_is_judged_again_after_some_seconds(monkeypatch):
    starting = UnchangedPods()
    told = {"reason": "ImagePullBackOff", "message": "no such image"}
    scene = settle(make_scene(coming_up(pod=told)), starting)
    assert count_looks(monkeypatch, replace(scene, now=NOW + LONGEST_S - 1), starting) == 0
    assert count_looks(monkeypatch, replace(scene, now=NOW + LONGEST_S), starting) == 1


def test_gone_jobs_are_forgotten():
    starting = UnchangedPods()
    scene = settle(make_scene(coming_up()), starting)
    judge(replace(scene, entries={}, job_pods={}), RULES, starting=starting)
    assert not starting._known


TOLD_BEFORE = Condition(
    ConditionType.INITIALIZED,
    status=False,
    reason=NOT_STARTED,
    message="its SideCar on n9 has not started, and no reason has been reported yet",
    since=NOW - 50,
)

pods = st.sampled_from(
    [
        {},
        {"message": "the image is pulled"},
        {"reason": "ImagePullBackOff", "stuck": True},
        {"reason": UNSCHEDULABLE, "message": "no room"},
        {"reason": NODE_NOT_READY},
        {"reason": "NotTaken", "message": "the quota is used up", "stuck": True},
    ]
)


@settings(max_examples=30)
@given(
    pod=pods,
    others=st.sampled_from([0, 150]),
    deadline=st.sampled_from([None, 6, 14]),
    retry_in=st.sampled_from([0.0, 5.0]),
    phase=st.sampled_from([Phase.INITIALIZED, Phase.ADJUSTING]),
    pods_of_it=st.sampled_from([("n0",), ("n0", "n1")]),
    was_told=st.booleans(),
    leave_at=st.sampled_from([4.0, 6.0]),
    steps=st.lists(st.sampled_from([0.5, 1.0, 2.5]), min_size=1, max_size=15),
)
def test_memory_changes_no_verdict(
    pod, others, deadline, retry_in, phase, pods_of_it, was_told, leave_at, steps
):
    job = coming_up(
        pod=pod,
        pods=pods_of_it,
        phase=phase,
        retry_at=NOW + retry_in if retry_in else 0.0,
        conditions=(TOLD_BEFORE,) if was_told else (),
        limits=Limits(active_deadline_seconds=deadline),
    )
    crowd = [coming_up(f"other-{n}") for n in range(others)]
    scene, starting = make_scene(job, *crowd), UnchangedPods()
    for step in steps:
        plain, remembering = judge(scene, RULES), judge(scene, RULES, starting=starting)
        assert remembering.get(A) == plain.get(A)
        if A in plain:
            scene = scene.with_statuses({A: plain[A].status})
        if scene.now > NOW + leave_at:
            # Now only this job's pods start, so that a report without a reason is due earlier.
            scene = replace(scene, job_pods={A: scene.pods_of(A)})
        scene = replace(scene, now=scene.now + step)


SATS = [
    Sat(state, phase, asked=asked, fresh=fresh)
    for state, phase, asked, fresh in itertools.product(
        (None, ready()), PodPhase, (True, False), (True, False)
    )
]


@pytest.mark.parametrize("mechanism", Mechanism)
def test_nothing_differs_for_a_skipped_job(mechanism):
    """All pods that a job needs are requested when the judge skips it because they are starting."""
    count = 0
    for sat, other in itertools.product(SATS, (None, PENDING, Sat(ready()))):
        job_pods = {"n0": sat} | ({"n1": other} if other is not None else {})
        for holds in ({"n0": (0,)}, {"n0": (0,), "n1": (0,)}, {"n1": (0,)}, None):
            job = cast("a", holds, job_pods=job_pods, phase=Phase.INITIALIZED)
            scene = make_scene(job, mechanism=mechanism)
            if is_coming_up(scene, scene.entries[A]):
                count += 1
                wanted = desired_of(JobInScene(scene, scene.entries[A]), Place())
                same = Desired(scene.entries[A].status, dict.fromkeys(scene.pods_of(A), Present()))
                assert wanted == same, (job_pods, holds)
    assert (count > 0) == (mechanism is Mechanism.IN_PLACE)
