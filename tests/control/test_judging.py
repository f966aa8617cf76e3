"""The conclusions from a scene: each verdict, in the smallest scene that leads to it."""

from dataclasses import replace
from typing import Any

import pytest

from dljob.control.judging.judging import judge
from dljob.control.situation.ports import PodPhase
from dljob.control.situation.rules import Rules
from dljob.control.situation.sent import Begun
from dljob.control.situation.status import Condition, ConditionType
from dljob.core.measuring import Resumption
from dljob.core.model import (
    Cause,
    CauseCode,
    Checkpoint,
    Direction,
    GpuRef,
    JobId,
    Limits,
    NodeName,
    Phase,
    Target,
    Training,
)
from dljob.core.model import Progress as Watched
from dljob_sidecar.behaviour.events import Gone, RankEnded, StartFailed
from dljob_wire.messages import Failure, Problem, Progress, State
from tests.builders import make_placement
from tests.control.scenes import (
    ENDED,
    EPOCH,
    NOW,
    PENDING,
    Sat,
    after,
    cast,
    ended,
    make_scene,
    new,
    ready,
    run,
    running,
    stop,
)

A = JobId("a")
N0, N1 = NodeName("n0"), NodeName("n1")
RULES = Rules()
NONSENSE: Any = None
PodsByJob = dict[str, Sat | State]


def verdict(*casts, rules=RULES, **rest):
    return judge(make_scene(*casts, **rest), rules)[casts[0].entry.job.id]


def judged(*casts, rules=RULES, **rest):
    """The status of the first job, as it was if nothing is said of it."""
    scene = make_scene(*casts, **rest)
    job = casts[0].entry.job.id
    verdicts = judge(scene, rules)
    return verdicts[job].status if job in verdicts else scene.entries[job].status


def alone(state, **rest):
    rest.setdefault("phase", Phase.RUNNING)
    return cast("a", {"n0": (0,)}, job_pods={"n0": state}, **rest)


def pair(one, other, **rest):
    rest.setdefault("phase", Phase.RUNNING)
    return cast("a", {"n0": (0,), "n1": (0,)}, job_pods={"n0": one, "n1": other}, **rest)


RUN0, RUN1 = run(3, 0, peers=2), run(3, 0, peers=2, at=1)


def reasons(each):
    return [news.reason for news in each.news]


# --- it goes well ---------------------------------------------------------------------------


def test_a_job_runs_when_all_its_containers_do():
    starting = pair(running(RUN0), after(RUN1), phase=Phase.INITIALIZED)
    assert judged(starting).phase is Phase.INITIALIZED
    both = pair(running(RUN0), running(RUN1), phase=Phase.INITIALIZED)
    said = verdict(both)
    assert said.status.phase is Phase.RUNNING
    assert (said.status.running, said.status.containers) == (3, 2)
    assert reasons(said) == ["Running"]
    assert said.status.condition(ConditionType.INITIALIZED).status


def test_what_it_was_seen_to_release_is_leftover_no_longer():
    leftover = frozenset(make_placement(n0=(1, 2)).refs())
    runs = alone(running(run(3, 0)), leftover=leftover, phase=Phase.ADJUSTING)
    assert judged(runs).leftover == frozenset()
    other_pod = cast(
        "a",
        {"n0": (0,)},
        generation=2,
        job_pods={"n0": running(run(5, 0)), "n1": running(run(3, 0), stop(4))},
        leftover=leftover,
        phase=Phase.ADJUSTING,
    )
    assert judged(other_pod).leftover == {(N1, 0)}


@pytest.mark.parametrize("shared", [True, False])
def test_a_job_whose_checkpoint_nobody_else_can_read_is_bound_to_its_nodes(shared):
    starts = alone(
        running(run(3, 0)), phase=Phase.INITIALIZED, checkpoint=Checkpoint(shared=shared)
    )
    assert judged(starts).bound_to == (() if shared else (N0,))


def test_a_change_pauses_a_job_from_the_end_of_the_former_training_to_its_next_step():
    changing = {"generation": 2, "phase": Phase.ADJUSTING}
    trains = alone(running(run(3, 0)), **changing)
    assert judged(trains).paused_at is None
    stops = alone(running(run(3, 0), run(5, 0)), **changing)
    assert judged(stops).paused_at == NOW
    runs = alone(running(run(5, 0)), **changing, paused_at=NOW - 27.0)
    assert judged(runs).paused_at == NOW - 27.0
    at_once = alone(running(run(5, 0)), **changing)
    assert judged(at_once).paused_at == NOW


