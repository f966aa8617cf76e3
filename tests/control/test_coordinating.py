"""The next commands in small scenes: each test holds one law from decision to training."""

from dataclasses import replace
from typing import Any

import pytest

from dljob.control.situation.ports import PodKey, PodPhase
from dljob.control.situation.sent import Begun
from dljob.core.model import (
    Cause,
    CauseCode,
    Checkpoint,
    GpuRef,
    JobId,
    Limits,
    Mechanism,
    NodeName,
    Phase,
)
from dljob_sidecar.behaviour.events import CheckpointDone, RankEnded
from dljob_wire.messages import State, Warmth
from tests.control.deeds import deeds
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


def done(*casts, **rest):
    return deeds(make_scene(*casts, **rest))


def starting(holds, generation=2, **rest):
    """Job a, whose decision it has not begun yet."""
    return cast("a", holds, generation=generation, phase=Phase.INITIALIZED, **rest)


# --- a newcomer and its victim --------------------------------------------------------------


def victim(*, state=None, **rest):
    """A job with two GPUs that loses one of them by the decision."""
    state = state if state is not None else running(run(3, 0, 1))
    return cast("a", {"n0": (0,)}, generation=2, n0=state, phase=Phase.ADJUSTING, **rest)


def newcomer(**rest):
    return cast("b", {"n0": (1,)}, phase=Phase.INITIALIZED, **rest)


def test_newcomer_gets_its_pod_while_the_victim_trains():
    assert done(victim(), newcomer()) == {B0: "book"}


@pytest.mark.parametrize(
    "sat",
    [
        PENDING,
        Sat(new(), fresh=True, declared=stop(0)),
        Sat(ready(), reachable=False, since=NOW - 5),
    ],
)
def test_victim_trains_until_the_newcomer_is_ready(sat):
    assert done(victim(), newcomer(n0=sat)) == {}


def test_victim_trains_while_the_newcomer_warms_up():
    cold = replace(ready(), warmth=Warmth(wanted=2, ready=1))
    scene = make_scene(victim(), newcomer(n0=Sat(cold, since=NOW - 1)), now=10.0)
    assert deeds(scene) == {}
    assert deeds(replace(scene, now=100.0)) == {A0: "run"}


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
    assert done(victim(state=state), newcomer(n0=Sat(ready(), fresh=True))) == {}


def test_job_that_loses_all_gpus_trains_until_the_newcomer_is_ready():
    leaves = cast("a", generation=2, n0=running(run(3, 0, 1)))
    assert done(leaves, newcomer(n0=PENDING)) == {}
    assert done(leaves, newcomer(n0=ready())) == {A0: "save and stop, leave"}
    # Without a newcomer it stops at once, or when its SideCar can be reached.
    assert done(leaves) == {A0: "save and stop, leave"}
    silent = Sat(running(run(3, 0)), reachable=False, since=NOW - 5)
    assert done(cast("a", generation=2, n0=silent)) == {A0: "save and stop, leave"}


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
    found = done(leaves, newcomer(n0=PENDING))
    saves = "cancelled" not in why and why.get("saves", True) and not why.get("broken")
    assert found == {A0: "save and stop, leave" if saves else "stop, leave"}


def test_lost_start_waits_for_reports_before_it_ends():
    lost: dict[str, Any] = {"generation": 4, "cause": Cause(CauseCode.NODE_LOST)}
    old, silent = run(3, 0, peers=2, epoch=1), Sat(None, since=NOW - 5)
    job_pods: dict[str, Sat | State] = {"n0": running(old), "n1": silent}
    assert done(cast("a", job_pods=job_pods, **lost)) == {A0: "stamp"}
    job_pods["n0"] = running(run(3, 0, peers=2))
    assert done(cast("a", job_pods=job_pods, **lost)) == {}
    # The wait has a limit, and an unwanted job does not wait at all.
    job_pods["n1"] = replace(silent, since=NOW - 11)
    assert done(cast("a", job_pods=job_pods, **lost)) == {A0: "save and stop, leave"}
    job_pods["n1"] = silent
    unwanted = cast("a", job_pods=job_pods, suspend=True, **lost)
    assert done(unwanted) == {A0: "save and stop, leave"}


