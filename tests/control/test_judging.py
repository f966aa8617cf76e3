"""The conclusions from a scene: each verdict in the smallest scene that leads to it."""

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
    Ceiling,
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
    """The status of the first job after the verdict, if there is one."""
    scene = make_scene(*casts, **rest)
    job = casts[0].entry.job.id
    verdicts = judge(scene, rules)
    return verdicts[job].status if job in verdicts else scene.entries[job].status


def alone(state, **rest):
    rest.setdefault("phase", Phase.RUNNING)
    return cast("a", {"n0": (0,)}, n0=state, **rest)


def pair(one, other, **rest):
    rest.setdefault("phase", Phase.RUNNING)
    return cast("a", {"n0": (0,), "n1": (0,)}, n0=one, n1=other, **rest)


RUN0, RUN1 = run(3, 0, peers=2), run(3, 0, peers=2, at=1)


def reasons(each):
    return [news.reason for news in each.news]


# --- success --------------------------------------------------------------------------------


def test_job_runs_when_all_its_containers_run():
    starting = pair(running(RUN0), after(RUN1), phase=Phase.INITIALIZED)
    assert judged(starting).phase is Phase.INITIALIZED
    said = verdict(pair(running(RUN0), running(RUN1), phase=Phase.INITIALIZED))
    assert said.status.phase is Phase.RUNNING
    assert (said.status.running, said.status.containers) == (3, 2)
    assert reasons(said) == ["Running"]
    assert said.status.condition(ConditionType.INITIALIZED).status


def test_released_gpus_are_no_longer_leftover():
    leftover = frozenset(make_placement(n0=(1, 2)).refs())
    runs = alone(running(run(3, 0)), leftover=leftover, phase=Phase.ADJUSTING)
    assert judged(runs).leftover == frozenset()
    pods: dict[str, Any] = {"n0": running(run(5, 0)), "n1": running(run(3, 0), stop(4))}
    changing: dict[str, Any] = {"generation": 2, "leftover": leftover, "phase": Phase.ADJUSTING}
    other_pod = cast("a", {"n0": (0,)}, **pods, **changing)
    assert judged(other_pod).leftover == {(N1, 0)}


@pytest.mark.parametrize("shared", [True, False])
def test_unshared_checkpoint_binds_a_job_to_its_nodes(shared):
    starts = alone(
        running(run(3, 0)), phase=Phase.INITIALIZED, checkpoint=Checkpoint(shared=shared)
    )
    assert judged(starts).bound_to == (() if shared else (N0,))


def test_change_pauses_a_job_until_its_next_step():
    changing = {"generation": 2, "phase": Phase.ADJUSTING}
    assert judged(alone(running(run(3, 0)), **changing)).paused_at is None
    assert judged(alone(running(run(3, 0), run(5, 0)), **changing)).paused_at == NOW
    runs = alone(running(run(5, 0)), **changing, paused_at=NOW - 27.0)
    assert judged(runs).paused_at == NOW - 27.0
    assert judged(alone(running(run(5, 0)), **changing)).paused_at == NOW


def resumed_after(paused_at, resumption):
    """Return the reshape seconds of a job whose change is over."""
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
def test_cost_of_a_change_is_counted_with_its_first_step(lost, seconds):
    first_step = Resumption(generation=2, lost_seconds=lost, at=NOW - 2.0)
    assert resumed_after(NOW - 27.0, first_step) == seconds


def test_untimed_changes_are_not_counted():
    assert resumed_after(NOW - 27.0, None) == 100.0
    of_another_decision = Resumption(generation=1, lost_seconds=3.0, at=NOW - 2.0)
    assert resumed_after(NOW - 27.0, of_another_decision) == 100.0


def test_setbacks_are_forgotten_after_a_long_run():
    runs = alone(running(run(3, 0)), setbacks=2, decided_at=NOW - 100)
    assert judged(runs).setbacks == 2
    assert judged(alone(running(run(3, 0)), setbacks=2, decided_at=NOW - 121)).setbacks == 0


# --- ends -----------------------------------------------------------------------------------


