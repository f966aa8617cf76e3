"""The next commands in small scenes: each test holds one law from decision to training."""

from dataclasses import replace
from typing import Any

import pytest

from dljob.control.acting.commands import Begin, Book, Forget, Halt, Launch, Remove, Stamp, Unbook
from dljob.control.acting.coordinating import next_commands
from dljob.control.situation.ports import PodKey, PodPhase
from dljob.control.situation.sent import Begun
from dljob.core.model import Cause, CauseCode, Checkpoint, JobId, Limits, Mechanism, NodeName, Phase
from dljob_sidecar.behaviour.events import CheckpointDone, RankEnded
from dljob_wire.messages import State, Warmth
from tests.control.scenes import (
    ENDED,
    EPOCH,
    NOW,
    PENDING,
    Sat,
    cast,
    ended,
    make_scene,
    new,
    ready,
    released,
    run,
    running,
    stop,
)

A, B = JobId("a"), JobId("b")
N0, N1, N2 = NodeName("n0"), NodeName("n1"), NodeName("n2")
A0, A1, B0, B1 = PodKey(A, N0), PodKey(A, N1), PodKey(B, N0), PodKey(B, N1)


def commands(*casts, **rest):
    return next_commands(make_scene(*casts, **rest))


def starting(holds, generation=2, **rest):
    """Job a, whose decision it has not begun yet."""
    return cast("a", holds, generation=generation, phase=Phase.INITIALIZED, **rest)


def halt(key, *, checkpoint=True, leave=False):
    return Halt(key, checkpoint, leave)


# --- a newcomer and its victim --------------------------------------------------------------


def victim(*, state=None, **rest):
    """A job with two GPUs that loses one of them by the decision."""
    state = state if state is not None else running(run(3, 0, 1))
    return cast("a", {"n0": (0,)}, generation=2, n0=state, phase=Phase.ADJUSTING, **rest)


def newcomer(**rest):
    return cast("b", {"n0": (1,)}, phase=Phase.INITIALIZED, **rest)


def test_newcomer_gets_its_pod_while_the_victim_trains():
    assert commands(victim(), newcomer()) == [Book(B, (N0,))]


@pytest.mark.parametrize(
    "sat",
    [
        PENDING,
        Sat(new(), fresh=True, declared=stop(0)),
        Sat(ready(), reachable=False, since=NOW - 5),
    ],
)
def test_victim_trains_until_the_newcomer_is_ready(sat):
    assert commands(victim(), newcomer(n0=sat)) == []


def test_victim_trains_while_the_newcomer_warms_up():
    cold = replace(ready(), warmth=Warmth(wanted=2, ready=1))
    scene = make_scene(victim(), newcomer(n0=Sat(cold, since=NOW - 1)), now=10.0)
    assert next_commands(scene) == []
    assert next_commands(replace(scene, now=100.0)) == [Begin(A, (N0,))]


def test_ready_newcomer_stops_the_victim_first():
    assert commands(victim(), newcomer(n0=Sat(ready(), fresh=True))) == [Begin(A, (N0,))]


@pytest.mark.parametrize(
    "state",
    [
        running(run(3, 0, 1), run(5, 0)),
        running(run(3, 0, 1), run(5, 0), CheckpointDone(1)),
        running(run(3, 0, 1), run(5, 0), RankEnded(1, 0, 0)),
    ],
    ids=lambda state: state.phase.value,
)
def test_newcomer_waits_for_proof_of_release(state):
    assert commands(victim(state=state), newcomer(n0=Sat(ready(), fresh=True))) == []


def test_job_that_loses_all_gpus_trains_until_the_newcomer_is_ready():
    leaves = cast("a", generation=2, n0=running(run(3, 0, 1)))
    assert commands(leaves, newcomer(n0=PENDING)) == []
    assert commands(leaves, newcomer(n0=ready())) == [halt(A0, leave=True)]


@pytest.mark.parametrize(
    "why",
    [
        {"suspend": True, "phase": Phase.SUSPENDED},
        {"cancelled": True},
        {"phase": Phase.FAILED},
        {"saves": False},
        {"broken": 3},
    ],
    ids=str,
)
def test_unwanted_job_stops_without_waiting_for_a_newcomer(why):
    leaves = cast("a", generation=2, n0=running(run(3, 0, 1)), **why)
    found = commands(leaves, newcomer(n0=PENDING))
    saves = "cancelled" not in why and why.get("saves", True) and not why.get("broken")
    assert found == [halt(A0, leave=True, checkpoint=saves)]


