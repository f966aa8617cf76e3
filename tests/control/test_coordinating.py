"""The next commands, in small scenes: each names one law of the walk from decision to training."""

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


def halt(key, *, checkpoint=True, leave=False):
    return Halt(key, checkpoint, leave)


# --- a newcomer and its victim --------------------------------------------------------------


def victim(*, state=None, **rest):
    """It has two GPUs, and one of them is decided away."""
    state = state if state is not None else running(run(3, 0, 1))
    return cast(
        "a", {"n0": (0,)}, generation=2, job_pods={"n0": state}, phase=Phase.ADJUSTING, **rest
    )


def newcomer(**rest):
    return cast("b", {"n0": (1,)}, phase=Phase.INITIALIZED, **rest)


def test_a_newcomer_gets_its_pod_while_its_victim_trains():
    assert next_commands(make_scene(victim(), newcomer())) == [Book(B, (N0,))]


@pytest.mark.parametrize(
    "sat",
    [
        PENDING,
        Sat(new(), fresh=True, declared=stop(0)),
        Sat(ready(), reachable=False, since=NOW - 5),
    ],
)
def test_a_victim_is_left_in_peace_until_the_newcomer_is_ready(sat):
    assert next_commands(make_scene(victim(), newcomer(job_pods={"n0": sat}))) == []


def test_a_victim_is_left_in_peace_while_the_newcomer_warms_up():
    cold = replace(ready(), warmth=Warmth(wanted=2, ready=1))
    scene = make_scene(victim(), newcomer(job_pods={"n0": Sat(cold, since=NOW - 1)}), now=10.0)
    assert next_commands(scene) == []
    assert next_commands(replace(scene, now=100.0)) == [Begin(A, (N0,))]


def test_a_victim_is_told_when_the_newcomer_is_ready_and_the_newcomer_waits():
    scene = make_scene(victim(), newcomer(job_pods={"n0": Sat(ready(), fresh=True)}))
    assert next_commands(scene) == [Begin(A, (N0,))]


@pytest.mark.parametrize(
    "state",
    [
        running(run(3, 0, 1), run(5, 0)),
        running(run(3, 0, 1), run(5, 0), CheckpointDone(1)),
        running(run(3, 0, 1), run(5, 0), RankEnded(1, 0, 0)),
    ],
    ids=lambda state: state.phase.value,
)
def test_a_newcomer_waits_for_the_proof(state):
    scene = make_scene(victim(state=state), newcomer(job_pods={"n0": Sat(ready(), fresh=True)}))
    assert next_commands(scene) == []


def test_a_job_that_loses_all_trains_on_until_the_newcomer_is_ready():
    leaves = cast("a", generation=2, job_pods={"n0": running(run(3, 0, 1))})
    assert next_commands(make_scene(leaves, newcomer(job_pods={"n0": PENDING}))) == []
    scene = make_scene(leaves, newcomer(job_pods={"n0": ready()}))
    assert next_commands(scene) == [halt(A0, leave=True)]


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
def test_a_job_that_is_wanted_gone_does_not_wait_for_a_newcomer(why):
    leaves = cast("a", generation=2, job_pods={"n0": running(run(3, 0, 1))}, **why)
    commands = next_commands(make_scene(leaves, newcomer(job_pods={"n0": PENDING})))
    saves = "cancelled" not in why and why.get("saves", True) and not why.get("broken")
    assert commands == [halt(A0, leave=True, checkpoint=saves)]


def test_a_job_that_nobody_claims_anything_of_goes_at_once():
    leaves = cast("a", generation=2, job_pods={"n0": running(run(3, 0, 1))})
    assert next_commands(make_scene(leaves)) == [halt(A0, leave=True)]


