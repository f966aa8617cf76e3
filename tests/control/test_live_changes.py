"""A job whose trial went well keeps its processes when its GPUs change."""

from dataclasses import replace
from typing import Any

import pytest

from dljob.control.deciding.snapshots import take_snapshot
from dljob.control.judging.judging import judge
from dljob.control.judging.live_changes import in_ms
from dljob.control.situation.ports import PodKey
from dljob.control.situation.status import ConditionType, StartNumber, Trust
from dljob.core.model import Checkpoint, JobId, Mechanism, NodeName, Phase
from dljob.core.profiles import Costs
from dljob_sidecar.behaviour.events import Gone, RankEnded
from dljob_wire.checkpoints import Confirmation
from dljob_wire.messages import (
    Live,
    LiveChange,
    LiveState,
    LiveTrial,
    Progress,
    Run,
    State,
    Stop,
)
from dljob_wire.messages import (
    Phase as SideCarPhase,
)
from tests.control.deeds import Place, do, make_actor
from tests.control.scenes import NOW, PENDING, cast, make_scene, ready, run, running

SAVES = Checkpoint(signal="SIGUSR1", path="/c", confirm=Confirmation.FILE)
NONE = Checkpoint()
STEPPED = Progress(iteration=340, begun=True)
A0, A1 = PodKey(JobId("a"), NodeName("n0")), PodKey(JobId("a"), NodeName("n1"))


def able(told: Run, *, trial: LiveTrial | None = None, **rest: Any) -> State:
    """A SideCar whose training has registered all its processes."""
    live = LiveState(capable=told.processes, trial=trial or LiveTrial())
    return replace(running(told), live=live, progress=STEPPED, **rest)


def training(state: State | None = None, **rest: Any) -> Any:
    """A job on GPUs 0 and 1 of a node, in its second generation."""
    given: dict[str, Any] = {
        "generation": 2,
        "phase": Phase.RUNNING,
        "running": StartNumber(5),
        "iteration": 340,
        "pace": 10.0,
        "checkpoint": SAVES,
        "processes": "perGpu",
        "trust": Trust.CONFIRMED,
        "triable": True,
    }
    state = state if state is not None else able(run(5, 0, 1))
    return cast("a", rest.pop("holds", {"n0": (0, 1)}), n0=state, **given | rest)


def changing(holds: dict[str, tuple[int, ...]], **rest: Any) -> Any:
    """The same after the decision to have these GPUs instead."""
    given: dict[str, Any] = {"generation": 3, "phase": Phase.ADJUSTING, "live": Trust.CONFIRMED}
    return training(holds=holds, **given | rest)


def sent(*casts: Any, **rest: Any) -> dict[PodKey, Any]:
    """What a controller declares to SideCars."""
    place = Place()
    calls = do(make_actor(place), place, make_scene(*casts, **rest))
    return {call[0]: call[1] for call in calls if isinstance(call[0], PodKey)}


def judged(*casts: Any) -> tuple[Any, list[str]]:
    verdict = judge(make_scene(*casts))[casts[0].entry.job.id]
    return verdict.status, [news.reason for news in verdict.news]


# --- trials ---------------------------------------------------------------------------------


def test_live_change_is_tried_once_the_checkpoint_works():
    assert sent(training())[A0] == replace(run(5, 0, 1), live_trial=1)
    assert sent(training(live_tried=3))[A0].live_trial == 4
    told = sent(training(trust=Trust.UNTRIED))[A0]
    assert (told.trial, told.live_trial) == (1, 0)


@pytest.mark.parametrize(
    "known",
    [
        pytest.param({"live": Trust.CONFIRMED}, id="it works"),
        pytest.param(
            {"live": Trust.FAILED, "live_failures": 1, "live_failed_in": StartNumber(5)},
            id="it failed in this start",
        ),
        pytest.param({"live": Trust.FAILED, "live_failures": 3}, id="it failed too often"),
        pytest.param({"phase": Phase.ADJUSTING}, id="a change was decided"),
        pytest.param({"state": running(run(5, 0, 1))}, id="its training has not registered"),
        pytest.param(
            {"state": replace(able(run(5, 0, 1)), live=LiveState(capable=1))},
            id="one process has not registered",
        ),
        pytest.param({"checkpoint": NONE, "saved": 0, "iteration": 700}, id="it would lose much"),
    ],
)
def test_useless_live_trials_are_not_made(known: dict[str, Any]):
    assert all(not told.live_trial for told in sent(training(**known)).values())


def test_training_without_a_checkpoint_is_tried_early():
    assert sent(training(checkpoint=NONE))[A0].live_trial == 1


def test_recreated_pods_make_no_live_changes():
    assert sent(training(), mechanism=Mechanism.RECREATE) == {}


def test_outcome_of_a_trial_is_recorded():
    status, news = judged(training(able(run(5, 0, 1), trial=LiveTrial(1, True, 0.012))))
    assert (status.live, status.live_tried, news) == (Trust.CONFIRMED, 1, ["Live"])
    told = status.condition(ConditionType.LIVE)
    assert told.status
    assert "12 ms" in told.message
    failed = LiveTrial(1, False, message="rank 1 did not agree in time")
    status, news = judged(training(able(run(5, 0, 1), trial=failed)))
    assert (status.live, status.live_failed_in, news) == (Trust.FAILED, 5, ["NotLive"])
    assert "rank 1 did not agree in time" in status.condition(ConditionType.LIVE).message