def test_job_without_a_successor_stops_at_once():
    leaves = cast("a", generation=2, n0=running(run(3, 0, 1)))
    assert commands(leaves) == [halt(A0, leave=True)]


def test_lost_start_waits_for_reports_before_it_ends():
    lost: dict[str, Any] = {"generation": 4, "cause": Cause(CauseCode.NODE_LOST)}
    old, silent = run(3, 0, peers=2, epoch=1), Sat(None, since=NOW - 5)
    job_pods: dict[str, Sat | State] = {"n0": running(old), "n1": silent}
    assert commands(cast("a", job_pods=job_pods, **lost)) == [Stamp(A0)]
    job_pods["n0"] = running(run(3, 0, peers=2))
    assert commands(cast("a", job_pods=job_pods, **lost)) == []
    # The wait has a limit, and an unwanted job does not wait at all.
    job_pods["n1"] = replace(silent, since=NOW - 11)
    assert commands(cast("a", job_pods=job_pods, **lost)) == [halt(A0, leave=True)]
    job_pods["n1"] = silent
    unwanted = cast("a", job_pods=job_pods, suspend=True, **lost)
    assert commands(unwanted) == [halt(A0, leave=True)]


def test_begun_stop_is_completed_without_the_newcomer():
    """One container has the order to stop; the other would hang."""
    stopped = released(run(3, 0, peers=2), stop(4, leave=True))
    leaves = cast("a", generation=2, n0=stopped, n1=running(run(3, 0, peers=2, at=1)))
    other = cast("b", {"n1": (0,)}, n1=PENDING, phase=Phase.INITIALIZED)
    assert commands(leaves, other) == [halt(A1, leave=True)]


def test_jobs_that_swap_gpus_both_release():
    a = cast("a", {"n0": (1,)}, generation=2, n0=running(run(3, 0)))
    b = cast("b", {"n0": (0,)}, generation=2, n0=running(run(3, 1)))
    assert commands(a, b) == [halt(A0), halt(B0)]
    a = cast("a", {"n0": (1,)}, generation=2, n0=released(run(3, 0), stop(4)))
    assert commands(a, b) == [Begin(B, (N0,))]
    b = cast("b", {"n0": (0,)}, generation=2, n0=running(run(5, 0)))
    assert commands(a, b) == [Begin(A, (N0,))]


# --- growing --------------------------------------------------------------------------------


def test_growing_job_trains_until_its_gpus_are_free():
    a = cast("a", {"n0": (0, 1)}, generation=2, n0=running(run(3, 0)))
    b = cast("b", {"n0": (2,)}, generation=2, n0=running(run(3, 1, 2), run(5, 2)))
    assert commands(a, b) == []


def test_growing_job_trains_until_its_pod_is_ready():
    job_pods = {"n0": running(run(3, 0))}
    grown = {"n0": (0,), "n1": (0,)}
    assert commands(cast("a", grown, generation=2, job_pods=job_pods)) == [Book(A, (N1,))]
    waiting = cast("a", grown, generation=2, job_pods={**job_pods, "n1": PENDING})
    assert commands(waiting) == []
    all_up = cast("a", grown, generation=2, job_pods={**job_pods, "n1": Sat(ready(), fresh=True)})
    assert commands(all_up) == [halt(A0)]


@pytest.mark.parametrize(
    ("warmth", "now", "stops"),
    [
        (Warmth(wanted=3, ready=2), 10.0, False),
        (Warmth(wanted=3, ready=3), 10.0, True),
        (Warmth(wanted=3, ready=2), 100.0, True),
        # No spares are wanted, none fit into memory, or an older SideCar does not tell.
        (Warmth(), 10.0, True),
    ],
    ids=["cold", "warm", "late", "without spares"],
)
def test_growing_job_trains_until_its_pod_is_warm(warmth, now, stops):
    new_pod = Sat(replace(ready(), warmth=warmth), fresh=True, since=NOW - 1)
    job_pods: dict[str, Sat | State] = {"n0": running(run(3, 0)), "n1": new_pod}
    grows = cast("a", {"n0": (0,), "n1": (0, 1, 2)}, generation=2, job_pods=job_pods)
    assert commands(grows, now=now) == ([halt(A0)] if stops else [])


# --- several containers ---------------------------------------------------------------------


def part(at, *then):
    """One of three containers of a job: a run, then these events."""
    return running(run(3, 0, peers=3, at=at), *then)