def test_begun_stop_is_completed_without_the_newcomer():
    """One container has the order to stop; the other would hang."""
    stopped = released(run(3, 0, peers=2), stop(4, leave=True))
    leaves = cast("a", generation=2, n0=stopped, n1=running(run(3, 0, peers=2, at=1)))
    other = cast("b", {"n1": (0,)}, n1=PENDING, phase=Phase.INITIALIZED)
    assert done(leaves, other) == {A1: "save and stop, leave"}


def test_jobs_that_swap_gpus_both_release():
    a = cast("a", {"n0": (1,)}, generation=2, n0=running(run(3, 0)))
    b = cast("b", {"n0": (0,)}, generation=2, n0=running(run(3, 1)))
    assert done(a, b) == {A0: "save and stop", B0: "save and stop"}
    a = cast("a", {"n0": (1,)}, generation=2, n0=released(run(3, 0), stop(4)))
    assert done(a, b) == {B0: "run"}
    b = cast("b", {"n0": (0,)}, generation=2, n0=running(run(5, 0)))
    assert done(a, b) == {A0: "run"}


# --- growing --------------------------------------------------------------------------------


def test_growing_job_trains_until_its_gpus_are_free():
    a = cast("a", {"n0": (0, 1)}, generation=2, n0=running(run(3, 0)))
    b = cast("b", {"n0": (2,)}, generation=2, n0=running(run(3, 1, 2), run(5, 2)))
    assert done(a, b) == {}


def test_growing_job_trains_until_its_pod_is_ready():
    job_pods = {"n0": running(run(3, 0))}
    grown = {"n0": (0,), "n1": (0,)}
    assert done(cast("a", grown, generation=2, job_pods=job_pods)) == {A1: "book"}
    waiting = cast("a", grown, generation=2, job_pods={**job_pods, "n1": PENDING})
    assert done(waiting) == {}
    all_up = cast("a", grown, generation=2, job_pods={**job_pods, "n1": Sat(ready(), fresh=True)})
    assert done(all_up) == {A0: "save and stop"}


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
    assert done(grows, now=now) == ({A0: "save and stop"} if stops else {})


# --- several containers ---------------------------------------------------------------------


def part(at, *then):
    """One of three containers of a job: a run, then these events."""
    return running(run(3, 0, peers=3, at=at), *then)


def test_followers_are_hurried_once_the_leader_has_saved():
    def after(leader, *others):
        job_pods = dict(zip(("n0", "n1", "n2"), (leader, *others), strict=True))
        return done(cast("a", generation=2, job_pods=job_pods, suspend=True))

    told = stop(4, leave=True)
    waiting = [part(1, told), part(2, told)]
    # The leader has not heard of the stop; it saves; its state is unknown.
    assert after(part(0, told), *waiting) == {}
    assert after(Sat(part(0), declared=told), *waiting) == {}
    assert after(Sat(None, since=NOW - 5), *waiting) == {}
    hurried = {PodKey(A, node): "stop, leave" for node in (N1, N2)}
    # It may have started without a report.
    silent = Sat(ready(), declared=run(3, 0, peers=3, at=0))
    assert not hurried.items() & after(silent, *waiting).items()
    # It has, it never will, or it is gone.
    assert after(part(0, told, CheckpointDone(1)), *waiting) == hurried
    assert after(part(0, told, RankEnded(1, 0, None, 9)), *waiting) == hurried
    assert after(ENDED, *waiting) == {A0: "unbook", **hurried}
    # The same command is not sent twice.
    said = [Sat(state, declared=stop(5, leave=True, checkpoint=False)) for state in waiting]
    assert after(part(0, told, CheckpointDone(1)), *said) == {}


def test_followers_are_not_hurried_if_all_save():
    told = stop(4, leave=True)
    job_pods = {"n0": part(0, told, CheckpointDone(1)), "n1": part(1, told), "n2": part(2, told)}
    everywhere = Checkpoint(signal="SIGUSR1", to="all", shared=True)
    job = cast("a", generation=2, job_pods=job_pods, suspend=True, checkpoint=everywhere)
    assert done(job) == {}


def both(one, other, **rest):
    return cast("a", {"n0": (0,), "n1": (0,)}, generation=2, n0=one, n1=other, **rest)


OLD0, OLD1 = run(3, 1, peers=2), run(3, 1, peers=2, at=1)


def test_no_container_runs_before_all_have_released():
    assert done(both(running(OLD0), running(OLD1))) == {A0: "save and stop", A1: "save and stop"}
    assert done(both(released(OLD0, stop(4)), running(OLD1, stop(4), CheckpointDone(1)))) == {}
    assert done(both(released(OLD0, stop(4)), released(OLD1, stop(4)))) == {A0: "run", A1: "run"}


