"""The controller knows which jobs lose work by a change of GPUs, and how much was lost."""

from dataclasses import replace
from typing import Any

import pytest

from dljob.control.deciding.snapshots import take_snapshot
from dljob.control.judging.checkpoints import notice_for, tell_of_saving
from dljob.control.judging.judging import judge
from dljob.control.situation.ports import PodPhase
from dljob.control.situation.status import ConditionType, Status, Trust
from dljob.core.model import Checkpoint, Mechanism, Phase, Training
from dljob.core.profiles import Costs
from dljob_sidecar.behaviour.events import Gone, RankEnded, Started
from dljob_wire.checkpoints import Confirmation
from dljob_wire.messages import Change, Problem, Progress, Saving
from tests.builders import make_job
from tests.control.scenes import NOW, Sat, after, cast, make_scene, released, run, running, stop

NONE = Checkpoint()
ASKED = Checkpoint(signal="SIGUSR1", path="/c", confirm=Confirmation.FILE)
BY_ITSELF = Checkpoint(path="/c")
TRUSTED = Checkpoint(trusted=True)


def trains(*, progress=None, change=None, **rest):
    """A job on one GPU that has done 340 iterations, in its second generation."""
    state = replace(running(run(5, 0)), change=change)
    if progress is not None:
        state = replace(state, progress=progress)
    rest.setdefault("phase", Phase.RUNNING)
    rest.setdefault("iteration", 340)
    return cast("a", {"n0": (0,)}, generation=2, n0=state, **rest)


def judged(*casts) -> Status:
    scene = make_scene(*casts)
    job = casts[0].entry.job.id
    verdicts = judge(scene)
    return verdicts[job].status if job in verdicts else scene.entries[job].status


def warnings(job):
    """The warnings about a job, by reason."""
    [verdict] = judge(make_scene(job)).values()
    return {news.reason: news.message for news in verdict.news if news.warning}


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
def test_change_loses_work_without_a_working_checkpoint(checkpoint, trust, loses):
    state = seen(trains(checkpoint=checkpoint, trust=trust))
    assert (state.unsaved_from is not None) is loses
    assert state.keeps_first is loses


@pytest.mark.parametrize(
    ("iteration", "ago_s", "loses"),
    [(999, 5.0, False), (1000, 5.0, True), (1000, 700.0, False), (1200, 5.0, False)],
)
def test_change_loses_work_after_the_last_step(iteration, ago_s, loses):
    known: dict[str, Any] = {
        "checkpoint": TRUSTED,
        "iteration": iteration,
        "iterated_at": NOW - ago_s,
    }
    state = seen(trains(training=Training(iterations=1000), **known))
    assert (state.unsaved_from is not None) is loses


@pytest.mark.parametrize(
    ("checkpoint", "trust", "keeps"),
    [
        pytest.param(NONE, Trust.UNTRIED, True, id="none is declared"),
        pytest.param(ASKED, Trust.UNTRIED, False, id="it is to be tried"),
        pytest.param(ASKED, Trust.FAILED, True, id="it was not confirmed"),
        pytest.param(TRUSTED, Trust.FAILED, False, id="its user says so"),
    ],
)
def test_waiting_job_knows_whether_it_will_keep_its_gpus(checkpoint, trust, keeps):
    waits = cast("a", checkpoint=checkpoint, trust=trust)
    [state] = take_snapshot(make_scene(waits), profiles={}, costs=Costs()).pending
    assert state.keeps_first is keeps


def test_confirmed_work_is_not_lost():
    job = trains(checkpoint=ASKED, trust=Trust.FAILED, saved=300)
    assert seen(job).unsaved_at(NOW) == 40.0


ON_EMPTY_DIR = Checkpoint(signal="SIGUSR1", path="/c", ends_with_pod="the emptyDir volume c")