def resumed_after(paused_at, resumption):
    """Return the verdict on a job whose change is over."""
    steps = running(run(5, 0), progress=Progress(iteration=7, begun=True))
    changed = alone(steps, generation=2, paused_at=paused_at, reshape_seconds=100.0)
    learnt = {A: resumption} if resumption else {}
    said = judge(make_scene(changed), RULES, resumptions=learnt)[A].status
    assert said.paused_at is None
    return said.reshape_seconds


@pytest.mark.parametrize(
    ("lost", "seconds"),
    [
        pytest.param(3.0, 125.0, id="its pod is another one, whose SideCar knows less"),
        pytest.param(26.0, 126.0, id="it was stopping before the first cycle"),
    ],
)
def test_what_a_change_has_cost_is_counted_with_its_first_step(lost, seconds):
    first_step = Resumption(generation=2, lost_seconds=lost, at=NOW - 2.0)
    assert resumed_after(NOW - 27.0, first_step) == seconds


def test_what_nobody_has_timed_is_not_counted():
    assert resumed_after(NOW - 27.0, None) == 100.0
    of_another_decision = Resumption(generation=1, lost_seconds=3.0, at=NOW - 2.0)
    assert resumed_after(NOW - 27.0, of_another_decision) == 100.0


def test_setbacks_are_forgotten_when_it_has_run_for_long():
    runs = alone(running(run(3, 0)), setbacks=2, decided_at=NOW - 100)
    assert judged(runs).setbacks == 2
    assert judged(alone(running(run(3, 0)), setbacks=2, decided_at=NOW - 121)).setbacks == 0


# --- it ends --------------------------------------------------------------------------------


def test_a_job_has_finished_when_all_its_processes_ended_well():
    said = verdict(pair(ended(RUN0), ended(RUN1)))
    assert said.status.phase is Phase.COMPLETED
    assert said.status.placement is None
    assert (said.status.exit_code, said.status.finished_at) == (0, NOW)
    assert said.status.condition(ConditionType.FINISHED).reason == "Finished"
    assert not said.status.condition(ConditionType.SCHEDULED).status
    assert reasons(said) == ["Finished"]


THOUSAND = {"training": Training(iterations=1000), "progress": Watched(log="x")}
UNMATCHED = Problem("ProgressNotMatched", "progress.log has matched no line; the last line is 'ok'")


@pytest.mark.parametrize(
    ("last", "interval", "reason"),
    [
        pytest.param(5, 1, "EndedEarly", id="after 5 of 1,000"),
        pytest.param(1000, 1, "Finished", id="after all of them"),
        pytest.param(999, 1, "Finished", id="counted from 0"),
        pytest.param(900, 100, "Finished", id="every hundredth is reported"),
        pytest.param(800, 100, "EndedEarly", id="two reports are missing"),
        pytest.param(900, 0, "Finished", id="reported once, near the end"),
        pytest.param(500, 0, "EndedEarly", id="reported once, half way"),
    ],
)
def test_a_job_that_did_less_than_it_was_asked_for_has_ended_early(last, interval, reason):
    progress = Progress(iteration=last, begun=True, interval=interval)
    said = judged(alone(replace(ended(run(3, 0)), progress=progress), **THOUSAND))
    assert (said.phase, said.iteration) == (Phase.COMPLETED, last)
    assert said.condition(ConditionType.FINISHED).reason == reason
    if reason == "EndedEarly":
        assert said.message == (
            f"its training ended with exit status 0 after {last} of 1,000 iterations"
        )


def test_a_job_whose_counter_begins_again_in_each_epoch_has_not_ended_early():
    last = Progress(iteration=150, begun=True, interval=1)
    strict = {**THOUSAND, "training": Training(iterations=1000, may_end_early=False)}
    said = judged(alone(replace(ended(run(3, 0)), progress=last), **strict, heard=3, lap=150))
    assert (said.phase, said.failures) == (Phase.COMPLETED, 0)
    assert said.condition(ConditionType.FINISHED).reason == "Finished"
    assert said.message == (
        "its training finished; how far it came is not certain: its counter begins again after 150"
        " iterations"
    )


def test_an_early_end_is_a_failure_if_its_user_says_so_and_once_for_each_start():
    strict = {**THOUSAND, "training": Training(iterations=1000, may_end_early=False)}
    early = replace(ended(run(3, 0)), progress=Progress(iteration=5, begun=True, interval=1))
    said = verdict(alone(early, **strict))
    assert (said.status.phase, said.status.failures) == (Phase.INITIALIZED, 1)
    assert reasons(said) == ["EndedEarly"]
    known = alone(early, **strict, broken=3, generation=2, phase=Phase.ADJUSTING)
    assert judged(known).failures == 0