def test_what_was_lost_is_not_ended_before_it_has_said_what_there_is_of_it():
    lost: dict[str, Any] = {"generation": 4, "cause": Cause(CauseCode.NODE_LOST)}
    old, silent = run(3, 0, peers=2, epoch=1), Sat(None, since=NOW - 5)
    job_pods: dict[str, Sat | State] = {"n0": running(old), "n1": silent}
    assert next_commands(make_scene(cast("a", job_pods=job_pods, **lost))) == [Stamp(A0)]
    job_pods["n0"] = running(run(3, 0, peers=2))
    assert next_commands(make_scene(cast("a", job_pods=job_pods, **lost))) == []
    # The wait has a limit, and an unwanted job does not wait at all.
    job_pods["n1"] = replace(silent, since=NOW - 11)
    assert next_commands(make_scene(cast("a", job_pods=job_pods, **lost))) == [halt(A0, leave=True)]
    job_pods["n1"] = silent
    unwanted = cast("a", job_pods=job_pods, suspend=True, **lost)
    assert next_commands(make_scene(unwanted)) == [halt(A0, leave=True)]


def test_what_was_begun_is_brought_to_its_end_though_the_newcomer_is_gone_again():
    """One container was ordered to stop; the other would only hang."""
    leaves = cast(
        "a",
        generation=2,
        job_pods={
            "n0": released(run(3, 0, peers=2), stop(4, leave=True)),
            "n1": running(run(3, 0, peers=2, at=1)),
        },
    )
    other = cast("b", {"n1": (0,)}, job_pods={"n1": PENDING}, phase=Phase.INITIALIZED)
    assert next_commands(make_scene(leaves, other)) == [halt(A1, leave=True)]


def test_two_jobs_that_swap_their_gpus_both_let_go():
    a = cast("a", {"n0": (1,)}, generation=2, job_pods={"n0": running(run(3, 0))})
    b = cast("b", {"n0": (0,)}, generation=2, job_pods={"n0": running(run(3, 1))})
    assert next_commands(make_scene(a, b)) == [halt(A0), halt(B0)]
    a = cast("a", {"n0": (1,)}, generation=2, job_pods={"n0": released(run(3, 0), stop(4))})
    assert next_commands(make_scene(a, b)) == [Begin(B, (N0,))]
    b = cast("b", {"n0": (0,)}, generation=2, job_pods={"n0": running(run(5, 0))})
    assert next_commands(make_scene(a, b)) == [Begin(A, (N0,))]


# --- growing --------------------------------------------------------------------------------


def test_a_job_trains_on_until_its_new_gpus_are_free():
    a = cast("a", {"n0": (0, 1)}, generation=2, job_pods={"n0": running(run(3, 0))})
    b = cast("b", {"n0": (2,)}, generation=2, job_pods={"n0": running(run(3, 1, 2), run(5, 2))})
    assert next_commands(make_scene(a, b)) == []


def test_a_job_trains_on_until_its_new_pod_is_ready():
    job_pods = {"n0": running(run(3, 0))}
    grown = {"n0": (0,), "n1": (0,)}
    assert next_commands(make_scene(cast("a", grown, generation=2, job_pods=job_pods))) == [
        Book(A, (N1,))
    ]
    waiting = cast("a", grown, generation=2, job_pods={**job_pods, "n1": PENDING})
    assert next_commands(make_scene(waiting)) == []
    all_up = cast("a", grown, generation=2, job_pods={**job_pods, "n1": Sat(ready(), fresh=True)})
    assert next_commands(make_scene(all_up)) == [halt(A0)]


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
def test_a_job_trains_on_until_its_new_pod_is_warm_or_had_the_time_for_it(warmth, now, stops):
    new_pod = Sat(replace(ready(), warmth=warmth), fresh=True, since=NOW - 1)
    job_pods: dict[str, Sat | State] = {"n0": running(run(3, 0)), "n1": new_pod}
    grows = cast("a", {"n0": (0,), "n1": (0, 1, 2)}, generation=2, job_pods=job_pods)
    assert next_commands(make_scene(grows, now=now)) == ([halt(A0)] if stops else [])


# --- several containers ---------------------------------------------------------------------


def part(at, *then):
    """One of three containers of a job, told to run once and then this."""
    return running(run(3, 0, peers=3, at=at), *then)


