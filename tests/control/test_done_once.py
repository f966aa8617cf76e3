"""A job whose training ended well is done in spite of pending commands, and starts no more."""

from dataclasses import replace
from typing import Any

from dljob.control.judging.judging import judge
from dljob.control.situation.ports import PodPhase
from dljob.control.situation.status import StartNumber, Status, Trust
from dljob.core.model import JobId, NodeName, Phase, Training
from dljob.core.model import Progress as Source
from dljob_sidecar.behaviour.events import (
    CheckpointDone,
    CheckpointFailed,
    CheckpointTimedOut,
    Event,
    Gone,
    RankEnded,
    Started,
)
from dljob_wire.codec import decode_left, encode_left
from dljob_wire.messages import Phase as SideCarPhase
from dljob_wire.messages import Problem, Progress, Saving, State, Target, Trial
from tests.control.scenes import Sat, after, cast, make_scene, run, stop

TOTAL = Training(iterations=1000)
ALL = Progress(iteration=1000, begun=True)
LAST_REPORT = Progress(iteration=960, begun=True, interval=40)
SOME = Progress(iteration=340, begun=True, interval=40)
LOG = Source(log=r"step (?P<iteration>\d+)")
BEGUN = (run(5, 0), Started(1))
ENDED = (RankEnded(1, 0, 0), Gone(1))


def judged(sat: Sat | State, holds: dict[str, list[int]] | None, **rest: Any) -> Status:
    given: dict[str, Any] = {
        "training": TOTAL,
        "progress": LOG,
        "generation": 5,
        "running": 5,
        "containers": 1,
    }
    [verdict] = judge(make_scene(cast("a", holds, n0=sat, **(given | rest)))).values()
    return verdict.status


def test_end_before_a_stop_took_effect_completes_the_job():
    stopped = after(*BEGUN, stop(6), *ENDED, progress=LAST_REPORT)
    assert stopped.phase is SideCarPhase.EXITED
    for phase, suspend in (
        (Phase.SUSPENDED, True),
        (Phase.SUSPENDED, False),
        (Phase.QUEUED, False),
    ):
        after_it = judged(stopped, None, phase=phase, suspend=suspend)
        assert after_it.phase is Phase.COMPLETED, (phase, suspend)


def test_ended_pod_still_reports_its_exit():
    """As with ``recreate``, a preemption or a drain."""
    left = after(*BEGUN, stop(6, leave=True), *ENDED, progress=ALL)
    assert (left.phase, left.leaving) == (SideCarPhase.EXITED, True)
    unproven = after(*BEGUN, stop(6), RankEnded(1, 0, 0), progress=ALL)
    assert unproven.phase is SideCarPhase.STOPPING
    for state in (left, unproven):
        ended = Sat(state, phase=PodPhase.ENDED)
        assert judged(ended, None, phase=Phase.QUEUED).phase is Phase.COMPLETED


def test_left_message_reports_the_end_to_a_new_controller():
    exited = after(*BEGUN, stop(6, leave=True), *ENDED, progress=LAST_REPORT)
    terminated = after(*BEGUN, stop(6, leave=True), CheckpointTimedOut(1), *ENDED, progress=ALL)
    for state in (exited, terminated):
        left = {"left": decode_left(encode_left(state))}
        for sat in (
            Sat(phase=PodPhase.ENDED, pod=left),
            # The SideCar was killed, and the next start of its container knows nothing.
            # The SideCar was killed, and its next incarnation knows nothing.
            Sat(phase=PodPhase.PENDING, pod=left),
        ):
            for suspend in (True, False):
                status = judged(sat, None, phase=Phase.SUSPENDED, suspend=suspend)
                assert (status.phase, status.exit_code) == (Phase.COMPLETED, 0), sat
                assert status.iteration == state.progress.iteration


def test_left_message_of_a_former_start_is_ignored():
    former = replace(after(*BEGUN, stop(6), *ENDED, progress=ALL), incarnation="w")
    running = after(run(7, 0), Started(1), progress=SOME)
    sat = Sat(running, pod={"left": decode_left(encode_left(former))})
    status = judged(sat, {"n0": [0]}, generation=3)
    assert (status.phase, status.iteration) == (Phase.RUNNING, 340)
    # A new controller has no report of the present start yet.
    unheard = Sat(pod={"left": sat.pod["left"]})
    known: dict[str, Any] = {"generation": 3, "running": 7, "heard": 7, "iteration": 340}
    scene = make_scene(cast("a", {"n0": [0]}, n0=unheard, training=TOTAL, **known))
    [verdict] = judge(scene).values()
    assert (verdict.status.iteration, verdict.status.heard) == (340, 7)
    assert not verdict.status.is_final