def test_checkpoint_in_a_pod_is_no_reason_to_stop():
    job = trains(checkpoint=ON_EMPTY_DIR, trust=Trust.CONFIRMED, saved=300, bound_to=("n0",))
    state = seen(job)
    assert (state.lost_if_stopped, state.unsaved_from, state.bound_to) == (True, None, ("n0",))
    said = judged(job).condition(ConditionType.SAVED)
    assert said is not None
    assert (said.status, said.reason) == (False, "NotDurable")
    assert said.message.startswith(
        "checkpoint.path is on the emptyDir volume c, which ends with the pod"
    )
    assert said.message in notice_for(make_job("a", checkpoint=ON_EMPTY_DIR, options=(1,)))


def test_change_that_ends_a_pod_loses_its_checkpoint():
    known: dict[str, Any] = {"checkpoint": ON_EMPTY_DIR, "trust": Trust.CONFIRMED, "saved": 300}
    scene = make_scene(trains(**known), mechanism=Mechanism.RECREATE)
    [state] = take_snapshot(scene, profiles={}, costs=Costs()).running
    assert state.unsaved_from == 0.0
    holds = {"n0": (0,), "n1": (0,)}
    pods = {node: running(run(5, 0)) for node in holds}
    wide = cast("a", holds, generation=2, job_pods=pods, phase=Phase.RUNNING, **known)
    assert seen(wide).unsaved_from == 0.0


def test_job_without_its_pod_checkpoint_is_bound_to_no_node():
    known: dict[str, Any] = {"checkpoint": ON_EMPTY_DIR, "bound_to": ("n0",)}
    [state] = take_snapshot(make_scene(cast("a", **known)), profiles={}, costs=Costs()).pending
    assert state.bound_to == ()


def test_work_is_lost_with_the_checkpoint_in_a_pod():
    pods = {"n0": Sat(phase=PodPhase.ENDED)}
    known: dict[str, Any] = {
        "iteration": 340,
        "saved": 300,
        "pace": 10.0,
        "checkpoint": ON_EMPTY_DIR,
    }
    job = cast("a", None, generation=2, job_pods=pods, phase=Phase.SUSPENDED, **known)
    lost = judged(job)
    assert (lost.iteration, lost.saved, lost.lost_iterations) == (0, 0, 340)
    assert warnings(job)["WorkLost"] == (
        "340 iterations of its work are lost, about 34 s of training:"
        " its checkpoint was on the emptyDir volume c and ended with its pod"
    )


def test_checkpoint_in_a_pod_outlives_a_restart_there():
    first = Progress(iteration=301, begun=True)
    job = trains(progress=first, heard=3, saved=300, checkpoint=ON_EMPTY_DIR)
    assert (judged(job).iteration, judged(job).lost_iterations) == (301, 39)


@pytest.mark.parametrize("phase", [Phase.INITIALIZED, Phase.ADJUSTING])
def test_nothing_is_lost_where_nothing_trains(phase):
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
def test_outcome_of_the_last_checkpoint_is_remembered(saving, trust):
    after = judged(trains(checkpoint=ASKED, change=Change(5, saving)))
    assert after.trust is trust
    assert (after.saved, after.saved_at) == ((340, NOW) if trust is Trust.CONFIRMED else (0, 0.0))


def test_job_without_a_checkpoint_says_so():
    said = judged(trains(checkpoint=NONE)).condition(ConditionType.SAVED)
    assert said is not None
    assert (said.status, said.reason) == (False, "NoCheckpoint")
    keeps = "it keeps the GPUs it starts with, unless a job of a higher priority needs them"
    assert said.message == f"no checkpoint: {keeps}"
    assert notice_for(make_job("a", checkpoint=NONE)) == (
        f"a: no checkpoint: {keeps}; spec.checkpoint says how it is saved"
    )
    assert notice_for(make_job("a", checkpoint=NONE, options=(2,))) == ""
    assert notice_for(make_job("a", checkpoint=ASKED)) == ""