def test_job_finishes_when_all_processes_ended_well():
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
def test_too_few_iterations_mean_an_early_end(last, interval, reason):
    progress = Progress(iteration=last, begun=True, interval=interval)
    said = judged(alone(replace(ended(run(3, 0)), progress=progress), **THOUSAND))
    assert (said.phase, said.iteration) == (Phase.COMPLETED, last)
    assert said.condition(ConditionType.FINISHED).reason == reason
    if reason == "EndedEarly":
        assert said.message == (
            f"its training ended with exit status 0 after {last} of 1,000 iterations"
        )


def test_counter_that_restarts_each_epoch_is_no_early_end():
    last = Progress(iteration=150, begun=True, interval=1)
    strict = {**THOUSAND, "training": Training(iterations=1000, may_end_early=False)}
    said = judged(alone(replace(ended(run(3, 0)), progress=last), **strict, heard=3, lap=150))
    assert (said.phase, said.failures) == (Phase.COMPLETED, 0)
    assert said.condition(ConditionType.FINISHED).reason == "Finished"
    assert said.message == (
        "its training finished; how far it came is not certain: its counter begins again after 150"
        " iterations"
    )


def test_early_end_counts_as_one_failure_per_start():
    strict = {**THOUSAND, "training": Training(iterations=1000, may_end_early=False)}
    early = replace(ended(run(3, 0)), progress=Progress(iteration=5, begun=True, interval=1))
    said = verdict(alone(early, **strict))
    assert (said.status.phase, said.status.failures) == (Phase.INITIALIZED, 1)
    assert reasons(said) == ["EndedEarly"]
    known = alone(early, **strict, broken=3, generation=2, phase=Phase.ADJUSTING)
    assert judged(known).failures == 0


def test_finished_job_without_reports_says_so():
    said = judged(alone(replace(ended(run(3, 0)), problems=(UNMATCHED,)), **THOUSAND))
    assert said.condition(ConditionType.FINISHED).reason == "Finished"
    assert said.message == (
        "its training finished; how far it came is not known, because progress.log has matched"
        " no line; the last line is 'ok'"
    )


@pytest.mark.parametrize("other", [running(RUN1), after(RUN1)])
def test_job_is_unfinished_while_a_part_goes_on(other):
    assert not judged(pair(ended(RUN0), other)).is_final


@pytest.mark.parametrize("phase", [Phase.ADJUSTING, Phase.QUEUED, Phase.SUSPENDED])
def test_training_that_ends_during_a_change_has_finished(phase):
    """Its pods for the change are up already and have run nothing."""
    holds = {"n0": (0,), "n1": (0,)} if phase is Phase.ADJUSTING else None
    job_pods: PodsByJob = {"n0": ended(run(3, 0)), "n1": Sat(ready(), fresh=True)}
    done = cast("a", holds, generation=4, job_pods=job_pods, phase=phase, running=3, containers=1)
    assert judged(done).phase is Phase.COMPLETED


def test_end_needs_the_word_of_all_containers():
    """One of two is gone, and the later command does not tell their number."""
    one = Sat(ended(RUN0), declared=stop(4))
    assert not judged(cast("a", generation=2, n0=one, phase=Phase.QUEUED)).is_final


def test_job_that_reached_its_target_saves_and_completes():
    training = Training(target=Target(metric="top5", value=0.9, patience=2))
    said = judged(alone(running(run(3, 0)), training=training, reached=2, metric=0.93))
    assert (said.phase, said.saves) == (Phase.COMPLETED, True)
    assert said.message == "top5 is 0.93, and 0.9 was asked for"
    assert not judged(alone(running(run(3, 0)), training=training, reached=1, metric=0.93)).is_final


def test_job_fails_after_its_deadline():
    limits = Limits(active_deadline_seconds=100)
    assert not judged(alone(running(run(3, 0)), limits=limits, started_at=NOW - 99)).is_final
    said = judged(alone(running(run(3, 0)), limits=limits, started_at=NOW - 101))
    assert said.phase is Phase.FAILED
    assert said.condition(ConditionType.FINISHED).reason == "DeadlineExceeded"


def test_cancelled_job_loses_its_gpus_without_a_verdict():
    said = judged(alone(ended(run(3, 0), 1), cancelled=True))
    assert (said.placement, said.saves, said.failures) == (None, False, 0)


# --- crashes --------------------------------------------------------------------------------