def test_followers_are_hurried_once_the_leader_has_saved():
    def after(leader, *others):
        job_pods = dict(zip(("n0", "n1", "n2"), (leader, *others), strict=True))
        return commands(cast("a", generation=2, job_pods=job_pods, suspend=True))

    told = stop(4, leave=True)
    waiting = [part(1, told), part(2, told)]
    # The leader has not heard of the stop; it saves; its state is unknown.
    assert after(part(0, told), *waiting) == []
    assert after(Sat(part(0), declared=told), *waiting) == []
    assert after(Sat(None, since=NOW - 5), *waiting) == []
    hurried = [halt(PodKey(A, node), checkpoint=False, leave=True) for node in (N1, N2)]
    # It may have started without a report.
    silent = Sat(ready(), declared=run(3, 0, peers=3, at=0))
    assert not set(hurried) & set(after(silent, *waiting))
    # It has, it never will, or it is gone.
    assert after(part(0, told, CheckpointDone(1)), *waiting) == hurried
    assert after(part(0, told, RankEnded(1, 0, None, 9)), *waiting) == hurried
    assert after(ENDED, *waiting)[-2:] == hurried
    # The same command is not sent twice.
    said = [Sat(state, declared=stop(5, leave=True, checkpoint=False)) for state in waiting]
    assert after(part(0, told, CheckpointDone(1)), *said) == []


def test_followers_are_not_hurried_if_all_save():
    told = stop(4, leave=True)
    job_pods = {"n0": part(0, told, CheckpointDone(1)), "n1": part(1, told), "n2": part(2, told)}
    everywhere = Checkpoint(signal="SIGUSR1", to="all", shared=True)
    job = cast("a", generation=2, job_pods=job_pods, suspend=True, checkpoint=everywhere)
    assert commands(job) == []


def both(one, other, **rest):
    return cast("a", {"n0": (0,), "n1": (0,)}, generation=2, n0=one, n1=other, **rest)


OLD0, OLD1 = run(3, 1, peers=2), run(3, 1, peers=2, at=1)


def test_all_containers_stop_before_any_runs():
    assert commands(both(running(OLD0), running(OLD1))) == [halt(A0), halt(A1)]


def test_no_container_runs_before_all_have_released():
    assert commands(both(released(OLD0, stop(4)), running(OLD1, stop(4), CheckpointDone(1)))) == []
    assert commands(both(released(OLD0, stop(4)), released(OLD1, stop(4)))) == [Begin(A, (N0, N1))]


def test_left_out_container_gets_the_same_run():
    begun = {"a": Begun(5, {N0: run(5, 0, peers=2), N1: run(5, 0, peers=2, at=1)})}
    assert commands(both(running(run(5, 0, peers=2)), ready()), begun=begun) == [Begin(A, (N1,))]


def test_remains_of_a_broken_start_end_without_saving():
    """The other container has another incarnation; the first would wait for it for ever."""
    assert commands(both(running(OLD0), PENDING, broken=3)) == [halt(A0, checkpoint=False)]


def test_broken_start_of_another_controller_saves_first():
    """Another controller may already have ordered a start that replaces the broken one."""
    theirs = run(3, 1, peers=2, epoch=EPOCH - 1)
    assert commands(cast("a", generation=2, broken=3, n0=running(theirs))) == [
        halt(A0, leave=True, checkpoint=True)
    ]


def test_leftover_pods_end_when_all_others_run():
    assert commands(
        cast("a", {"n0": (0,)}, generation=2, n0=running(run(5, 0)), n1=released(OLD1, stop(4)))
    ) == [halt(A1, leave=True)]


# --- a newer decision turns a change around -------------------------------------------------


def test_pods_of_a_withdrawn_decision_end_at_once():
    withdrawn = starting({"n2": (0,)}, 3, n0=PENDING, n1=Sat(ready(), fresh=True))
    removed = Remove(A0, "it is no longer needed")
    assert commands(withdrawn) == [removed, halt(A1, leave=True), Book(A, (N2,))]


def test_end_of_an_unused_pod_stops_no_other():
    unused = Sat(ready(), declared=stop(6, leave=True))
    holds = {"n0": (0,), "n2": (0,)}
    job = cast("a", holds, generation=3, n0=running(run(3, 0)), n1=unused, n2=PENDING)
    assert commands(job) == []


def test_stopping_job_goes_on_stopping_after_a_new_decision():
    """Its second container has no order yet, and the new decision wants it unchanged."""
    holds = {"n0": (1,), "n1": (1,)}
    job = cast("a", holds, generation=3, n0=released(OLD0, stop(6)), n1=running(OLD1))
    assert commands(job) == [halt(A1)]