def test_of_a_job_that_never_reported_it_is_said_that_nobody_knows_how_far_it_came():
    silent = replace(ended(run(3, 0)), problems=(UNMATCHED,))
    said = judged(alone(silent, **THOUSAND))
    assert said.condition(ConditionType.FINISHED).reason == "Finished"
    assert said.message == (
        "its training finished; how far it came is not known, because progress.log has matched"
        " no line; the last line is 'ok'"
    )


@pytest.mark.parametrize("other", [running(RUN1), after(RUN1)])
def test_a_job_has_not_finished_while_some_of_it_goes_on(other):
    assert not judged(pair(ended(RUN0), other)).is_final


@pytest.mark.parametrize("phase", [Phase.ADJUSTING, Phase.QUEUED, Phase.SUSPENDED])
def test_a_training_that_ends_while_other_gpus_are_decided_has_finished(phase):
    """Its pods for the change are up already, and have run nothing."""
    holds = {"n0": (0,), "n1": (0,)} if phase is Phase.ADJUSTING else None
    job_pods: PodsByJob = {"n0": ended(run(3, 0)), "n1": Sat(ready(), fresh=True)}
    done = cast("a", holds, generation=4, job_pods=job_pods, phase=phase, running=3, containers=1)
    assert judged(done).phase is Phase.COMPLETED


def test_a_training_over_several_containers_is_known_by_all_who_ran_it():
    """One of two has gone, and the later order does not say how many there were."""
    one = Sat(ended(RUN0), declared=stop(4))
    lost = cast("a", generation=2, job_pods={"n0": one}, phase=Phase.QUEUED)
    assert not judged(lost).is_final


def test_a_job_that_reached_its_target_saves_itself_and_is_done():
    target = Target(metric="top5", value=0.9, patience=2)
    training = Training(target=target)
    reached = alone(running(run(3, 0)), training=training, reached=2, metric=0.93)
    said = judged(reached)
    assert (said.phase, said.saves) == (Phase.COMPLETED, True)
    assert said.message == "top5 is 0.93, and 0.9 was asked for"
    assert not judged(alone(running(run(3, 0)), training=training, reached=1, metric=0.93)).is_final


def test_a_job_that_took_too_long_has_failed():
    limits = Limits(active_deadline_seconds=100)
    assert not judged(alone(running(run(3, 0)), limits=limits, started_at=NOW - 99)).is_final
    said = judged(alone(running(run(3, 0)), limits=limits, started_at=NOW - 101))
    assert said.phase is Phase.FAILED
    assert said.condition(ConditionType.FINISHED).reason == "DeadlineExceeded"


def test_who_is_cancelled_loses_everything_at_once_and_is_judged_no_further():
    said = judged(alone(ended(run(3, 0), 1), cancelled=True))
    assert (said.placement, said.saves, said.failures) == (None, False, 0)


# --- it crashes -----------------------------------------------------------------------------


def test_a_job_that_crashes_is_tried_again_where_it_is():
    said = verdict(alone(ended(run(3, 0), 7)))
    status = said.status
    assert (status.phase, status.generation) == (Phase.INITIALIZED, 2)
    assert status.placement == make_placement(n0=(0,))
    assert (status.failures, status.exit_code, status.broken) == (1, 7, 3)
    assert status.retry_at == NOW + 10
    assert status.message == "rank 0 exited with status 7; attempt 2 of 4 follows a pause of 10 s"
    assert reasons(said) == ["Crashed"]


def test_over_several_containers_the_earliest_failure_counts_with_its_exception():
    lost = replace(ended(run(3, 0), 1), failure=Failure(0, 20.0, 1, exception="ConnectionError"))
    cause = replace(ended(run(3, 0), 1), failure=Failure(1, 10.0, 3, exception="ValueError: bad"))
    said = judged(cast("a", {"n0": [0], "n1": [0]}, job_pods={"n0": lost, "n1": cause}))
    assert (
        said.message
        == "rank 1 exited with status 3: ValueError: bad; attempt 2 of 4 follows a pause of 10 s"
    )
    assert said.exit_code == 3


def test_of_a_training_that_the_kernel_killed_the_reason_and_the_remedy_are_told():
    problem = Problem("OutOfMemory", "the kernel killed a process", "raise the limit")
    state = replace(ended(run(3, 0), None, 9), problems=(problem,))
    said = judged(alone(state))
    assert (
        said.message
        == "the kernel killed a process; raise the limit; attempt 2 of 4 follows a pause of 10 s"
    )
    assert (said.failures, said.exit_code) == (1, 137)