def test_repeated_work_is_counted_once_as_lost():
    first = Progress(iteration=1, begun=True)
    repeats = trains(progress=first, pace=10.0, heard=3)
    lost = judged(repeats)
    assert (lost.lost_iterations, lost.lost_seconds, lost.heard) == (339, 33.9, 5)
    assert warnings(repeats)["WorkLost"] == (
        "339 iterations of its work are lost, about 34 s of training:"
        " the training began again behind the work of its former start"
    )
    known = trains(progress=replace(first, iteration=2), iteration=1, heard=5, lost_iterations=339)
    assert judged(known).lost_iterations == 339


IN_LAPS: dict[str, Any] = {"lap": 150, "iteration": 360, "pace": 2.0, "heard": 3}
"""A job at the 60th iteration of its third lap of 150."""
CONFIRMED: dict[str, Any] = {"trust": Trust.CONFIRMED, "saved_at": NOW}


@pytest.mark.parametrize(
    ("checkpoint", "known", "first", "iteration", "lost"),
    [
        pytest.param(ASKED, {"saved": 360, **CONFIRMED}, 61, 361, 0, id="it goes on"),
        pytest.param(ASKED, {"saved": 362, **CONFIRMED}, 59, 359, 1, id="a late report"),
        pytest.param(ASKED, {"saved": 300, **CONFIRMED}, 1, 301, 59, id="after its second lap"),
        pytest.param(ASKED, {"saved": 340, **CONFIRMED}, 1, 301, 59, id="it saves each lap"),
        pytest.param(ASKED, {"saved": 100, **CONFIRMED}, 101, 101, 259, id="it has crashed"),
        pytest.param(ASKED, {"saved": 360, **CONFIRMED}, 361, 361, 0, id="the same SideCar"),
        pytest.param(ASKED, {}, 61, 61, 0, id="nothing is known to be saved"),
        pytest.param(BY_ITSELF, {}, 61, 361, 0, id="it saves itself"),
        pytest.param(TRUSTED, {}, 40, 340, 20, id="its user vouches for it"),
        pytest.param(NONE, {}, 1, 1, 359, id="it saves nothing"),
    ],
)
def test_next_sidecar_continues_a_lap_counter(checkpoint, known, first, iteration, lost):
    on = Progress(iteration=first, begun=True, lap=150 if first > 150 else 0)
    said = judged(trains(checkpoint=checkpoint, progress=on, **{**IN_LAPS, **known}))
    assert (said.iteration, said.lapped, said.lap) == (iteration, iteration - first, 150)
    assert said.lost_iterations == lost
    assert said.trust is not Trust.FAILED
    later = replace(on, iteration=first + 4)
    again = trains(checkpoint=checkpoint, progress=later, heard=5, lap=150, lapped=said.lapped)
    assert judged(again).iteration == iteration + 4


@pytest.mark.parametrize("saved", [0, 340])
def test_fall_of_a_lap_counter_is_no_failed_checkpoint(saved):
    known = {"saved": saved, "trust": Trust.CONFIRMED if saved else Trust.UNTRIED}
    begins = Progress(iteration=30, begun=True)
    said = judged(trains(checkpoint=ASKED, progress=begins, **{**IN_LAPS, **known}))
    assert (said.trust, said.failed_at) == (known["trust"], 0.0)


def test_count_beyond_a_lap_disproves_the_lap():
    on = Progress(iteration=361, begun=True)
    said = judged(trains(checkpoint=ASKED, progress=on, **IN_LAPS, lapped=150))
    assert (said.iteration, said.lap, said.lapped) == (361, 0, 0)


FIRST = Progress(iteration=1, begun=True)


def stopped(saving, *, generation=4):
    """The report of a SideCar between two starts."""
    state = released(run(3, 0), stop(generation))
    return replace(state, change=Change(generation, saving), problems=())


def changes(saving, *, phase=Phase.ADJUSTING, **rest):
    """A job over two containers while its GPUs change; its leader reports the checkpoint."""
    job_pods = {"n0": stopped(saving), "n1": stopped(Saving.NONE)}
    rest.setdefault("iteration", 340)
    holds = {"n0": (0,), "n1": (0,)}
    return cast("a", holds, generation=2, job_pods=job_pods, phase=phase, checkpoint=ASKED, **rest)