def test_who_follows_is_hurried_as_soon_as_the_leader_has_saved():
    def commands(leader, *others):
        job_pods = dict(zip(("n0", "n1", "n2"), (leader, *others), strict=True))
        return next_commands(make_scene(cast("a", generation=2, job_pods=job_pods, suspend=True)))

    told = stop(4, leave=True)
    waiting = [part(1, told), part(2, told)]
    # The leader has not heard yet; it saves itself; its state is unknown.
    assert commands(part(0, told), *waiting) == []
    unheard = Sat(part(0), declared=told)
    assert commands(unheard, *waiting) == []
    assert commands(Sat(None, since=NOW - 5), *waiting) == []
    hurried = [halt(PodKey(A, node), checkpoint=False, leave=True) for node in (N1, N2)]
    # It has started perhaps, and has not said so.
    silent = Sat(ready(), declared=run(3, 0, peers=3, at=0))
    assert not set(hurried) & set(commands(silent, *waiting))
    # It has, it never will, it is not there any more.
    assert commands(part(0, told, CheckpointDone(1)), *waiting) == hurried
    assert commands(part(0, told, RankEnded(1, 0, None, 9)), *waiting) == hurried
    assert commands(ENDED, *waiting)[-2:] == hurried
    # The same command is not sent twice.
    said = [Sat(state, declared=stop(5, leave=True, checkpoint=False)) for state in waiting]
    assert commands(part(0, told, CheckpointDone(1)), *said) == []


def test_nobody_is_hurried_where_all_save_themselves():
    told = stop(4, leave=True)
    job_pods = {"n0": part(0, told, CheckpointDone(1)), "n1": part(1, told), "n2": part(2, told)}
    everywhere = Checkpoint(signal="SIGUSR1", to="all", shared=True)
    job = cast("a", generation=2, job_pods=job_pods, suspend=True, checkpoint=everywhere)
    assert next_commands(make_scene(job)) == []


def both(one, other, **rest):
    return cast(
        "a", {"n0": (0,), "n1": (0,)}, generation=2, job_pods={"n0": one, "n1": other}, **rest
    )


OLD0, OLD1 = run(3, 1, peers=2), run(3, 1, peers=2, at=1)


def test_all_containers_are_told_to_stop_before_any_is_told_to_run():
    scene = make_scene(both(running(OLD0), running(OLD1)))
    assert next_commands(scene) == [halt(A0), halt(A1)]


def test_no_container_runs_before_all_have_released():
    scene = make_scene(both(released(OLD0, stop(4)), running(OLD1, stop(4), CheckpointDone(1))))
    assert next_commands(scene) == []
    scene = make_scene(both(released(OLD0, stop(4)), released(OLD1, stop(4))))
    assert next_commands(scene) == [Begin(A, (N0, N1))]


def test_a_container_that_was_left_out_is_told_the_rest():
    begun = {"a": Begun(5, {N0: run(5, 0, peers=2), N1: run(5, 0, peers=2, at=1)})}
    scene = make_scene(both(running(run(5, 0, peers=2)), ready()), begun=begun)
    assert next_commands(scene) == [Begin(A, (N1,))]


def test_what_is_left_of_a_broken_start_is_ended_at_once_and_does_not_save():
    """The other container is another incarnation; the first would wait for it for ever."""
    scene = make_scene(both(running(OLD0), PENDING, broken=3))
    assert next_commands(scene) == [halt(A0, checkpoint=False)]


def test_who_may_obey_another_saves_itself_before_it_ends():
    """A broken start may already be replaced by another one that another controller ordered."""
    theirs = run(3, 1, peers=2, epoch=EPOCH - 1)
    scene = make_scene(cast("a", generation=2, broken=3, job_pods={"n0": running(theirs)}))
    assert next_commands(scene) == [halt(A0, leave=True, checkpoint=True)]


def test_pods_that_are_left_end_when_all_others_run():
    scene = make_scene(
        cast(
            "a",
            {"n0": (0,)},
            generation=2,
            job_pods={"n0": running(run(5, 0)), "n1": released(OLD1, stop(4))},
        )
    )
    assert next_commands(scene) == [halt(A1, leave=True)]


# --- a newer decision turns a change around -------------------------------------------------