def test_each_attempt_waits_twice_as_long_and_gives_the_gpus_back_when_that_is_long():
    third = judged(alone(ended(run(3, 0), None, 9), failures=1))
    assert (third.retry_at, third.phase) == (NOW + 20, Phase.INITIALIZED)
    fourth = judged(alone(ended(run(3, 0), None, 9), failures=2))
    assert (fourth.retry_at, fourth.phase) == (NOW + 40, Phase.QUEUED)
    assert fourth.placement is None
    assert fourth.message == "rank 0 was ended by signal 9; attempt 4 of 4 follows a pause of 40 s"
    assert fourth.exit_code == 137
    limits = Limits(backoff_limit=2000)
    late = judged(alone(ended(run(3, 0), 1), failures=1500, limits=limits))
    assert late.retry_at == NOW + RULES.longest_retry_seconds


def test_a_job_whose_attempts_are_used_up_has_failed():
    said = verdict(alone(ended(run(3, 0), 1), failures=3))
    assert said.status.phase is Phase.FAILED
    assert said.status.message == "it failed 4 times; the last time rank 0 exited with status 1"
    assert said.news[-1].warning
    once = judged(alone(ended(run(3, 0), 1), limits=Limits(backoff_limit=0)))
    assert once.message == "it failed once; the last time rank 0 exited with status 1"


@pytest.mark.parametrize(
    ("code", "failures", "outcome"),
    [
        pytest.param(0, 0, {"Complete": "Finished"}, id="completed"),
        pytest.param(1, 3, {"Failed": "BackoffLimitExceeded"}, id="failed"),
        pytest.param(1, 0, {}, id="tried again"),
    ],
)
def test_only_a_jobs_end_sets_complete_or_failed_as_on_a_job_of_batch(code, failures, outcome):
    status = judged(alone(ended(run(3, 0), code), failures=failures))
    found = {
        each.type.value: each.reason
        for each in status.conditions
        if each.type in (ConditionType.COMPLETE, ConditionType.FAILED) and each.status
    }
    assert found == outcome
    assert all(each.message == status.message for each in status.conditions if each.type in outcome)


@pytest.mark.parametrize(
    ("name", "code"), [("CommandNotFound", 127), ("CommandNotExecutable", 126)]
)
def test_a_command_that_cannot_be_run_is_not_tried_again(name, code):
    problem = Problem(name, "trian.py: not found in PATH (/bin)", "give its full path")
    state = after(run(3, 0), StartFailed(1, problem), Gone(1))
    said = verdict(alone(state, limits=Limits(backoff_limit=3)))
    assert (said.status.phase, said.status.exit_code) == (Phase.FAILED, code)
    assert said.status.message == "trian.py: not found in PATH (/bin); give its full path"
    assert (said.news[-1].reason, said.news[-1].warning) == (name, True)
    # A start that may succeed at the next attempt is tried again.
    busy = Problem("TooManyProcesses", "train.py: Resource temporarily unavailable")
    state = after(run(3, 0), StartFailed(1, busy), Gone(1))
    assert "; attempt 2 of 4 follows" in judged(alone(state)).message


def test_a_crash_of_what_an_earlier_decision_started_counts_once():
    """It trained on, because its new GPUs are not free yet; or it was on its way out."""
    crashed = ended(run(3, 0), 1)
    said = judged(alone(crashed, generation=4, phase=Phase.ADJUSTING))
    assert (said.failures, said.generation, said.broken) == (1, 5, 3)
    again = alone(crashed, generation=2, broken=3, phase=Phase.INITIALIZED)
    assert judged(again).failures == 0
    said = judged(cast("a", generation=2, job_pods={"n0": crashed}, phase=Phase.QUEUED))
    assert (said.phase, said.failures, said.retry_at) == (Phase.QUEUED, 1, NOW + 10)
    assert said.generation == 2


# --- some of it is lost ---------------------------------------------------------------------


def told(*runs):
    """Return the orders that the controller under test has given."""
    return {"a": Begun(runs[0].generation, {NodeName(f"n{n}"): r for n, r in enumerate(runs)})}


def test_a_job_whose_container_was_restarted_starts_anew_at_once():
    said = verdict(alone(new("y"), running=3, containers=1))
    assert said.status.phase is Phase.RUNNING
    stamped = after(stop(0, incarnation="y"), incarnation="y")
    said = verdict(alone(stamped, running=3, containers=1))
    assert (said.status.phase, said.status.generation) == (Phase.INITIALIZED, 2)
    assert (said.status.restarts, said.status.failures) == (1, 0)
    assert said.status.retry_at == NOW
    assert reasons(said) == ["Restarted"]


@pytest.mark.parametrize(
    "job_pod",
    [replace(PENDING, since=NOW), ENDED, after(stop(0, incarnation="y"), incarnation="y")],
)
def test_when_one_of_two_containers_is_lost_both_start_anew(job_pod):
    said = judged(pair(running(RUN0), job_pod, running=3, containers=2, booked_at=NOW))
    assert (said.generation, said.broken, said.phase) == (2, 3, Phase.INITIALIZED)