def test_crashed_job_retries_where_it_is():
    said = verdict(alone(ended(run(3, 0), 7)))
    status = said.status
    assert (status.phase, status.generation) == (Phase.INITIALIZED, 2)
    assert status.placement == make_placement(n0=(0,))
    assert (status.failures, status.exit_code, status.broken) == (1, 7, 3)
    assert status.retry_at == NOW + 10
    assert status.message == "rank 0 exited with status 7; attempt 2 of 4 follows a pause of 10 s"
    assert reasons(said) == ["Crashed"]


def test_earliest_failure_of_several_containers_counts():
    lost = replace(ended(run(3, 0), 1), failure=Failure(0, 20.0, 1, exception="ConnectionError"))
    cause = replace(ended(run(3, 0), 1), failure=Failure(1, 10.0, 3, exception="ValueError: bad"))
    said = judged(cast("a", {"n0": [0], "n1": [0]}, n0=lost, n1=cause))
    assert (
        said.message
        == "rank 1 exited with status 3: ValueError: bad; attempt 2 of 4 follows a pause of 10 s"
    )
    assert said.exit_code == 3


def test_out_of_memory_names_the_remedy():
    problem = Problem("OutOfMemory", "the kernel killed a process", "raise the limit")
    said = judged(alone(replace(ended(run(3, 0), None, 9), problems=(problem,))))
    assert (
        said.message
        == "the kernel killed a process; raise the limit; attempt 2 of 4 follows a pause of 10 s"
    )
    assert (said.failures, said.exit_code) == (1, 137)


def test_retries_double_their_pause_and_then_release_gpus():
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


def test_job_fails_after_its_last_attempt():
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
def test_only_the_end_sets_complete_or_failed(code, failures, outcome):
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
def test_command_that_cannot_run_is_not_retried(name, code):
    problem = Problem(name, "trian.py: not found in PATH (/bin)", "give its full path")
    state = after(run(3, 0), StartFailed(1, problem), Gone(1))
    said = verdict(alone(state, limits=Limits(backoff_limit=3)))
    assert (said.status.phase, said.status.exit_code) == (Phase.FAILED, code)
    assert said.status.message == "trian.py: not found in PATH (/bin); give its full path"
    assert (said.news[-1].reason, said.news[-1].warning) == (name, True)
    # Other failures to start are retried.
    busy = Problem("TooManyProcesses", "train.py: Resource temporarily unavailable")
    state = after(run(3, 0), StartFailed(1, busy), Gone(1))
    assert "; attempt 2 of 4 follows" in judged(alone(state)).message


def test_crash_of_an_earlier_start_counts_once():
    """It trained on because its new GPUs are not free yet, or it was about to stop."""
    crashed = ended(run(3, 0), 1)
    said = judged(alone(crashed, generation=4, phase=Phase.ADJUSTING))
    assert (said.failures, said.generation, said.broken) == (1, 5, 3)
    again = alone(crashed, generation=2, broken=3, phase=Phase.INITIALIZED)
    assert judged(again).failures == 0
    said = judged(cast("a", generation=2, n0=crashed, phase=Phase.QUEUED))
    assert (said.phase, said.failures, said.retry_at) == (Phase.QUEUED, 1, NOW + 10)
    assert said.generation == 2


# --- lost parts -----------------------------------------------------------------------------


def told(*runs):
    """The commands that the controller under test has given."""
    return {"a": Begun(runs[0].generation, {NodeName(f"n{n}"): r for n, r in enumerate(runs)})}


def test_restarted_container_restarts_the_job_at_once():
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
def test_loss_of_one_container_restarts_both(job_pod):
    said = judged(pair(running(RUN0), job_pod, running=3, containers=2, booked_at=NOW))
    assert (said.generation, said.broken, said.phase) == (2, 3, Phase.INITIALIZED)


def test_unheard_containers_are_not_lost():
    """A new controller reads one state after the other."""
    unheard = Sat(None, since=NOW - 1, reachable=False)
    assert judged(pair(running(RUN0), unheard, running=3, containers=2)).generation == 1
    unstamped = running(run(3, 0, peers=2, at=1, epoch=EPOCH - 1))
    assert judged(pair(running(RUN0), unstamped, running=3, containers=2)).generation == 1


def test_ordered_container_without_an_answer_is_not_lost():
    late = Sat(ready(), declared=RUN1)
    scene = pair(running(RUN0), late, phase=Phase.INITIALIZED)
    assert judged(scene, begun=told(RUN0, RUN1)).generation == 1