def test_pods_of_a_decision_that_was_taken_back_end_at_once():
    scene = make_scene(
        cast(
            "a",
            {"n2": (0,)},
            generation=3,
            job_pods={"n0": PENDING, "n1": Sat(ready(), fresh=True)},
            phase=Phase.INITIALIZED,
        )
    )
    assert next_commands(scene) == [
        Remove(A0, "it is no longer needed"),
        halt(A1, leave=True),
        Book(A, (N2,)),
    ]


def test_to_end_a_pod_that_was_never_used_stops_nobody():
    scene = make_scene(
        cast(
            "a",
            {"n0": (0,), "n2": (0,)},
            generation=3,
            job_pods={
                "n0": running(run(3, 0)),
                "n1": Sat(ready(), declared=stop(6, leave=True)),
                "n2": PENDING,
            },
        )
    )
    assert next_commands(scene) == []


def test_a_job_that_stops_already_goes_on_stopping_for_the_newer_decision():
    """Its second container has no order yet, and the newer decision wants it as it was."""
    scene = make_scene(
        cast(
            "a",
            {"n0": (1,), "n1": (1,)},
            generation=3,
            job_pods={"n0": released(OLD0, stop(6)), "n1": running(OLD1)},
        )
    )
    assert next_commands(scene) == [halt(A1)]


def test_a_pod_that_is_leaving_is_not_used_again():
    """The job was stopped, and has GPUs again before its pod has gone."""
    job_pods = {"n0": released(run(3, 0), stop(4))}
    leaving = Sat(replace(job_pods["n0"], leaving=True))
    again = cast("a", {"n0": (0,)}, generation=3, job_pods={"n0": leaving}, phase=Phase.INITIALIZED)
    assert next_commands(make_scene(again)) == []
    gone = cast("a", {"n0": (0,)}, generation=3, job_pods={"n0": ENDED}, phase=Phase.INITIALIZED)
    assert next_commands(make_scene(gone)) == [Unbook(A, (N0,))]
    free = cast("a", {"n0": (0,)}, generation=3, phase=Phase.INITIALIZED)
    assert next_commands(make_scene(free)) == [Book(A, (N0,))]


# --- a controller that begins ---------------------------------------------------------------


def test_stamps_come_first_and_say_what_holds_already():
    theirs = run(3, 0, epoch=EPOCH - 1)
    scene = make_scene(cast("a", {"n0": (0, 1)}, generation=2, job_pods={"n0": running(theirs)}))
    assert next_commands(scene) == [Stamp(A0)]


def test_nothing_is_begun_while_a_former_controller_may_still_begin_something():
    """The job has left n0, and a command to run there may be on its way."""
    theirs = stop(2, epoch=EPOCH - 1)
    scene = make_scene(
        cast(
            "a",
            {"n1": (0,)},
            generation=3,
            job_pods={
                "n0": released(run(3, 0, epoch=EPOCH - 1), replace(theirs, generation=4)),
                "n1": ready(),
            },
            phase=Phase.INITIALIZED,
        )
    )
    assert next_commands(scene) == [Stamp(A0)]


def test_who_must_stop_is_told_that_instead_of_a_stamp():
    theirs = run(3, 0, epoch=EPOCH - 1)
    scene = make_scene(cast("a", generation=2, job_pods={"n0": running(theirs)}))
    assert next_commands(scene) == [halt(A0, leave=True)]


def test_the_gpus_of_a_decision_before_ours_are_nobody_elses_until_the_stamp():
    """A command of the former controller may still let it take GPU 1."""
    a = cast(
        "a",
        {"n0": (0,)},
        leftover=frozenset({(N0, 1)}),
        generation=2,
        job_pods={"n0": running(run(5, 0, epoch=EPOCH - 1))},
    )
    b = cast("b", {"n0": (1,)}, job_pods={"n0": ready()}, phase=Phase.INITIALIZED)
    assert next_commands(make_scene(a, b)) == [Stamp(A0)]


def test_a_pod_that_was_booked_by_a_controller_that_died_is_asked_for():
    scene = make_scene(
        cast(
            "a",
            {"n0": (0,)},
            job_pods={"n0": Sat(phase=PodPhase.PENDING, asked=False)},
            phase=Phase.INITIALIZED,
        )
    )
    assert next_commands(scene) == [Launch(A0)]