def lost_its_gpus(phase, state=None, **rest):
    """A job without GPUs whose checkpoint failed before."""
    given = {"checkpoint": ASKED, "iteration": 340, **rest}
    state = state or stopped(Saving.FAILED)
    return cast("a", None, generation=2, n0=state, phase=phase, **given)


def test_outcome_counts_after_the_loss_of_all_gpus():
    for job in (lost_its_gpus(Phase.SUSPENDED, suspend=True), lost_its_gpus(Phase.QUEUED)):
        assert judged(job).trust is Trust.FAILED


def test_failed_save_at_a_stop_is_explained():
    why = "view-1.npy changed 0.0 s ago"
    state = stopped(Saving.TIMED_OUT)
    state = replace(state, problems=(Problem("CheckpointIncomplete", why),))
    known = {"trust": Trust.CONFIRMED, "saved": 300, "saved_at": NOW - 60.0, "triable": True}
    job = lost_its_gpus(Phase.SUSPENDED, state, suspend=True, **known)
    assert why in warnings(job)["NotConfirmed"]
    status = judged(job)
    told = status.condition(ConditionType.SAVED)
    assert told is not None
    assert (told.status, told.reason) == (False, "NotConfirmed")
    assert why in told.message
    # The SideCar that knew the reason has left.
    assert tell_of_saving(job.entry.job, status, now=NOW) == status
    saved = judged(changes(Saving.CONFIRMED, phase=Phase.SUSPENDED, suspend=True, trials=1))
    told = saved.condition(ConditionType.SAVED)
    assert told is not None
    assert told.reason == "Confirmed"


def test_lost_work_disproves_an_untried_checkpoint():
    after = judged(trains(checkpoint=BY_ITSELF, progress=FIRST, pace=10.0, heard=3))
    assert (after.trust, after.saved, after.failed_at) == (Trust.FAILED, 0, NOW)
    said = after.condition(ConditionType.SAVED)
    assert said is not None
    assert (said.status, said.reason) == (False, "NotConfirmed")


@pytest.mark.parametrize("iteration", [300, 341])
def test_start_near_the_former_end_shows_a_checkpoint(iteration):
    on = Progress(iteration=iteration, begun=True)
    after = judged(trains(checkpoint=BY_ITSELF, progress=on, heard=3))
    assert (after.trust, after.saved) == (Trust.UNTRIED, iteration)
    # One that failed before works again.
    failed = {"trust": Trust.FAILED, "failed_at": NOW - 90.0, "decided_at": NOW - 60.0}
    again = judged(trains(checkpoint=BY_ITSELF, progress=on, heard=3, **failed))
    assert (again.trust, again.saved) == (Trust.UNTRIED, iteration)


@pytest.mark.parametrize("known", [{"broken": 3}, {"saves": False}])
def test_start_without_a_chance_to_save_shows_nothing(known):
    after = judged(trains(checkpoint=BY_ITSELF, progress=FIRST, heard=3, **known))
    assert (after.trust, after.lost_iterations) == (Trust.UNTRIED, 339)


def test_start_behind_the_saved_work_disproves_the_checkpoint():
    known = {"trust": Trust.CONFIRMED, "saved": 300, "saved_at": NOW, "broken": 3, "heard": 3}
    after = judged(trains(checkpoint=ASKED, progress=FIRST, **known))
    assert (after.trust, after.saved) == (Trust.FAILED, 1)


def test_untried_job_pays_for_work_at_risk():
    untried = seen(trains(checkpoint=BY_ITSELF, saved=100))
    assert (untried.unsaved_from, untried.unsaved_at(NOW)) == (None, 240.0)
    confirmed = seen(trains(checkpoint=ASKED, trust=Trust.CONFIRMED, saved=100))
    assert confirmed.unsaved_at(NOW) == 0.0
    assert seen(trains(checkpoint=TRUSTED)).unsaved_at(NOW) == 0.0