def test_left_message_of_an_untrusted_sidecar_is_ignored():
    state = after(*BEGUN, stop(6), *ENDED, progress=ALL)
    job_pod = Sat(phase=PodPhase.ENDED, pod={"left": state}).job_pod(JobId("a"), NodeName("n0"))
    assert job_pod.state is state
    assert replace(job_pod, untrusted="it lies").state is None
    up = Sat(pod={"left": state}).job_pod(JobId("a"), NodeName("n0"))
    assert up.at_its_end(StartNumber(5)).state is state
    assert replace(up, untrusted="it lies").at_its_end(StartNumber(5)).state is None


def test_end_after_a_stop_is_judged_by_the_iteration_count():
    """The training was terminated, or it exits once it has saved."""
    ends: dict[str, tuple[Event | Target, ...]] = {
        "terminated": (stop(6), CheckpointTimedOut(1), *ENDED),
        "saved by its end": (stop(6), RankEnded(1, 0, 0), CheckpointDone(1), Gone(1)),
    }
    for name, events in ends.items():
        stopped = after(*BEGUN, *events, progress=ALL)
        assert stopped.phase is SideCarPhase.STOPPED, name
        assert judged(stopped, None, phase=Phase.SUSPENDED).phase is Phase.COMPLETED, name
        # A checkpoint may follow the last report.
        before = replace(stopped, progress=LAST_REPORT)
        assert judged(before, None, phase=Phase.SUSPENDED).phase is Phase.QUEUED, name


def test_end_in_a_trial_is_judged_by_report_and_interval():
    state = after(*BEGUN, *ENDED, progress=LAST_REPORT)
    unconfirmed = Trial(1, saving=Saving.FAILED, ended=True)
    done = judged(replace(state, trial=unconfirmed), {"n0": [0]})
    assert done.phase is Phase.COMPLETED
    early = judged(replace(state, trial=unconfirmed, progress=SOME), {"n0": [0]})
    assert (early.phase, early.restarts) == (Phase.INITIALIZED, 1)
    # It has saved and ended, so its end may be later than the last report.
    confirmed = Trial(1, saving=Saving.CONFIRMED, ended=True)
    assert judged(replace(state, trial=confirmed), {"n0": [0]}).phase is Phase.INITIALIZED


FAILED = CheckpointFailed(1, Problem("CheckpointFailed", "no line confirmed it", "mend it"))


def test_unconfirmed_end_when_asked_does_not_complete_the_job():
    """A training may save and exit, although its job says that a log line confirms a checkpoint."""
    waiting = after(*BEGUN, replace(run(7, 0), ended=0), RankEnded(1, 0, 0), FAILED, Gone(1))
    assert (waiting.phase, waiting.held_generation) == (SideCarPhase.EXITED, 5)
    for training, reported in ((TOTAL, SOME), (TOTAL, Progress()), (Training(), SOME)):
        known = {"training": training, "generation": 3, "phase": Phase.ADJUSTING}
        status = judged(replace(waiting, progress=reported), {"n0": [0]}, **known)
        assert (status.phase, status.restarts) == (Phase.INITIALIZED, 1), (training, reported)
        # A trial has shown that it goes on after saving, so this end is its own.
        known |= {"tried": 1, "trust": Trust.CONFIRMED}
        own = judged(replace(waiting, progress=reported), {"n0": [0]}, **known)
        assert own.phase is Phase.COMPLETED
    done = judged(
        replace(waiting, progress=LAST_REPORT), {"n0": [0]}, generation=3, phase=Phase.ADJUSTING
    )
    assert done.phase is Phase.COMPLETED
    # A lost start whose successor waits in the SideCar is followed by another start.
    lost = replace(after(*BEGUN, replace(run(7, 0), ended=0), *ENDED), progress=SOME)
    again = judged(lost, {"n0": [0]}, generation=3, phase=Phase.ADJUSTING, broken=5)
    assert again.run_generation == 9


def test_only_the_count_of_this_start_and_a_true_total_complete():
    saved = after(*BEGUN, stop(6), RankEnded(1, 0, 0), CheckpointDone(1), Gone(1))
    former = judged(saved, None, phase=Phase.SUSPENDED, iteration=1000, heard=3)
    assert former.phase is Phase.QUEUED
    beyond = replace(saved, progress=Progress(iteration=1400, begun=True))
    assert judged(beyond, None, phase=Phase.SUSPENDED).phase is Phase.QUEUED


def test_judged_end_is_not_judged_again():
    state = replace(
        after(*BEGUN, *ENDED), progress=SOME, trial=Trial(1, saving=Saving.CONFIRMED, ended=True)
    )
    first = judged(state, {"n0": [0]})
    assert first.phase is Phase.INITIALIZED
    scene = make_scene(cast("a", {"n0": [0]}, n0=state, training=TOTAL, progress=LOG))
    [job] = scene.entries
    later = judge(scene.with_statuses({job: first})).values()
    assert [verdict.status.phase for verdict in later] in ([], [Phase.INITIALIZED])