def test_a_job_is_not_broken_as_long_as_not_all_were_heard():
    """A controller has begun, and reads one state after the other."""
    unheard = Sat(None, since=NOW - 1, reachable=False)
    assert judged(pair(running(RUN0), unheard, running=3, containers=2)).generation == 1
    unstamped = running(run(3, 0, peers=2, at=1, epoch=EPOCH - 1))
    assert judged(pair(running(RUN0), unstamped, running=3, containers=2)).generation == 1


def test_a_container_that_was_told_and_has_not_answered_is_not_lost():
    late = Sat(ready(), declared=RUN1)
    scene = pair(running(RUN0), late, phase=Phase.INITIALIZED)
    assert judged(scene, begun=told(RUN0, RUN1)).generation == 1


def test_a_container_that_was_restarted_on_the_way_will_never_join():
    """Its order was meant for another start of the container."""
    other = Sat(after(stop(0, incarnation="y"), incarnation="y"), declared=None)
    scene = pair(running(RUN0), other, phase=Phase.INITIALIZED)
    assert judged(scene, begun=told(RUN0, RUN1)).generation == 2


def test_what_sidecars_were_told_counts_even_if_the_record_of_it_was_lost():
    said = judged(alone(running(run(21, 0)), generation=3))
    assert said.generation == 11
    assert said.stop_generation > 21


def test_a_start_that_a_stamp_has_ended_is_started_anew_under_another_number():
    """The stamp of a new controller overtook the news of what the former one had begun."""
    theirs = run(3, 0, epoch=EPOCH - 1)
    undone = running(theirs, stop(0), RankEnded(1, 0, 0), Gone(1))
    said = judged(alone(undone, phase=Phase.INITIALIZED))
    assert (said.generation, said.run_generation) == (2, 5)


def test_a_job_gives_its_gpus_back_when_a_pod_of_it_is_lost_for_long():
    lost = Sat(running(run(3, 0)), phase=PodPhase.LOST, since=NOW - 59, reachable=False)
    assert judged(alone(lost)).placement is not None
    said = judged(alone(replace(lost, since=NOW - 61)))
    assert (said.placement, said.phase) == (None, Phase.QUEUED)
    assert said.condition(ConditionType.SCHEDULED).reason == "PodLost"
    assert said.broken == 0  # No other container waits for it, and it may save itself yet.
    others = pair(running(RUN0), replace(lost, state=running(RUN1), since=NOW - 61))
    assert judged(others).broken == 3


def bereft(state, code=CauseCode.NODE_LOST, **rest):
    """A job whose node was lost, with what it had there."""
    job_pod = state if isinstance(state, Sat) else Sat(state)
    job_pods, leftover = {"n0": job_pod}, frozenset({GpuRef(N0, 1)})
    return cast(
        "a", phase=Phase.QUEUED, cause=Cause(code), leftover=leftover, job_pods=job_pods, **rest
    )


def test_what_trained_on_while_its_node_was_lost_is_taken_up_as_it_is():
    said = verdict(bereft(running(run(3, 1)), generation=4))
    assert (said.status.phase, said.status.placement) == (Phase.RUNNING, make_placement(n0=(1,)))
    assert (said.status.run_generation, said.status.leftover) == (3, frozenset())
    assert reasons(said) == ["NodeBack", "Running"]
    assert said.status.condition(ConditionType.SCHEDULED).status
    starting = judged(bereft(after(run(3, 1)), generation=4))
    assert (starting.phase, starting.run_generation) == (Phase.INITIALIZED, 3)


@pytest.mark.parametrize(
    "lost",
    [
        bereft(running(run(3, 1)), CauseCode.OUTRANKED),
        bereft(running(run(3, 1)), suspend=True),
        bereft(Sat(running(run(3, 1)), phase=PodPhase.LOST, reachable=False, since=NOW)),
        bereft(running(run(3, 1), stop(4))),
        bereft(running(run(3, 1)), broken=3),
        bereft(running(run(3, 1, peers=2))),
        bereft(Sat(running(run(3, 1, epoch=1)))),
        bereft(Sat(running(run(3, 1)), phase=PodPhase.LOST, pod={"vanished": True})),
    ],
)
def test_what_does_not_train_on_whole_and_at_our_word_alone_is_decided_anew(lost):
    assert judged(lost).placement is None