# --- what does not answer -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outdated", "limit"),
    [(False, 60), pytest.param(True, 360, id="its certificate is over: it may get another one")],
)
def test_a_pod_whose_sidecar_is_silent_for_long_is_ended(outdated, limit):
    silent = Sat(running(run(3, 0)), reachable=False, since=NOW - limit + 1.0, outdated=outdated)
    scene = make_scene(cast("a", {"n0": (0,)}, job_pods={"n0": silent}))
    assert next_commands(scene) == []
    why = f"its SideCar has not answered for {limit + 1} s"
    assert next_commands(replace(scene, now=NOW + 2.0)) == [Remove(A0, why, True)]


def test_a_job_with_a_lost_pod_begins_nowhere_else():
    a = cast(
        "a",
        {"n1": (0,)},
        generation=2,
        job_pods={"n0": Sat(running(run(3, 0)), phase=PodPhase.LOST), "n1": ready()},
        phase=Phase.INITIALIZED,
    )
    assert next_commands(make_scene(a)) == []


def test_a_pod_that_cannot_be_spoken_to_and_is_not_wanted_is_removed():
    silent = Sat(running(run(3, 0)), reachable=False, since=NOW - 5)
    job_pods = {"n0": Sat(phase=PodPhase.PENDING), "n1": silent}
    assert next_commands(make_scene(cast("a", generation=2, job_pods=job_pods))) == [
        Remove(A0, "it is no longer needed"),
        halt(A1, leave=True),
    ]


# --- gangs, retries, ends -------------------------------------------------------------------


def test_a_gang_that_is_not_complete_does_not_begin():
    partial = cast("a", {"n0": (0,)}, gang=2, job_pods={"n0": ready()}, phase=Phase.INITIALIZED)
    assert next_commands(make_scene(partial)) == []
    whole = cast("a", {"n0": (0, 1)}, gang=2, job_pods={"n0": ready()}, phase=Phase.INITIALIZED)
    assert next_commands(make_scene(whole)) == [Begin(A, (N0,))]


def test_a_crashed_job_begins_when_it_is_time():
    crashed = cast(
        "a",
        {"n0": (0,)},
        generation=2,
        retry_at=NOW + 5,
        broken=3,
        job_pods={"n0": ended(run(3, 0), 1)},
        phase=Phase.INITIALIZED,
    )
    scene = make_scene(crashed)
    assert next_commands(scene) == []
    assert next_commands(replace(scene, now=NOW + 5)) == [Begin(A, (N0,))]


def test_a_job_whose_pods_have_gone_is_forgotten_when_its_user_wants_it_gone():
    assert next_commands(make_scene(cast("a", generation=0))) == []
    assert next_commands(make_scene(cast("a", generation=2, cancelled=True))) == [Forget(A)]
    lives_yet = cast("a", generation=2, cancelled=True, job_pods={"n0": ENDED})
    assert next_commands(make_scene(lives_yet)) == [Unbook(A, (N0,))]


def test_a_finished_job_is_forgotten_after_its_time():
    ends: dict[str, Any] = {"phase": Phase.COMPLETED, "finished_at": NOW - 10}
    forever = cast("a", generation=2, **ends)
    assert next_commands(make_scene(forever)) == []
    soon = cast("a", generation=2, limits=Limits(ttl_seconds_after_finished=11), **ends)
    assert next_commands(make_scene(soon)) == []
    now = cast("a", generation=2, limits=Limits(ttl_seconds_after_finished=10), **ends)
    assert next_commands(make_scene(now)) == [Forget(A)]


def test_the_admins_time_counts_for_jobs_that_name_none():
    ends: dict[str, Any] = {"phase": Phase.COMPLETED, "finished_at": NOW - 10}
    of_user = cast("b", generation=2, limits=Limits(ttl_seconds_after_finished=11), **ends)
    scene = make_scene(cast("a", generation=2, **ends), of_user)
    assert next_commands(replace(scene, ttl_seconds=11)) == []
    assert next_commands(replace(scene, ttl_seconds=10)) == [Forget(A)]


