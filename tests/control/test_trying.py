"""A running job's checkpoint is tried without a stop before a change relies on it."""

from dataclasses import replace
from typing import Any

import pytest

from dljob.control.deciding.snapshots import take_snapshot
from dljob.control.judging.judging import judge
from dljob.control.situation.ports import PodKey
from dljob.control.situation.status import ConditionType, Trust
from dljob.core.model import Checkpoint, JobId, NodeName, Phase, Training
from dljob.core.profiles import Costs
from dljob_sidecar.behaviour.events import Gone, RankEnded, Started
from dljob_wire.checkpoints import Confirmation
from dljob_wire.messages import Problem, Progress, Saving, Trial
from tests.control.deeds import deeds
from tests.control.scenes import NOW, after, cast, make_scene, run, running, stop

ASKED = Checkpoint(signal="SIGUSR1", path="/c", confirm=Confirmation.FILE)
BY_ALL = replace(ASKED, to="all")
BY_ITS_END = Checkpoint(signal="SIGUSR1", confirm=Confirmation.EXIT)
STEPPED = Progress(iteration=340, begun=True)
A0, A1 = PodKey(JobId("a"), NodeName("n0")), PodKey(JobId("a"), NodeName("n1"))
CONFIRMED = Trial(1, Saving.CONFIRMED, iteration=330, seconds=2.0)
FAILED = Trial(1, Saving.FAILED, message="no training process runs")


def trains(trial=None, *, progress=STEPPED, problems=(), state=None, **rest):
    """A job on one GPU that has done 340 iterations, in its second generation."""
    state = state if state is not None else running(run(5, 0))
    state = replace(state, trial=trial, progress=progress, problems=problems)
    given: dict[str, Any] = {
        "phase": Phase.RUNNING,
        "iteration": 340,
        "checkpoint": ASKED,
        "triable": True,
    }
    return cast("a", {"n0": (0,)}, generation=2, n0=state, **given | rest)


def wide(first=None, second=None, **rest):
    """The same over two containers, of which the first has the leader."""
    job_pods = {
        f"n{at}": replace(running(run(5, 0, peers=2, at=at)), trial=trial, progress=STEPPED)
        for at, trial in enumerate((first, second))
    }
    given: dict[str, Any] = {
        "phase": Phase.RUNNING,
        "iteration": 340,
        "checkpoint": ASKED,
        "containers": 2,
    }
    return cast("a", {"n0": (0,), "n1": (0,)}, generation=2, job_pods=job_pods, **given | rest)


def tried(*casts):
    found = deeds(make_scene(*casts))
    return {key: word for key, word in found.items() if word.startswith("try")}


def judged(*casts):
    verdict = judge(make_scene(*casts))[casts[0].entry.job.id]
    return verdict.status, [news.reason for news in verdict.news]


def is_kept(*casts):
    [state] = take_snapshot(make_scene(*casts), profiles={}, costs=Costs()).running
    return state.unsaved_from is not None


def test_checkpoint_is_tried_after_the_first_step():
    assert tried(trains(Trial(), progress=Progress())) == {}
    assert tried(trains(Trial())) == {A0: "try 1"}
    assert tried(trains(Trial(), tried=4)) == {A0: "try 5"}


def test_same_trial_is_not_ordered_again():
    state = running(replace(run(5, 0), trial=1))
    assert tried(trains(Trial(1), state=state)) == {}


@pytest.mark.parametrize(
    "known",
    [
        pytest.param({"trust": Trust.CONFIRMED}, id="it works"),
        pytest.param({"trust": Trust.FAILED}, id="a start ignored it"),
        pytest.param({"trials": 1, "failed_at": NOW - 59.0}, id="it failed just now"),
        pytest.param({"ends": True}, id="it ends the training"),
        pytest.param({"triable": False}, id="its SideCar knows no trials"),
        pytest.param({"checkpoint": replace(ASKED, trusted=True)}, id="its user vouches for it"),
        pytest.param({"checkpoint": Checkpoint(path="/c")}, id="it is never asked"),
        pytest.param({"phase": Phase.ADJUSTING}, id="it is being changed"),
        pytest.param({"state": running(run(3, 0))}, id="a change was decided"),
        pytest.param({"state": running(run(3, 0), stop(4))}, id="it was told to stop"),
    ],
)
def test_useless_trials_are_not_made(known):
    assert tried(trains(Trial(), **known)) == {}


@pytest.mark.parametrize(("trials", "pause"), [(1, 60.0), (3, 240.0), (99, 86400.0)])
def test_failed_trial_is_repeated_after_growing_pauses(trials, pause):
    known = {"trust": Trust.FAILED, "trials": trials, "tried": 1}
    assert tried(trains(Trial(1, Saving.FAILED), failed_at=NOW - pause, **known)) == {A0: "try 2"}
    assert tried(trains(Trial(1, Saving.FAILED), failed_at=NOW - pause + 1, **known)) == {}


def test_containers_that_save_are_asked():
    assert tried(wide(Trial(), Trial(), triable=True)) == {A0: "try 1"}
    both = tried(wide(Trial(), Trial(), triable=True, checkpoint=BY_ALL))
    assert both == {A0: "try 1", A1: "try 1"}