def test_container_restarted_before_its_order_never_joins():
    """The order was for its former incarnation."""
    other = Sat(after(stop(0, incarnation="y"), incarnation="y"), declared=None)
    scene = pair(running(RUN0), other, phase=Phase.INITIALIZED)
    assert judged(scene, begun=told(RUN0, RUN1)).generation == 2


def test_commands_of_lost_records_still_count():
    said = judged(alone(running(run(21, 0)), generation=3))
    assert said.generation == 11
    assert said.stop_generation > 21


def test_start_ended_by_a_stamp_gets_a_new_number():
    """The stamp of a new controller overtook the report of the former one's start."""
    theirs = run(3, 0, epoch=EPOCH - 1)
    undone = running(theirs, stop(0), RankEnded(1, 0, 0), Gone(1))
    said = judged(alone(undone, phase=Phase.INITIALIZED))
    assert (said.generation, said.run_generation) == (2, 5)


def test_lost_pod_releases_the_gpus_after_a_while():
    lost = Sat(running(run(3, 0)), phase=PodPhase.LOST, since=NOW - 59, reachable=False)
    assert judged(alone(lost)).placement is not None
    said = judged(alone(replace(lost, since=NOW - 61)))
    assert (said.placement, said.phase) == (None, Phase.QUEUED)
    assert said.condition(ConditionType.SCHEDULED).reason == "PodLost"
    assert said.broken == 0  # No other container waits for it, and it may still save.
    others = pair(running(RUN0), replace(lost, state=running(RUN1), since=NOW - 61))
    assert judged(others).broken == 3


def bereft(state, code=CauseCode.NODE_LOST, **rest):
    """A job whose node was lost, and what it had there."""
    job_pod = state if isinstance(state, Sat) else Sat(state)
    job_pods, leftover = {"n0": job_pod}, frozenset({GpuRef(N0, 1)})
    return cast(
        "a", phase=Phase.QUEUED, cause=Cause(code), leftover=leftover, job_pods=job_pods, **rest
    )


def test_training_that_survived_a_lost_node_is_adopted():
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
def test_disturbed_training_on_a_lost_node_is_not_adopted(lost):
    assert judged(lost).placement is None


def test_training_with_a_newer_pending_run_is_not_adopted():
    later = Begun(5, {N0: run(5, 0, 1)})
    assert judged(bereft(running(run(3, 1))), begun={"a": later}).placement is None
    same = Begun(3, {N0: run(3, 1)})
    assert judged(bereft(running(run(3, 1))), begun={"a": same}).placement is not None


def test_lost_node_or_given_gpus_prevent_adoption():
    back = bereft(running(run(3, 1)))
    assert judged(back, nodes={"n1": 4}).placement is None
    assert judged(back, cast("b", {"n0": (1,)})).placement is None


# --- starts that fail -----------------------------------------------------------------------


def test_pod_that_ends_unused_releases_gpus_with_a_pause():
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


def test_pod_that_was_ended_on_purpose_is_no_failure():
    assert judged(alone(ENDED, phase=Phase.INITIALIZED)).placement is not None


def test_slow_pods_release_gpus():
    pending = replace(PENDING, since=NOW - 2000, pod={"reason": "ImagePullBackOff"})
    waits = alone(pending, phase=Phase.INITIALIZED, booked_at=NOW - 899)
    assert judged(waits).placement is not None
    said = judged(alone(pending, phase=Phase.INITIALIZED, booked_at=NOW - 901))
    assert (said.placement, said.setbacks) == (None, 1)
    assert "its SideCar on n0 does not start: ImagePullBackOff" in said.message


def test_start_on_an_unready_node_goes_elsewhere_soon():
    waits = replace(PENDING, pod={"reason": "NodeNotReady", "message": "node n0 is not ready"})
    assert judged(alone(waits, phase=Phase.INITIALIZED, booked_at=NOW - 19)).placement is not None
    said = verdict(alone(waits, phase=Phase.INITIALIZED, booked_at=NOW - 21)).status
    assert (said.placement, said.failures, said.setbacks) == (None, 0, 0)
    assert "node n0 is not ready" in said.message