def test_what_was_told_something_newer_that_may_yet_arrive_is_not_taken_up():
    later = Begun(5, {N0: run(5, 0, 1)})
    assert judged(bereft(running(run(3, 1))), begun={"a": later}).placement is None
    same = Begun(3, {N0: run(3, 1)})
    assert judged(bereft(running(run(3, 1))), begun={"a": same}).placement is not None


def test_what_came_back_without_its_node_or_after_its_gpus_were_given_away_is_decided_anew():
    back = bereft(running(run(3, 1)))
    assert judged(back, nodes={"n1": 4}).placement is None
    assert judged(back, cast("b", {"n0": (1,)})).placement is None


# --- it does not come up --------------------------------------------------------------------


def test_a_job_whose_pod_ends_before_it_was_used_gives_its_gpus_back_and_waits():
    died = Sat(phase=PodPhase.ENDED, fresh=True, pod={"message": "the node has no disk left"})
    said = verdict(alone(died, phase=Phase.INITIALIZED))
    assert (said.status.placement, said.status.phase) == (None, Phase.QUEUED)
    assert said.status.retry_at == NOW + 10
    assert said.status.message == (
        "its SideCar on n0 ended before it could be used: the node has no disk left;"
        " it is tried again in 10 s"
    )
    assert reasons(said) == ["NotInitialized"]
    assert judged(alone(died, phase=Phase.INITIALIZED, setbacks=2)).retry_at == NOW + 40


def test_a_pod_that_was_ended_on_purpose_is_no_failure():
    assert judged(alone(ENDED, phase=Phase.INITIALIZED)).placement is not None


def test_a_job_whose_pods_take_too_long_gives_its_gpus_back_and_waits():
    pending = replace(PENDING, since=NOW - 2000, pod={"reason": "ImagePullBackOff"})
    waits = alone(pending, phase=Phase.INITIALIZED, booked_at=NOW - 899)
    assert judged(waits).placement is not None
    said = judged(alone(pending, phase=Phase.INITIALIZED, booked_at=NOW - 901))
    assert (said.placement, said.setbacks) == (None, 1)
    assert "its SideCar on n0 does not start: ImagePullBackOff" in said.message


def test_what_does_not_start_because_its_node_is_not_ready_goes_elsewhere_soon():
    waits = replace(PENDING, pod={"reason": "NodeNotReady", "message": "node n0 is not ready"})
    assert judged(alone(waits, phase=Phase.INITIALIZED, booked_at=NOW - 19)).placement is not None
    said = verdict(alone(waits, phase=Phase.INITIALIZED, booked_at=NOW - 21)).status
    assert (said.placement, said.failures, said.setbacks) == (None, 0, 0)
    assert "node n0 is not ready" in said.message


def test_a_pod_that_is_started_again_is_given_its_time():
    """It ran for long, and cannot be spoken to since a moment ago; or the controller has begun then."""
    restarting = Sat(None, phase=PodPhase.PENDING, since=NOW - 1, reachable=False)
    assert judged(alone(restarting, booked_at=NOW - 5000)).placement is not None
    unheard = replace(restarting, phase=PodPhase.UP)
    assert judged(alone(unheard, booked_at=NOW - 5000)).placement is not None
    for_ever = replace(restarting, since=NOW - 901)
    assert judged(alone(for_ever, phase=Phase.INITIALIZED, booked_at=NOW - 5000)).placement is None


def test_a_growing_job_goes_on_with_what_it_trains_on_if_its_new_pod_does_not_come_up():
    job_pods: PodsByJob = {"n0": running(run(3, 0)), "n1": replace(PENDING, since=1.0)}
    grows = cast(
        "a",
        {"n0": (0,), "n1": (0,)},
        generation=2,
        job_pods=job_pods,
        phase=Phase.ADJUSTING,
        booked_at=NOW - 901,
    )
    said = judged(grows)
    assert (said.placement, said.adopted) == (make_placement(n0=(0,)), 3)
    assert (said.generation, said.run_generation) == (3, 3)
    assert said.retry_at == NOW + 10


def test_it_gives_all_back_if_what_it_trains_on_is_decided_for_another():
    job_pods: PodsByJob = {"n0": running(run(3, 0)), "n1": replace(PENDING, since=1.0)}
    moves = cast(
        "a",
        {"n1": (0,)},
        generation=2,
        job_pods=job_pods,
        phase=Phase.ADJUSTING,
        booked_at=NOW - 901,
    )
    other = cast("b", {"n0": (0,)}, phase=Phase.INITIALIZED)
    assert judged(moves, other).placement is None


# --- what SideCars complain of --------------------------------------------------------------