def test_confirmed_checkpoint_counts():
    assert is_kept(trains(Trial()))
    status, news = judged(trains(CONFIRMED))
    assert (status.trust, status.tried, status.saved, status.saved_at) == (
        Trust.CONFIRMED,
        1,
        330,
        NOW,
    )
    assert "CheckpointConfirmed" in news
    assert not is_kept(trains(CONFIRMED, trust=status.trust))
    said = status.condition(ConditionType.SAVED)
    assert (said.status, said.reason) == (True, "Confirmed")


def test_trial_counts_laps_that_its_sidecar_misses():
    on = Progress(iteration=40, begun=True)
    trial = replace(CONFIRMED, iteration=30)
    counted = {"lap": 150, "lapped": 300, "heard": 5}
    assert judged(trains(trial, progress=on, **counted))[0].saved == 330


@pytest.mark.parametrize("saving", [Saving.FAILED, Saving.TIMED_OUT])
def test_unconfirmed_checkpoint_does_not_count(saving):
    status, news = judged(trains(replace(FAILED, saving=saving)))
    assert (status.trust, status.tried, status.trials) == (Trust.FAILED, 1, 1)
    assert "CheckpointNotConfirmed" in news
    assert is_kept(trains(trust=status.trust, trials=1))
    [again] = judge(make_scene(trains(FAILED))).values()
    [told] = [each for each in again.news if each.reason == "CheckpointNotConfirmed"]
    assert told.message == (
        "its checkpoint was tried while it trained, and not confirmed: no training process runs; it"
        " is tried again in 60 s"
    )


def test_trial_after_the_last_iteration_shows_nothing():
    status, news = judged(trains(FAILED, training=Training(iterations=340)))
    assert (status.trust, status.tried) == (Trust.UNTRIED, 0)
    assert "CheckpointNotConfirmed" not in news


def test_outcome_is_judged_once():
    status, _ = judged(trains(FAILED))
    known = {name: getattr(status, name) for name in ("trust", "tried", "trials", "failed_at")}
    scene = make_scene(trains(FAILED, **known))
    for verdict in judge(scene).values():
        assert verdict.status.trials == 1


def test_coming_trial_is_announced_before_the_first_step():
    status, news = judged(trains(Trial()))
    said = status.condition(ConditionType.SAVED)
    assert (said.status, said.reason) == (False, "NotTriedYet")
    assert "NotTriedYet" not in news


def test_all_containers_must_confirm():
    def trust(first, second):
        scene = make_scene(wide(first, second, checkpoint=BY_ALL))
        return judge(scene)[JobId("a")].status.trust

    assert trust(CONFIRMED, Trial(1)) is Trust.UNTRIED
    assert trust(CONFIRMED, FAILED) is Trust.FAILED
    assert trust(CONFIRMED, CONFIRMED) is Trust.CONFIRMED


def test_sidecar_without_trials_leaves_it_to_the_first_change():
    status, _ = judged(trains(None))
    assert (status.triable, status.trust) == (False, Trust.UNTRIED)
    assert not is_kept(trains(None, triable=False))
    said = status.condition(ConditionType.SAVED)
    assert (said.status, said.reason) == (True, "Untried")


def test_checkpoint_that_ends_the_training_says_so():
    status, _ = judged(trains(None, checkpoint=BY_ITS_END, triable=False))
    assert status.condition(ConditionType.SAVED).message.startswith(
        "it saves only by ending, so its checkpoint cannot be tried without a stop: the first"
    )


@pytest.mark.parametrize("code", [0, 1])
def test_training_ended_by_its_trial_restarts_without_a_failure(code):
    state = after(run(5, 0), Started(1), RankEnded(1, 0, code), Gone(1))
    status, news = judged(trains(replace(FAILED, ended=True), state=state, failures=0))
    assert (status.phase, status.failures, status.ends) == (Phase.INITIALIZED, 0, True)
    assert status.placement is not None
    assert "EndedByTrial" in news
    assert status.broken == 5


def test_training_that_was_done_stays_done():
    state = after(run(5, 0), Started(1), RankEnded(1, 0, 0), Gone(1))
    done = Progress(iteration=1000, begun=True)
    job = trains(
        replace(CONFIRMED, ended=True),
        state=state,
        progress=done,
        training=Training(iterations=1000),
    )
    status, _ = judged(job)
    assert status.phase is Phase.COMPLETED


def test_training_frozen_by_its_trial_restarts():
    hangs = (Problem("TrainingHangs", "nothing has moved for 90 s"),)
    status, news = judged(trains(CONFIRMED, problems=hangs))
    assert (status.trust, status.ends, status.broken) == (Trust.CONFIRMED, True, 5)
    assert "FrozenByTrial" in news
    # A trial that failed may not have signalled any process.
    for trial in (replace(CONFIRMED, went_on=True), FAILED):
        other = trains(trial, problems=hangs, tried=1)
        for verdict in judge(make_scene(other)).values():
            assert not verdict.status.ends


def test_unreachable_sidecar_is_asked_later():
    scene = make_scene(trains(Trial()))
    job_pod = scene.job_pods[JobId("a")][NodeName("n0")]
    lost = replace(job_pod, contact=replace(job_pod.contact, reachable=False, since=NOW))
    silent = replace(scene, job_pods={JobId("a"): {NodeName("n0"): lost}})
    assert deeds(silent) == {}