def test_left_out_container_gets_the_same_run():
    begun = {"a": Begun(5, {N0: run(5, 0, peers=2), N1: run(5, 0, peers=2, at=1)})}
    assert done(both(running(run(5, 0, peers=2)), ready()), begun=begun) == {A1: "run"}


def test_remains_of_a_broken_start_end_without_saving():
    """The other container has another incarnation; the first would wait for it for ever."""
    assert done(both(running(OLD0), PENDING, broken=3)) == {A0: "stop"}


def test_broken_start_of_another_controller_saves_first():
    """Another controller may already have ordered a start that replaces the broken one."""
    theirs = run(3, 1, peers=2, epoch=EPOCH - 1)
    assert done(cast("a", generation=2, broken=3, n0=running(theirs))) == {
        A0: "save and stop, leave"
    }


def test_leftover_pods_end_when_all_others_run():
    assert done(
        cast("a", {"n0": (0,)}, generation=2, n0=running(run(5, 0)), n1=released(OLD1, stop(4)))
    ) == {A1: "save and stop, leave"}


# --- a newer decision turns a change around -------------------------------------------------


def test_pods_of_a_withdrawn_decision_end_at_once():
    withdrawn = starting({"n2": (0,)}, 3, n0=PENDING, n1=Sat(ready(), fresh=True))
    assert done(withdrawn) == {
        A0: "remove: it is no longer needed",
        A1: "save and stop, leave",
        PodKey(A, N2): "book",
    }


def test_end_of_an_unused_pod_stops_no_other():
    unused = Sat(ready(), declared=stop(6, leave=True))
    holds = {"n0": (0,), "n2": (0,)}
    job = cast("a", holds, generation=3, n0=running(run(3, 0)), n1=unused, n2=PENDING)
    assert done(job) == {}


def test_stopping_job_goes_on_stopping_after_a_new_decision():
    """Its second container has no order yet, and the new decision wants it unchanged."""
    holds = {"n0": (1,), "n1": (1,)}
    job = cast("a", holds, generation=3, n0=released(OLD0, stop(6)), n1=running(OLD1))
    assert done(job) == {A1: "save and stop"}


def test_leaving_pod_is_not_reused():
    """The job was stopped, and has GPUs again before its pod has gone."""
    leaving = Sat(replace(released(run(3, 0), stop(4)), leaving=True))
    assert done(starting({"n0": (0,)}, 3, n0=leaving)) == {}
    assert done(starting({"n0": (0,)}, 3, n0=ENDED)) == {A0: "unbook"}
    assert done(starting({"n0": (0,)}, 3)) == {A0: "book"}


# --- a controller that begins ---------------------------------------------------------------


def test_new_controller_stamps_first():
    theirs = run(3, 0, epoch=EPOCH - 1)
    assert done(cast("a", {"n0": (0, 1)}, generation=2, n0=running(theirs))) == {A0: "stamp"}
    # A stop is a stamp as well.
    assert done(cast("a", generation=2, n0=running(theirs))) == {A0: "save and stop, leave"}


def test_nothing_begins_before_the_stamp():
    """The job has left n0, where a former controller's run may still arrive."""
    theirs = released(run(3, 0, epoch=EPOCH - 1), stop(4, epoch=EPOCH - 1))
    assert done(starting({"n1": (0,)}, 3, n0=theirs, n1=ready())) == {A0: "stamp"}


def test_leftover_gpus_stay_reserved_until_the_stamp():
    """A command of the former controller may still give it GPU 1."""
    theirs, leftover = running(run(5, 0, epoch=EPOCH - 1)), frozenset({GpuRef(N0, 1)})
    a = cast("a", {"n0": (0,)}, leftover=leftover, generation=2, n0=theirs)
    b = cast("b", {"n0": (1,)}, n0=ready(), phase=Phase.INITIALIZED)
    assert done(a, b) == {A0: "stamp"}


def test_booked_pod_of_a_dead_controller_is_launched():
    assert done(
        cast(
            "a", {"n0": (0,)}, n0=Sat(phase=PodPhase.PENDING, asked=False), phase=Phase.INITIALIZED
        )
    ) == {A0: "launch"}


# --- SideCars that do not answer ------------------------------------------------------------