def test_training_that_ends_by_its_live_trial_starts_again():
    trial = LiveTrial(1, False, ended=True, message="rank 0 ended")
    ends = (RankEnded(1, 0, 1), RankEnded(1, 1, 1), Gone(1))
    state = running(run(5, 0, 1), *ends)
    live = LiveState(capable=2, trial=trial)
    status, news = judged(training(replace(state, live=live, progress=STEPPED)))
    assert (status.failures, status.restarts) == (0, 1)
    assert news[0] == "NotLive"
    assert "EndedByLiveTrial" in news


# --- changes --------------------------------------------------------------------------------


def test_processes_on_kept_gpus_stay():
    told = sent(changing({"n0": (1,)}))[A0]
    assert (told.generation, told.gpus, told.live) == (7, ("1",), Live(5, (1,)))
    told = sent(changing({"n0": (0, 1, 2)}))[A0]
    assert (told.gpus, told.live) == (("0", "1", "2"), Live(5, (0, 1, -1)))


def test_gpus_of_others_are_waited_for():
    other = cast("b", {"n0": (3,)}, n0=running(run(3, 2)), generation=2, phase=Phase.ADJUSTING)
    assert A0 not in sent(changing({"n0": (0, 1, 2)}), other)


def test_newcomers_on_another_node_are_ready_before_the_change():
    there = {"n0": (0, 1), "n1": (0,)}
    assert sent(changing(there, n1=PENDING)) == {}
    told = sent(changing(there, n1=ready()))
    assert [told[key].live for key in (A0, A1)] == [Live(5, (0, 1, -1))] * 2
    assert told[A1].peers == told[A0].peers


def test_container_that_loses_all_its_processes_leaves_with_the_change():
    states = {f"n{at}": able(run(5, 0, peers=2, at=at)) for at in range(2)}
    told = sent(changing({"n1": (0,)}, n1=states["n1"], state=states["n0"]))
    run_there, stop_here = told[A1], told[A0]
    assert run_there.live == Live(5, (1,))
    assert isinstance(stop_here, Stop)
    assert (stop_here.leave, stop_here.checkpoint) == (True, False)
    first = run_there.peers[0]
    assert stop_here.live == Live(5, (1,), first.host, run_there.rendezvous_port)


@pytest.mark.parametrize(
    "known",
    [
        pytest.param({"live": Trust.UNTRIED}, id="it was not tried"),
        pytest.param({"live": Trust.FAILED}, id="its trial failed"),
        pytest.param({"state": running(run(5, 0, 1))}, id="its training has not registered"),
        pytest.param({"holds": {"n0": (2, 3)}}, id="it keeps none of its GPUs"),
    ],
)
def test_other_changes_restart_the_processes(known: dict[str, Any]):
    told = sent(changing(**{"holds": {"n0": (1,)}} | known))[A0]
    assert told.generation == 7
    assert told.live is None


def test_work_without_a_checkpoint_waits_until_its_processes_agree_again():
    unsaved = {"checkpoint": NONE, "trust": Trust.UNTRIED}
    assert sent(changing({"n0": (1,)}, state=running(run(5, 0, 1)), **unsaved)) == {}
    assert sent(changing({"n0": (1,)}, **unsaved))[A0].live == Live(5, (1,))


def test_newer_decision_waits_for_the_end_of_a_live_change():
    under_way = replace(
        able(run(5, 0, 1)),
        phase=SideCarPhase.CHANGING,
        generation=7,
        target=replace(run(7, 0), live=Live(5, (0,))),
    )
    later = changing({"n0": (0, 1, 2)}, generation=4, state=under_way)
    assert sent(later) == {}


def test_pause_of_a_live_change_counts():
    done = able(replace(run(7, 1), live=Live(5, (1,))))
    assert done.live is not None
    change = LiveChange(7, pause_ms=40.0)
    state = replace(done, live=replace(done.live, change=change))
    status, news = judged(changing({"n0": (1,)}, state=state))
    assert (status.phase, status.running, news) == (Phase.RUNNING, 7, ["Running"])
    assert (status.live_changes, status.live_seconds) == (1, 0.04)
    assert (status.reshape_seconds, status.paused_at) == (0.04, None)


def test_short_pauses_are_shown_by_tenths_of_a_millisecond():
    assert [in_ms(each) for each in (0.00043, 0.0099, 0.0432)] == ["0.4 ms", "9.9 ms", "43 ms"]


def test_condition_of_unsaved_work_mentions_live_changes():
    unsaved = {"checkpoint": NONE, "trust": Trust.UNTRIED}
    trial = LiveTrial(1, True, 0.012)
    status, _ = judged(training(able(run(5, 0, 1), trial=trial), **unsaved))
    assert "its GPUs change live" in status.condition(ConditionType.SAVED).message


def test_change_that_fell_back_is_the_last_for_now():
    done = able(run(7, 1))
    assert done.live is not None
    change = LiveChange(7, message="rank 1 did not reach the boundary in 30 s")
    state = replace(done, live=replace(done.live, change=change))
    status, news = judged(changing({"n0": (1,)}, state=state))
    assert (status.live, status.live_changes) == (Trust.FAILED, 0)
    assert news == ["NotLive", "Running"]


def test_policies_see_that_a_job_changes_live():
    scene = make_scene(training(live=Trust.CONFIRMED), now=NOW)
    [state] = take_snapshot(scene, profiles={}, costs=Costs()).running
    assert state.is_live