def test_leaving_pod_is_not_reused():
    """The job was stopped, and has GPUs again before its pod has gone."""
    leaving = Sat(replace(released(run(3, 0), stop(4)), leaving=True))
    assert commands(starting({"n0": (0,)}, 3, n0=leaving)) == []
    assert commands(starting({"n0": (0,)}, 3, n0=ENDED)) == [Unbook(A, (N0,))]
    assert commands(starting({"n0": (0,)}, 3)) == [Book(A, (N0,))]


# --- a controller that begins ---------------------------------------------------------------


def test_new_controller_stamps_first():
    theirs = run(3, 0, epoch=EPOCH - 1)
    assert commands(cast("a", {"n0": (0, 1)}, generation=2, n0=running(theirs))) == [Stamp(A0)]


def test_nothing_begins_before_the_stamp():
    """The job has left n0, where a former controller's run may still arrive."""
    theirs = released(run(3, 0, epoch=EPOCH - 1), stop(4, epoch=EPOCH - 1))
    assert commands(starting({"n1": (0,)}, 3, n0=theirs, n1=ready())) == [Stamp(A0)]


def test_stop_replaces_the_stamp():
    theirs = run(3, 0, epoch=EPOCH - 1)
    assert commands(cast("a", generation=2, n0=running(theirs))) == [halt(A0, leave=True)]


def test_leftover_gpus_stay_reserved_until_the_stamp():
    """A command of the former controller may still give it GPU 1."""
    theirs, leftover = running(run(5, 0, epoch=EPOCH - 1)), frozenset({(N0, 1)})
    a = cast("a", {"n0": (0,)}, leftover=leftover, generation=2, n0=theirs)
    b = cast("b", {"n0": (1,)}, n0=ready(), phase=Phase.INITIALIZED)
    assert commands(a, b) == [Stamp(A0)]


def test_booked_pod_of_a_dead_controller_is_launched():
    assert commands(
        cast(
            "a", {"n0": (0,)}, n0=Sat(phase=PodPhase.PENDING, asked=False), phase=Phase.INITIALIZED
        )
    ) == [Launch(A0)]


# --- SideCars that do not answer ------------------------------------------------------------


@pytest.mark.parametrize(
    ("outdated", "limit"),
    [(False, 60), pytest.param(True, 360, id="expired certificate: it may get another one")],
)
def test_pod_with_a_silent_sidecar_is_removed(outdated, limit):
    silent = Sat(running(run(3, 0)), reachable=False, since=NOW - limit + 1.0, outdated=outdated)
    scene = make_scene(cast("a", {"n0": (0,)}, n0=silent))
    assert next_commands(scene) == []
    why = f"its SideCar has not answered for {limit + 1} s"
    assert next_commands(replace(scene, now=NOW + 2.0)) == [Remove(A0, why, True)]


def test_job_with_a_lost_pod_begins_nowhere_else():
    lost = Sat(running(run(3, 0)), phase=PodPhase.LOST)
    assert commands(starting({"n1": (0,)}, n0=lost, n1=ready())) == []


def test_unreachable_unwanted_pod_is_removed():
    silent = Sat(running(run(3, 0)), reachable=False, since=NOW - 5)
    job_pods = {"n0": Sat(phase=PodPhase.PENDING), "n1": silent}
    assert commands(cast("a", generation=2, job_pods=job_pods)) == [
        Remove(A0, "it is no longer needed"),
        halt(A1, leave=True),
    ]


# --- gangs, retries, ends -------------------------------------------------------------------


def test_incomplete_gang_does_not_begin():
    partial = cast("a", {"n0": (0,)}, gang=2, n0=ready(), phase=Phase.INITIALIZED)
    assert commands(partial) == []
    whole = cast("a", {"n0": (0, 1)}, gang=2, n0=ready(), phase=Phase.INITIALIZED)
    assert commands(whole) == [Begin(A, (N0,))]


def test_crashed_job_waits_for_its_retry_time():
    crashed = starting({"n0": (0,)}, retry_at=NOW + 5, broken=3, n0=ended(run(3, 0), 1))
    assert commands(crashed) == []
    assert commands(crashed, now=NOW + 5) == [Begin(A, (N0,))]


def test_cancelled_job_is_forgotten_when_its_pods_are_gone():
    assert commands(cast("a", generation=0)) == []
    assert commands(cast("a", generation=2, cancelled=True)) == [Forget(A)]
    lives_yet = cast("a", generation=2, cancelled=True, n0=ENDED)
    assert commands(lives_yet) == [Unbook(A, (N0,))]