def test_what_a_sidecar_complains_of_is_told_once_with_its_remedy():
    full = Problem("DiskFull", "/logs has no room", "make room where the output is written")
    said = verdict(alone(replace(running(run(3, 0)), problems=(full,))))
    (news,) = (each for each in said.news if each.reason == "DiskFull")
    assert (news.warning, news.message) == (True, f"{full.message}; {full.remedy}")
    told = said.status.condition(ConditionType.TROUBLED)
    assert told is not None
    assert (told.status, told.reason) == (True, "DiskFull")

    again = replace(full, message="/logs has no room, which takes other words now")
    same = alone(replace(running(run(3, 0)), problems=(again,)), conditions=said.status.conditions)
    assert "DiskFull" not in reasons(verdict(same))

    over = alone(running(run(3, 0)), conditions=said.status.conditions)
    assert "Solved" in reasons(verdict(over))


def test_a_complaint_that_is_over_before_the_others_is_no_news():
    full, slow = Problem("DiskFull", "/logs has no room"), Problem("NoWarmStart", "it starts cold")
    both = verdict(alone(replace(running(run(3, 0)), problems=(full, slow))))
    assert "DiskFull,NoWarmStart" in reasons(both)
    one = alone(replace(running(run(3, 0)), problems=(slow,)), conditions=both.status.conditions)
    said = verdict(one)
    told = said.status.condition(ConditionType.TROUBLED)
    assert (told.status, told.reason, told.message) == (True, "NoWarmStart", slow.message)
    assert "NoWarmStart" not in reasons(said)


def test_what_was_complained_of_stays_told_when_the_pod_is_gone():
    failed = Condition(ConditionType.TROUBLED, True, "CheckpointFailed", "it has no handler")
    said = judged(cast("a", phase=Phase.SUSPENDED, suspend=True, conditions=(failed,)))
    assert said.condition(ConditionType.TROUBLED) == failed


# --- suspension, progress -------------------------------------------------------------------


def test_progress_is_that_of_the_leader():
    leader = running(RUN0, progress=Progress(iteration=40, iterations_per_second=2.0))
    follower = running(RUN1, progress=Progress(iteration=0))
    for said in (judged(pair(leader, follower)), judged(pair(follower, leader))):
        assert (said.iteration, said.iterated_at, said.speed) == (40, NOW, 2.0)
        assert said.iterations_total == 1000
    known = judged(pair(leader, follower, iteration=40, iterated_at=NOW - 3))
    assert known.iterated_at == NOW - 3, "when it was first seen"


def test_progress_is_followed_while_newer_gpus_are_decided():
    trains = running(run(3, 0), progress=Progress(iteration=40, iterations_per_second=2.0))
    awaited = cast("a", generation=4, job_pods={"n0": trains}, phase=Phase.QUEUED)
    assert judged(awaited).iteration == 40


@pytest.mark.parametrize(
    ("direction", "value", "reached"),
    [(Direction.RISES, 0.8, 0), (Direction.RISES, 0.95, 2), (Direction.FALLS, 0.8, 2)],
)
def test_how_often_in_a_row_the_target_was_reached_is_counted(direction, value, reached):
    training = Training(target=Target(metric="m", value=0.9, patience=5, direction=direction))
    state = running(run(3, 0), progress=Progress(iteration=9, metrics={"m": value}))
    said = judged(alone(state, training=training, reached=1, metric=0.5))
    assert (said.metric, said.reached) == (value, reached)
    assert judged(alone(state, training=training, reached=1, metric=value)).reached == 1


def test_a_job_that_stands_still_is_told_once_and_so_is_that_it_moves_again():
    stands = running(run(3, 0), progress=Progress(iteration=9, idle_seconds=700, stalled=True))
    said = verdict(alone(stands))
    condition = said.status.condition(ConditionType.PROGRESSING)
    assert (condition.status, condition.message) == (False, "no iteration for 700 s")
    assert [(news.reason, news.warning) for news in said.news] == [("Stalled", True)]
    told_already = alone(stands, conditions=(condition,))
    assert reasons(verdict(told_already)) == []
    starts_anew = alone(running(run(3, 0), progress=Progress()), conditions=(condition,))
    assert not judged(starts_anew).condition(ConditionType.PROGRESSING).status
    step = Progress(iteration=10, begun=True)
    moves = alone(running(run(3, 0), progress=step), conditions=(condition,))
    assert [(news.reason, news.warning) for news in verdict(moves).news] == [("Moving", False)]


def hanging(since, *, idle=60.0, limit=200.0, **rest):
    """A job with the report, at that time, that it stands still, and no further report since."""
    told = Condition(ConditionType.PROGRESSING, False, "Stalled", "no iteration", since=since)
    state = running(
        run(3, 0), progress=Progress(iteration=9, begun=True, idle_seconds=idle, stalled=True)
    )
    watched = Watched(http=True, stall_seconds=60.0, restart_seconds=limit)
    return alone(state, progress=watched, conditions=(told,), **rest)