def test_second_failure_ends_the_trust():
    known = {"trust": Trust.CONFIRMED, "saved": 300, "saved_at": NOW - 60.0}
    once = judged(changes(Saving.TIMED_OUT, **known))
    assert (once.trust, once.trials) == (Trust.CONFIRMED, 1)
    twice = judged(changes(Saving.TIMED_OUT, trials=1, **known))
    assert (twice.trust, twice.trials, twice.failed_at) == (Trust.FAILED, 2, NOW)


def test_no_checkpoint_fails_without_new_work():
    assert judged(changes(Saving.TIMED_OUT, saved=340)).trust is Trust.UNTRIED


@pytest.mark.parametrize(("code", "trust"), [(0, Trust.UNTRIED), (1, Trust.FAILED)])
def test_end_before_the_answer_is_no_failed_checkpoint(code, trust):
    state = after(run(3, 0), Started(1), stop(4), RankEnded(1, 0, code), Gone(1))
    state = replace(state, change=Change(4, Saving.FAILED))
    known: dict[str, Any] = {"phase": Phase.ADJUSTING, "checkpoint": ASKED, "iteration": 340}
    assert judged(cast("a", {"n0": (0,)}, generation=2, n0=state, **known)).trust is trust


@pytest.mark.parametrize(("trials", "pause"), [(2, 600.0), (3, 1200.0), (4, 2400.0), (90, 86400.0)])
def test_failed_checkpoint_is_retried_after_growing_pauses(trials, pause):
    known = {"trust": Trust.FAILED, "saved": 300, "saved_at": 1.0, "trials": trials}
    early = seen(trains(checkpoint=ASKED, failed_at=NOW - pause + 1.0, **known))
    assert early.unsaved_from == 300.0
    late = seen(trains(checkpoint=ASKED, failed_at=NOW - pause, **known))
    assert (late.unsaved_from, late.unsaved_at(NOW)) == (None, 40.0)


def test_checkpoint_that_never_worked_is_not_retried():
    known = {"trust": Trust.FAILED, "trials": 1, "failed_at": 1.0}
    assert seen(trains(checkpoint=ASKED, **known)).unsaved_from == 0.0


def test_suspending_and_resuming_allows_another_trial():
    failed = {"trust": Trust.FAILED, "trials": 3, "failed_at": 2.0, "saved": 300, "saved_at": 1.0}
    resumed = judged(lost_its_gpus(Phase.SUSPENDED, ends=True, **failed))
    assert (resumed.phase, resumed.trust, resumed.ends) == (Phase.QUEUED, Trust.UNTRIED, False)
    assert (resumed.trials, resumed.saved, resumed.judged) == (0, 0, 4)
    # Earlier losses no longer count.
    again = trains(checkpoint=ASKED, progress=FIRST, heard=3, judged=resumed.judged)
    assert judged(again).trust is Trust.UNTRIED


def test_reports_after_the_last_iteration_prolong_no_hold():
    later, status = NOW, Status()
    known: dict[str, Any] = {"iteration": 999, "training": Training(iterations=1000)}
    known |= {"iterated_at": NOW - 1.0, "checkpoint": TRUSTED, "trust": Trust.FAILED}
    for step in range(1000, 1022):
        job = trains(progress=Progress(iteration=step, begun=True), **known)
        status = judge(make_scene(job, now=later))[job.entry.job.id].status
        known |= {
            name: getattr(status, name) for name in ("iteration", "iterated_at", "heard", "running")
        }
        later += 30.0
    # The last iteration was first reported eleven minutes ago, and last half a minute ago.
    assert (status.iteration, status.iterated_at) == (1021, NOW)
    [state] = take_snapshot(
        make_scene(trains(**known), now=later), profiles={}, costs=Costs()
    ).running
    assert state.unsaved_from is None