def test_restarted_pod_gets_its_time():
    """It ran for long and is silent since a moment ago, or the controller began then."""
    restarting = Sat(None, phase=PodPhase.PENDING, since=NOW - 1, reachable=False)
    assert judged(alone(restarting, booked_at=NOW - 5000)).placement is not None
    unheard = replace(restarting, phase=PodPhase.UP)
    assert judged(alone(unheard, booked_at=NOW - 5000)).placement is not None
    for_ever = replace(restarting, since=NOW - 901)
    assert judged(alone(for_ever, phase=Phase.INITIALIZED, booked_at=NOW - 5000)).placement is None


def adjusting(holds):
    """A job that trains on n0, with a pod on n1 that does not come up."""
    late: dict[str, Any] = {"n1": replace(PENDING, since=1.0), "booked_at": NOW - 901}
    return cast("a", holds, generation=2, n0=running(run(3, 0)), phase=Phase.ADJUSTING, **late)


def test_growing_job_keeps_its_gpus_if_the_new_pod_fails():
    said = judged(adjusting({"n0": (0,), "n1": (0,)}))
    assert (said.placement, said.adopted) == (make_placement(n0=(0,)), 3)
    assert (said.generation, said.run_generation) == (3, 3)
    assert said.retry_at == NOW + 10


def test_moving_job_releases_gpus_if_its_old_ones_are_given():
    other = cast("b", {"n0": (0,)}, phase=Phase.INITIALIZED)
    assert judged(adjusting({"n1": (0,)}), other).placement is None


# --- problems of SideCars -------------------------------------------------------------------


def test_problem_is_reported_once_with_its_remedy():
    full = Problem("DiskFull", "/logs has no room", "make room where the output is written")
    said = verdict(alone(replace(running(run(3, 0)), problems=(full,))))
    (news,) = (each for each in said.news if each.reason == "DiskFull")
    assert (news.warning, news.message) == (True, f"{full.message}; {full.remedy}")
    told = said.status.condition(ConditionType.TROUBLED)
    assert (told.status, told.reason) == (True, "DiskFull")

    again = replace(full, message="/logs has no room, in other words")
    same = alone(replace(running(run(3, 0)), problems=(again,)), conditions=said.status.conditions)
    assert "DiskFull" not in reasons(verdict(same))

    over = alone(running(run(3, 0)), conditions=said.status.conditions)
    assert "Solved" in reasons(verdict(over))


def test_end_of_one_of_two_problems_is_no_news():
    full, slow = Problem("DiskFull", "/logs has no room"), Problem("NoWarmStart", "it starts cold")
    both = verdict(alone(replace(running(run(3, 0)), problems=(full, slow))))
    assert "DiskFull,NoWarmStart" in reasons(both)
    one = alone(replace(running(run(3, 0)), problems=(slow,)), conditions=both.status.conditions)
    said = verdict(one)
    told = said.status.condition(ConditionType.TROUBLED)
    assert (told.status, told.reason, told.message) == (True, "NoWarmStart", slow.message)
    assert "NoWarmStart" not in reasons(said)


def test_problem_outlives_the_pod():
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


def test_progress_is_followed_while_new_gpus_are_decided():
    trains = running(run(3, 0), progress=Progress(iteration=40, iterations_per_second=2.0))
    awaited = cast("a", generation=4, n0=trains, phase=Phase.QUEUED)
    assert judged(awaited).iteration == 40


@pytest.mark.parametrize(
    ("direction", "value", "reached"),
    [(Direction.RISES, 0.8, 0), (Direction.RISES, 0.95, 2), (Direction.FALLS, 0.8, 2)],
)
def test_target_hits_in_a_row_are_counted(direction, value, reached):
    training = Training(target=Target(metric="m", value=0.9, patience=5, direction=direction))
    state = running(run(3, 0), progress=Progress(iteration=9, metrics={"m": value}))
    said = judged(alone(state, training=training, reached=1, metric=0.5))
    assert (said.metric, said.reached) == (value, reached)
    assert judged(alone(state, training=training, reached=1, metric=value)).reached == 1