def test_a_job_that_hangs_for_too_long_is_started_anew_and_that_is_a_failure():
    said = verdict(hanging(NOW - 140))
    status = said.status
    assert (status.failures, status.generation, status.phase) == (1, 2, Phase.INITIALIZED)
    assert status.broken == 3
    assert status.message == "no iteration came for 200 s; attempt 2 of 4 follows a pause of 10 s"
    assert [(news.reason, news.warning) for news in said.news] == [("StalledForTooLong", True)]


@pytest.mark.parametrize(
    ("since", "rest", "failures"),
    [
        pytest.param(139, {}, 0, id="not yet for too long"),
        pytest.param(1, {"idle": 201.0}, 1, id="counts from its last step"),
        pytest.param(500, {"decided_at": NOW - 100}, 0, id="but not from before its start"),
        pytest.param(500, {"broken": 3, "generation": 2}, 0, id="is counted once"),
        pytest.param(500, {"limit": None}, 0, id="nobody asked for it"),
    ],
)
def test_a_hang(since, rest, failures):
    assert judged(hanging(NOW - since, **rest)).failures == failures


def test_gpu_seconds_are_counted_now_and_then():
    state = running(run(3, 0))
    assert judged(alone(state, decided_at=NOW - 29, service=5.0)).service == 5.0
    said = judged(alone(state, decided_at=NOW - 31, service=5.0))
    assert (said.service, said.counted_at) == (36.0, NOW)
    said = judged(alone(state, decided_at=NOW - 500, counted_at=NOW - 40, service=5.0))
    assert said.service == 45.0


def test_where_very_many_hold_gpus_they_are_counted_more_seldom():
    """Each count is a write, and an API server has better to do."""
    crowd = [
        cast(f"b{n}", {"n0": (n,)}, job_pods={"n0": running(run(3, n))}, decided_at=NOW)
        for n in range(1, 200)
    ]

    def is_counted_after(seconds: float) -> bool:
        one = cast("a", {"n0": (0,)}, job_pods={"n0": running(run(3, 0))}, decided_at=NOW - seconds)
        said = judge(make_scene(one, *crowd)).get(A)
        return said is not None and said.status.counted_at == NOW

    assert not is_counted_after(99.0)
    assert is_counted_after(101.0)


NOT_OURS = replace(PENDING, fresh=False)
UNHEARD = replace(NOT_OURS, pod={"reason": "NotTaken", "message": "the quota is used up"})


@pytest.mark.parametrize(
    ("job_pods", "rest"),
    [
        ({"n0": PENDING}, {}),
        ({"n0": UNHEARD}, {}),
        ({"n0": ready()}, {"used": frozenset({1})}),
        ({}, {}),
    ],
)
def test_who_is_set_aside_before_anything_began_gives_its_gpus_back(job_pods: PodsByJob, rest):
    """Nothing can begin until that is over; others need not wait for it."""
    held = cast(
        "a",
        {"n0": (0,)},
        job_pods=job_pods,
        phase=Phase.INITIALIZED,
        problem="it is no pod",
        **rest,
    )
    said = verdict(held)
    assert (said.status.placement, said.status.phase) == (None, Phase.QUEUED)
    condition = said.status.condition(ConditionType.SCHEDULED)
    assert (condition.status, condition.reason) == (False, "SetAside")
    assert condition.message.endswith("because it is set aside: it is no pod")
    assert [news.reason for news in said.news] == ["GPUsGivenBack"]


@pytest.mark.parametrize(
    ("job_pods", "rest"),
    [
        ({"n0": running(run(3, 0))}, {}),
        ({"n0": Sat(ready(), declared=run(3, 0))}, {}),
        ({"n0": NOT_OURS}, {"used": frozenset({1})}),
        ({"n0": ready(epoch=1)}, {"used": frozenset({1})}),
        ({"n0": ended(run(3, 0))}, {}),
        ({"n0": running(run(3, 0)), "n1": PENDING}, {}),
    ],
)
def test_who_is_set_aside_keeps_what_something_of_it_may_run_on(job_pods: PodsByJob, rest):
    held = cast("a", {"n0": (0,)}, job_pods=job_pods, problem="it is no pod", **rest)
    assert judged(held).placement is not None


def test_news_of_an_attempt_that_was_overtaken_is_no_crash():
    """It ended badly because it was ordered to stop."""
    state = running(run(3, 0), stop(4), RankEnded(1, 0, None, 15), Gone(1))
    said = judged(cast("a", generation=2, job_pods={"n0": state}, phase=Phase.QUEUED))
    assert said.failures == 0