def test_finished_job_is_forgotten_after_its_ttl():
    ends: dict[str, Any] = {"phase": Phase.COMPLETED, "finished_at": NOW - 10}
    assert commands(cast("a", generation=2, **ends)) == []
    soon = cast("a", generation=2, limits=Limits(ttl_seconds_after_finished=11), **ends)
    assert commands(soon) == []
    now = cast("a", generation=2, limits=Limits(ttl_seconds_after_finished=10), **ends)
    assert commands(now) == [Forget(A)]


def test_default_ttl_applies_to_jobs_without_one():
    ends: dict[str, Any] = {"phase": Phase.COMPLETED, "finished_at": NOW - 10}
    of_user = cast("b", generation=2, limits=Limits(ttl_seconds_after_finished=11), **ends)
    scene = make_scene(cast("a", generation=2, **ends), of_user)
    assert next_commands(replace(scene, ttl_seconds=11)) == []
    assert next_commands(replace(scene, ttl_seconds=10)) == [Forget(A)]


def test_job_with_an_unreadable_spec_only_reacts_to_cancel():
    known: Any = {"generation": 2, "problem": "gpus: no mapping", "n0": running(run(3, 0))}
    assert commands(cast("a", {"n0": (0, 1)}, **known)) == []
    cancelled = cast("a", cancelled=True, **known)
    assert commands(cancelled) == [halt(A0, checkpoint=False, leave=True)]


# --- recreation -----------------------------------------------------------------------------

RECREATE = Mechanism.RECREATE


def test_recreation_ends_all_pods_of_a_changed_job():
    trains = Sat(running(run(3, 0, 1)), shaped=1)
    job = cast("a", {"n0": (0,)}, generation=2, shaped=2, n0=trains)
    assert commands(job, mechanism=RECREATE) == [halt(A0, leave=True)]


def test_recreation_launches_only_on_free_gpus():
    """A container has its GPUs until it is gone, even if it runs no process."""
    leaves = stop(4, leave=True)
    b = cast("b", {"n0": (1,)}, phase=Phase.INITIALIZED)
    for sat, mechanism, booked in (
        (Sat(running(run(3, 0, 1), leaves)), RECREATE, False),
        (Sat(released(run(3, 0), leaves)), RECREATE, False),
        (Sat(released(run(3, 0), leaves), phase=PodPhase.LOST), RECREATE, False),
        (Sat(released(run(3, 0), leaves), phase=PodPhase.ENDED), RECREATE, True),
        (Sat(released(run(3, 0), leaves)), Mechanism.IN_PLACE, True),
    ):
        a = cast("a", generation=2, n0=sat, leftover=frozenset({(N0, 1)}))
        found = commands(a, b, mechanism=mechanism)
        assert (Book(B, (N0,)) in found) is booked, (sat, mechanism)


def test_recreation_does_not_reuse_pods_with_other_gpus():
    idle = Sat(ready(), fresh=True, shaped=1)
    job = cast("a", {"n0": (1,)}, generation=2, shaped=2, n0=idle)
    assert commands(job, mechanism=RECREATE) == [halt(A0, leave=True)]


def test_recreation_keeps_the_pod_of_a_crashed_job():
    crashed = Sat(ended(run(3, 0), 1), shaped=1)
    job = starting({"n0": (0,)}, shaped=1, broken=3, n0=crashed)
    assert commands(job, mechanism=RECREATE) == [Begin(A, (N0,))]


# --- rest -----------------------------------------------------------------------------------


def test_nothing_happens_where_all_is_as_decided():
    one, other = running(run(3, 2, peers=2)), running(run(3, 0, peers=2, at=1))
    wide = cast("b", {"n0": (2,), "n1": (0,)}, n0=one, n1=other)
    trains = cast("a", {"n0": (0, 1)}, n0=running(run(3, 0, 1)))
    assert commands(trains, wide, cast("c", generation=0)) == []


def test_broken_job_stops_no_other():
    broken = cast("a", {"n0": (0,)}, n0=running(run(3, 0)))
    nonsense: Any = None
    broken = replace(broken, entry=replace(broken.entry, status=nonsense))
    scene = make_scene(cast("b", {"n0": (1,)}, phase=Phase.INITIALIZED))
    scene = replace(
        scene,
        entries={A: broken.entry, **scene.entries},
        job_pods={A: broken.job_pods, **scene.job_pods},
    )
    scene.__dict__["claims"] = {}
    scene.__dict__["held"] = {}
    assert next_commands(scene) == [Book(B, (N0,))]