def test_stall_and_its_end_are_reported_once():
    stands = running(run(3, 0), progress=Progress(iteration=9, idle_seconds=700, stalled=True))
    said = verdict(alone(stands))
    condition = said.status.condition(ConditionType.PROGRESSING)
    assert (condition.status, condition.message) == (False, "no iteration for 700 s")
    assert [(news.reason, news.warning) for news in said.news] == [("Stalled", True)]
    assert reasons(verdict(alone(stands, conditions=(condition,)))) == []
    starts_anew = alone(running(run(3, 0), progress=Progress()), conditions=(condition,))
    assert not judged(starts_anew).condition(ConditionType.PROGRESSING).status
    step = Progress(iteration=10, begun=True)
    moves = alone(running(run(3, 0), progress=step), conditions=(condition,))
    assert [(news.reason, news.warning) for news in verdict(moves).news] == [("Moving", False)]


def hanging(since, *, idle=60.0, limit=200.0, **rest):
    """A job that reported a stall at that time, and nothing since."""
    told = Condition(ConditionType.PROGRESSING, False, "Stalled", "no iteration", since=since)
    state = running(
        run(3, 0), progress=Progress(iteration=9, begun=True, idle_seconds=idle, stalled=True)
    )
    watched = Watched(http=True, stall_seconds=60.0, restart_seconds=limit)
    return alone(state, progress=watched, conditions=(told,), **rest)


def test_long_hang_restarts_the_job_as_a_failure():
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
        pytest.param(500, {"limit": None}, 0, id="without a limit"),
    ],
)
def test_hang_limit(since, rest, failures):
    assert judged(hanging(NOW - since, **rest)).failures == failures


def test_gpu_seconds_are_counted_now_and_then():
    state = running(run(3, 0))
    assert judged(alone(state, decided_at=NOW - 29, service=5.0)).service == 5.0
    said = judged(alone(state, decided_at=NOW - 31, service=5.0))
    assert (said.service, said.counted_at) == (36.0, NOW)
    said = judged(alone(state, decided_at=NOW - 500, counted_at=NOW - 40, service=5.0))
    assert said.service == 45.0


def test_many_jobs_are_counted_more_rarely():
    """Each count is a write to the API server."""
    crowd = [
        cast(f"b{n}", {"n0": (n,)}, n0=running(run(3, n)), decided_at=NOW) for n in range(1, 200)
    ]

    def is_counted_after(seconds: float) -> bool:
        one = cast("a", {"n0": (0,)}, n0=running(run(3, 0)), decided_at=NOW - seconds)
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
def test_job_set_aside_before_its_start_releases_gpus(job_pods: PodsByJob, rest):
    """Nothing can begin until it is readmitted."""
    known = {"phase": Phase.INITIALIZED, "problem": "it is no pod", **rest}
    said = verdict(cast("a", {"n0": (0,)}, job_pods=job_pods, **known))
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
def test_job_set_aside_keeps_gpus_that_it_may_use(job_pods: PodsByJob, rest):
    held = cast("a", {"n0": (0,)}, job_pods=job_pods, problem="it is no pod", **rest)
    assert judged(held).placement is not None


def test_failure_of_an_overtaken_attempt_is_no_crash():
    """It failed because of the stop."""
    state = running(run(3, 0), stop(4), RankEnded(1, 0, None, 15), Gone(1))
    assert judged(cast("a", generation=2, n0=state, phase=Phase.QUEUED)).failures == 0


# --- the quota of queues ---------------------------------------------------------------------


def test_waiting_job_has_a_condition_about_its_quota():
    scene = make_scene(
        cast("a", phase=Phase.QUEUED), cast("b", {"n0": (0, 1)}, n0=running(run(2, 0, 1)))
    )
    ceilings = {
        A: Ceiling(0, "Pending", "none of 2 GPUs yet"),
        JobId("b"): Ceiling(2, "Admitted", "2 of 2 GPUs"),
    }
    told = judge(replace(scene, ceilings=ceilings), RULES)
    found = {
        job: verdict.status.condition(ConditionType.QUOTA_RESERVED) for job, verdict in told.items()
    }
    kind = ConditionType.QUOTA_RESERVED
    assert found == {
        A: Condition(kind, status=False, reason="Pending", message="none of 2 GPUs yet"),
        "b": Condition(kind, status=True, reason="Admitted", message="2 of 2 GPUs"),
    }
    again = replace(scene, ceilings=ceilings).with_statuses(
        {job: verdict.status for job, verdict in told.items()}
    )
    assert A not in judge(again, RULES), "it is written once"
    left = judge(replace(again, ceilings={}), RULES)[A].status.condition(kind)
    assert (left.status, left.reason) == (False, "NotQueued")