def test_a_job_whose_spec_cannot_be_read_is_left_as_it_is_unless_it_is_cancelled():
    change = {
        "generation": 2,
        "problem": "gpus: no mapping",
        "job_pods": {"n0": running(run(3, 0))},
    }
    changing: Any = {**change, "holds": {"n0": (0, 1)}}
    assert next_commands(make_scene(cast("a", **changing))) == []
    cancelled: Any = {**change, "cancelled": True}
    assert next_commands(make_scene(cast("a", **cancelled))) == [
        halt(A0, checkpoint=False, leave=True)
    ]


# --- recreation -----------------------------------------------------------------------------

RECREATE = Mechanism.RECREATE


def test_recreation_ends_all_pods_of_a_job_that_changes():
    scene = make_scene(
        cast(
            "a",
            {"n0": (0,)},
            generation=2,
            shaped=2,
            job_pods={"n0": Sat(running(run(3, 0, 1)), shaped=1)},
        ),
        mechanism=RECREATE,
    )
    assert next_commands(scene) == [halt(A0, leave=True)]


def test_recreation_asks_for_pods_only_when_all_their_gpus_are_free():
    """A container has its GPUs until it is gone, even if no process runs in it."""
    leaves = stop(4, leave=True)
    b = cast("b", {"n0": (1,)}, phase=Phase.INITIALIZED)
    for sat, mechanism, booked in (
        (Sat(running(run(3, 0, 1), leaves)), RECREATE, False),
        (Sat(released(run(3, 0), leaves)), RECREATE, False),
        (Sat(released(run(3, 0), leaves), phase=PodPhase.LOST), RECREATE, False),
        (Sat(released(run(3, 0), leaves), phase=PodPhase.ENDED), RECREATE, True),
        (Sat(released(run(3, 0), leaves)), Mechanism.IN_PLACE, True),
    ):
        a = cast("a", generation=2, job_pods={"n0": sat}, leftover=frozenset({(N0, 1)}))
        commands = next_commands(make_scene(a, b, mechanism=mechanism))
        assert (Book(B, (N0,)) in commands) is booked, (sat, mechanism)


def test_recreation_does_not_use_pods_that_were_granted_other_gpus():
    idle = Sat(ready(), fresh=True, shaped=1)
    scene = make_scene(
        cast("a", {"n0": (1,)}, generation=2, shaped=2, job_pods={"n0": idle}), mechanism=RECREATE
    )
    assert next_commands(scene) == [halt(A0, leave=True)]


def test_recreation_keeps_the_pod_of_a_job_that_crashed():
    crashed = Sat(ended(run(3, 0), 1), shaped=1)
    scene = make_scene(
        cast(
            "a",
            {"n0": (0,)},
            generation=2,
            shaped=1,
            broken=3,
            job_pods={"n0": crashed},
            phase=Phase.INITIALIZED,
        ),
        mechanism=RECREATE,
    )
    assert next_commands(scene) == [Begin(A, (N0,))]


# --- rest -----------------------------------------------------------------------------------


def test_where_everything_is_as_decided_nothing_is_done():
    scene = make_scene(
        cast("a", {"n0": (0, 1)}, job_pods={"n0": running(run(3, 0, 1))}),
        cast(
            "b",
            {"n0": (2,), "n1": (0,)},
            job_pods={"n0": running(run(3, 2, peers=2)), "n1": running(run(3, 0, peers=2, at=1))},
        ),
        cast("c", generation=0),
    )
    assert next_commands(scene) == []


def test_what_is_wrong_with_one_job_stops_no_other():
    broken = cast("a", {"n0": (0,)}, job_pods={"n0": running(run(3, 0))})
    nonsense: Any = None
    broken = replace(broken, entry=replace(broken.entry, status=nonsense))
    fine = cast("b", {"n0": (1,)}, phase=Phase.INITIALIZED)
    scene = make_scene(fine)
    scene = replace(
        scene,
        entries={A: broken.entry, **scene.entries},
        job_pods={A: broken.job_pods, **scene.job_pods},
    )
    scene.__dict__["claims"] = {}
    scene.__dict__["held"] = {}
    assert next_commands(scene) == [Book(B, (N0,))]
