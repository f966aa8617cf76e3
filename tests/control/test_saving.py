"""Whose work a change of GPUs would lose is known, and so is what was lost."""

from dataclasses import replace

import pytest

from dlcontrol.documents import read_status, write_status
from dlcontrol.judging import judge
from dlcontrol.observing import take_snapshot
from dlcontrol.records import ConditionType, Status, Trust
from dlcontrol.saving import notice_for
from dlcore.model import Checkpoint, Phase
from dlcore.profiles import Costs
from dlwire.messages import Change, Progress, Saving
from tests.builders import make_job
from tests.control.scenes import NOW, cast, make_scene, run, running

NONE = Checkpoint()
ASKED = Checkpoint(signal="SIGUSR1", path="/c", confirm="file")
BY_ITSELF = Checkpoint(path="/c")
TRUSTED = Checkpoint(trusted=True)


def trains(*, progress=None, change=None, **rest):
    """A job on one GPU that has done 340 iterations, in its second generation."""
    state = replace(running(run(5, 0)), change=change)
    if progress is not None:
        state = replace(state, progress=progress)
    rest.setdefault("phase", Phase.RUNNING)
    rest.setdefault("iteration", 340)
    return cast("a", {"n0": (0,)}, generation=2, seats={"n0": state}, **rest)


def judged(*casts) -> Status:
    scene = make_scene(*casts)
    job = casts[0].entry.job.id
    verdicts = judge(scene)
    return verdicts[job].status if job in verdicts else scene.entries[job].status


def seen(*casts):
    [state] = take_snapshot(make_scene(*casts), profiles={}, costs=Costs()).running
    return state


@pytest.mark.parametrize(
    ("checkpoint", "trust", "loses"),
    [
        pytest.param(NONE, Trust.UNTRIED, True, id="none is declared"),
        pytest.param(Checkpoint(shared=True), Trust.UNTRIED, True, id="a word about none"),
        pytest.param(TRUSTED, Trust.UNTRIED, False, id="its user says so"),
        pytest.param(BY_ITSELF, Trust.UNTRIED, False, id="the first change tries it"),
        pytest.param(BY_ITSELF, Trust.FAILED, True, id="it did not work"),
        pytest.param(ASKED, Trust.CONFIRMED, False, id="it works"),
        pytest.param(ASKED, Trust.FAILED, True, id="it was not confirmed"),
    ],
)
def test_a_change_would_lose_the_work_that_no_checkpoint_saves(checkpoint, trust, loses):
    state = seen(trains(checkpoint=checkpoint, trust=trust))
    assert (state.unsaved_from is not None) is loses


def test_what_was_confirmed_before_is_not_lost_again():
    job = trains(checkpoint=ASKED, trust=Trust.FAILED, saved=300)
    assert seen(job).unsaved_at(NOW) == 40.0


@pytest.mark.parametrize("phase", [Phase.INITIALIZED, Phase.ADJUSTING])
def test_where_nothing_trains_nothing_can_be_lost(phase):
    assert seen(trains(checkpoint=NONE, phase=phase)).unsaved_from is None


@pytest.mark.parametrize(
    ("saving", "trust"),
    [
        (Saving.CONFIRMED, Trust.CONFIRMED),
        (Saving.FAILED, Trust.FAILED),
        (Saving.TIMED_OUT, Trust.FAILED),
        (Saving.NONE, Trust.UNTRIED),
    ],
)
def test_how_the_checkpoint_before_a_change_went_is_remembered(saving, trust):
    after = judged(trains(checkpoint=ASKED, change=Change(5, saving)))
    assert after.trust is trust
    assert (after.saved, after.saved_at) == ((340, NOW) if trust is Trust.CONFIRMED else (0, 0.0))


def test_a_job_without_a_checkpoint_is_told_so():
    said = judged(trains(checkpoint=NONE)).condition(ConditionType.SAVED)
    assert said is not None
    assert (said.status, said.reason) == (False, "NoCheckpoint")
    assert said.message == "no checkpoint: it keeps the GPUs it starts with"
    assert notice_for(make_job("a", checkpoint=NONE)) == (
        "a: no checkpoint: it keeps the GPUs it starts with; spec.checkpoint says how it is saved"
    )
    assert notice_for(make_job("a", checkpoint=NONE, options=(2,))) == ""
    assert notice_for(make_job("a", checkpoint=ASKED)) == ""


def test_work_that_a_start_does_again_was_lost_and_is_counted_once():
    first = Progress(iteration=1, begun=True)
    lost = judged(trains(progress=first, pace=10.0, heard=3))
    assert (lost.lost_iterations, lost.lost_seconds, lost.heard) == (339, 33.9, 5)
    known = trains(progress=replace(first, iteration=2), iteration=1, heard=5, lost_iterations=339)
    assert judged(known).lost_iterations == 339


def test_a_start_that_goes_on_where_the_former_ended_has_lost_nothing():
    on = judged(trains(progress=Progress(iteration=341, begun=True), heard=3))
    assert (on.lost_iterations, on.heard) == (0, 5)


def test_what_is_known_of_its_work_outlives_the_controller():
    status = Status(
        trust=Trust.CONFIRMED,
        judged=5,
        trials=1,
        saved=300,
        saved_at=NOW,
        heard=5,
        pace=2.5,
        lost_iterations=7,
        lost_seconds=2.8,
    )
    assert read_status(write_status(status)) == status
    assert write_status(Status(submitted_at=NOW)).get("checkpoint") is None