@pytest.mark.parametrize(
    ("outdated", "limit"),
    [(False, 60), pytest.param(True, 360, id="expired certificate: it may get another one")],
)
def test_pod_with_a_silent_sidecar_is_removed(outdated, limit):
    silent = Sat(running(run(3, 0)), reachable=False, since=NOW - limit + 1.0, outdated=outdated)
    scene = make_scene(cast("a", {"n0": (0,)}, n0=silent))
    assert deeds(scene) == {}
    why = f"its SideCar has not answered for {limit + 1} s"
    assert deeds(replace(scene, now=NOW + 2.0)) == {A0: f"remove: {why}"}


def test_job_with_a_lost_pod_begins_nowhere_else():
    lost = Sat(running(run(3, 0)), phase=PodPhase.LOST)
    assert done(starting({"n1": (0,)}, n0=lost, n1=ready())) == {}


# --- gangs, retries, ends -------------------------------------------------------------------


def test_incomplete_gang_does_not_begin():
    partial = cast("a", {"n0": (0,)}, gang=2, n0=ready(), phase=Phase.INITIALIZED)
    assert done(partial) == {}
    whole = cast("a", {"n0": (0, 1)}, gang=2, n0=ready(), phase=Phase.INITIALIZED)
    assert done(whole) == {A0: "run"}


def test_crashed_job_waits_for_its_retry_time():
    crashed = starting({"n0": (0,)}, retry_at=NOW + 5, broken=3, n0=ended(run(3, 0), 1))
    assert done(crashed) == {}
    assert done(crashed, now=NOW + 5) == {A0: "run"}


def test_cancelled_job_is_forgotten_when_its_pods_are_gone():
    assert done(cast("a", generation=0)) == {}
    assert done(cast("a", generation=2, cancelled=True)) == {A: "forget"}
    lives_yet = cast("a", generation=2, cancelled=True, n0=ENDED)
    assert done(lives_yet) == {A0: "unbook"}


def test_finished_job_is_forgotten_after_its_ttl():
    ends: dict[str, Any] = {"generation": 2, "phase": Phase.COMPLETED, "finished_at": NOW - 10}
    soon = cast("b", limits=Limits(ttl_seconds_after_finished=11), **ends)
    now = cast("c", limits=Limits(ttl_seconds_after_finished=10), **ends)
    scene = make_scene(cast("a", **ends), soon, now)
    assert deeds(scene) == {"c": "forget"}
    # The default is for jobs without a time of their own.
    assert deeds(replace(scene, ttl_seconds=11)) == {"c": "forget"}
    assert deeds(replace(scene, ttl_seconds=10)) == {"a": "forget", "c": "forget"}


def test_job_with_an_unreadable_spec_only_reacts_to_cancel():
    known: Any = {"generation": 2, "problem": "gpus: no mapping", "n0": running(run(3, 0))}
    assert done(cast("a", {"n0": (0, 1)}, **known)) == {}
    cancelled = cast("a", cancelled=True, **known)
    assert done(cancelled) == {A0: "stop, leave"}


# --- recreation -----------------------------------------------------------------------------

RECREATE = Mechanism.RECREATE


def test_recreation_ends_all_pods_of_a_changed_job():
    for sat in Sat(running(run(3, 0, 1)), shaped=1), Sat(ready(), fresh=True, shaped=1):
        job = cast("a", {"n0": (0,)}, generation=2, shaped=2, n0=sat)
        assert done(job, mechanism=RECREATE) == {A0: "save and stop, leave"}


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
        a = cast("a", generation=2, n0=sat, leftover=frozenset({GpuRef(N0, 1)}))
        found = done(a, b, mechanism=mechanism)
        assert ("book" in found.get(B0, "")) is booked, (sat, mechanism)


def test_recreation_keeps_the_pod_of_a_crashed_job():
    crashed = Sat(ended(run(3, 0), 1), shaped=1)
    job = starting({"n0": (0,)}, shaped=1, broken=3, n0=crashed)
    assert done(job, mechanism=RECREATE) == {A0: "run"}


# --- rest -----------------------------------------------------------------------------------


def test_nothing_happens_where_all_is_as_decided():
    one, other = running(run(3, 2, peers=2)), running(run(3, 0, peers=2, at=1))
    wide = cast("b", {"n0": (2,), "n1": (0,)}, n0=one, n1=other)
    trains = cast("a", {"n0": (0, 1)}, n0=running(run(3, 0, 1)))
    assert done(trains, wide, cast("c", generation=0)) == {}
