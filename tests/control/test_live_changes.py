"""A job whose trial went well keeps its processes when its GPUs change."""

from dataclasses import replace
from typing import Any

import pytest

from dljob.control.deciding.snapshots import take_snapshot
from dljob.control.judging.judging import judge
from dljob.control.judging.live_changes import in_ms
from dljob.control.reporting.reports import Pause, find_pauses
from dljob.control.situation.ports import PodKey, PodPhase
from dljob.control.situation.rules import Verdict
from dljob.control.situation.status import ConditionType, StartNumber, Status, Trust
from dljob.core.model import Checkpoint, GpuRef, JobId, Mechanism, NodeName, Phase
from dljob.core.profiles import Costs
from dljob_sidecar.behaviour.events import Gone, RankEnded
from dljob_wire.checkpoints import Confirmation
from dljob_wire.messages import (
    Live,
    LiveChange,
    LiveState,
    LiveTrial,
    Peer,
    Progress,
    Run,
    State,
    Stop,
)
from dljob_wire.messages import (
    Phase as SideCarPhase,
)
from tests.control.deeds import Place, do, make_actor
from tests.control.scenes import NOW, PENDING, Sat, cast, make_scene, ready, run, running

SAVES = Checkpoint(signal="SIGUSR1", path="/c", confirm=Confirmation.FILE)
NONE = Checkpoint()
STEPPED = Progress(iteration=340, begun=True)
A_GPUS = (GpuRef(NodeName("n0"), 0), GpuRef(NodeName("n0"), 1))
A0, A1 = PodKey(JobId("a"), NodeName("n0")), PodKey(JobId("a"), NodeName("n1"))


def able(told: Run, *, trial: LiveTrial | None = None, **rest: Any) -> State:
    """A SideCar whose training has registered all its processes."""
    live = LiveState(capable=told.processes, trial=trial or LiveTrial())
    return replace(running(told), live=live, progress=STEPPED, **rest)


FIRST = run(5, 0, 1)


def under_way(target: Run, *, since: Run = FIRST, **rest: Any) -> State:
    """A SideCar with a live change to this target that it can still withdraw."""
    held = tuple(dict.fromkeys((*since.gpus, *target.gpus)))
    given: dict[str, Any] = {
        "phase": SideCarPhase.CHANGING,
        "generation": target.generation,
        "target": target,
        "held": held,
        "live": LiveState(capable=since.processes, present=since),
    }
    return replace(able(since), **given | rest)


def withdrawn(target: Run) -> State:
    """A SideCar whose processes go on as before that change."""
    change = LiveChange(target.generation, message="rank 2, which joins, ended by exit code 1")
    live = LiveState(capable=2, change=change, present=run(5, 0, 1))
    return under_way(target, phase=SideCarPhase.RUNNING, held=("0", "1"), live=live)


def refs_of(status: Status) -> tuple[GpuRef, ...]:
    return tuple(status.placement.refs()) if status.placement is not None else ()


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
    # Neither container could restart the job alone.
    assert [told[key].live for key in (A0, A1)] == [Live(5, (0, 1, -1), only=True)] * 2
    assert told[A1].peers == told[A0].peers


def test_newcomers_end_at_once_if_those_that_they_join_are_gone():
    joins = replace(run(7, 0), rank_offset=2, world_size=3, peers=(Peer("n0", 2), Peer("n1", 1)))
    joins = replace(joins, live=Live(5, (0, 1, -1)))
    waits = replace(running(joins), phase=SideCarPhase.CHANGING, live=LiveState(capable=1))
    holds = {"n0": (0, 1), "n1": (0,)}
    rest = {"generation": 4, "phase": Phase.INITIALIZED, "broken": StartNumber(7)}
    told = sent(changing(holds, state=ready(), n1=waits, **rest))[A1]
    assert isinstance(told, Stop)
    assert not told.checkpoint
    assert sent(changing(holds, state=ready(), n1=waits, **rest | {"broken": StartNumber(5)})) == {}


def test_new_controller_completes_a_live_change_that_some_containers_have():
    target = replace(run(7, 0, 1), world_size=3, peers=(Peer("n0", 2), Peer("n1", 1)))
    target = replace(target, live=Live(5, (0, 1, -1)), rendezvous_port=23456)
    joins = sent(changing({"n0": (0, 1), "n1": (0,)}, n1=ready(), state=under_way(target)))[A1]
    assert (joins.generation, joins.live, joins.rendezvous_port) == (7, target.live, 23456)
    states = {f"n{at}": able(run(5, 0, peers=2, at=at)) for at in range(2)}
    target = replace(run(7, 0), live=Live(5, (1,)), rendezvous_port=23456)
    changes = under_way(target, since=run(5, 0, peers=2, at=1))
    leaves = sent(changing({"n1": (0,)}, n1=changes, state=states["n0"]))[A0]
    assert isinstance(leaves, Stop)
    assert (leaves.leave, leaves.live) == (True, Live(5, (1,), "n0", 23456))


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
    assert sent(changing({"n0": (1,)}, **unsaved))[A0].live == Live(5, (1,), only=True)


SMALLER = replace(run(7, 0), live=Live(5, (0,)))
LARGER = replace(run(7, 0, 1, 2), live=Live(5, (0, 1, -1)))


def test_newest_decision_replaces_a_live_change_under_way():
    told = sent(changing({"n0": (0, 1, 2)}, generation=4, state=under_way(SMALLER)))[A0]
    assert (told.generation, told.gpus) == (9, ("0", "1", "2"))
    assert told.live == Live(5, (0, 1, -1))
    back = sent(changing({"n0": (0, 1)}, generation=4, state=under_way(LARGER)))[A0]
    assert back.live == Live(5, (0, 1), only=True)


def test_newer_decision_waits_where_a_change_may_be_agreed_elsewhere():
    older = under_way(SMALLER, live=LiveState(capable=2))
    assert sent(changing({"n0": (0, 1, 2)}, generation=4, state=older)) == {}
    since = run(5, 0, peers=2)
    both = under_way(replace(run(7, 0), live=Live(5, (0,))), since=since)
    assert sent(changing({"n0": (0, 1)}, generation=4, state=both)) == {}


def test_command_is_no_start_while_the_processes_are_others():
    status, news = judged(changing({"n0": (0, 1, 2)}, state=withdrawn(LARGER)))
    assert status.running == 5
    assert "Running" not in news


# --- decisions that are given back ----------------------------------------------------------

UNSAVED = {"checkpoint": NONE, "trust": Trust.UNTRIED}


def test_job_keeps_its_gpus_if_its_processes_go_on_as_before():
    given = changing({"n0": (0, 1, 2)}, state=withdrawn(LARGER), **UNSAVED)
    status, news = judged(given)
    assert (refs_of(status), status.live) == (A_GPUS, Trust.FAILED)
    assert news == ["NotLive", "LiveChangeGivenBack"]
    assert "rank 2, which joins, ended" in status.message
    # They go on under a generation of their own, without a restart.
    rest = {"state": withdrawn(LARGER), "generation": status.generation, "live": status.live}
    told = sent(changing({"n0": (0, 1)}, **rest, **UNSAVED))[A0]
    assert (told.generation, told.live) == (9, Live(5, (0, 1), only=True))


def test_processes_that_never_register_give_a_decision_back():
    rest = {"state": running(run(5, 0, 1)), **UNSAVED}
    status, news = judged(changing({"n0": (1,)}, decided_at=NOW - 301.0, **rest))
    assert (refs_of(status), status.run_generation) == (A_GPUS, 5)
    assert news == ["LiveChangeGivenBack"]
    assert not status.condition(ConditionType.LIVE).status
    for early in (
        changing({"n0": (1,)}, decided_at=NOW - 200.0, **rest),
        changing({"n0": (1,)}, decided_at=NOW - 301.0, state=running(run(5, 0, 1))),
        changing({"n0": (1,)}, decided_at=NOW - 301.0, **UNSAVED),
    ):
        assert judge(make_scene(early)) == {} or judged(early)[0].placement.gpus == 1


def test_job_that_was_to_get_these_gpus_waits_again():
    shrinks = changing({"n0": (1,)}, state=withdrawn(SMALLER), **UNSAVED)
    taker = cast("b", {"n0": (0, 3)}, n0=ready(), phase=Phase.INITIALIZED)
    other = cast("c", {"n0": (2,)}, n0=ready(), phase=Phase.INITIALIZED)
    verdicts = judge(make_scene(shrinks, taker, other))
    assert refs_of(verdicts[JobId("a")].status) == A_GPUS
    assert verdicts[JobId("b")].status.placement is None
    assert "job a keeps GPUs" in verdicts[JobId("b")].status.message
    assert JobId("c") not in verdicts or verdicts[JobId("c")].status.placement is not None


@pytest.mark.parametrize("unsaved", [{}, UNSAVED], ids=["saved", "unsaved"])
@pytest.mark.parametrize(
    "newcomer",
    [
        pytest.param(Sat(phase=PodPhase.LOST, fresh=True), id="it never had a command"),
        pytest.param(Sat(phase=PodPhase.LOST), id="its processes may be there"),
    ],
)
def test_lost_node_of_newcomers_costs_nothing(newcomer: Sat, unsaved: dict[str, Any]):
    holds = {"n0": (0, 1), "n1": (0,)}
    target = replace(run(7, 0, 1), world_size=3, peers=(Peer("n0", 2), Peer("n1", 1)))
    target = replace(target, live=Live(5, (0, 1, -1)))
    state = able(run(5, 0, 1)) if newcomer.fresh else under_way(target)
    lost = changing(holds, n1=newcomer, state=state, **unsaved)
    scene = make_scene(lost, nodes={"n0": 4})
    verdict = judge(scene)[JobId("a")]
    assert refs_of(verdict.status) == A_GPUS
    assert [news.reason for news in verdict.news][:1] == ["NodeLost"]
    # Later the silence of that node does not stop the others either.
    later = judge(replace(scene.with_statuses({JobId("a"): verdict.status}), now=NOW + 100.0))
    assert JobId("a") not in later or refs_of(later[JobId("a")].status) == A_GPUS


def test_lost_node_of_a_member_is_no_reason_to_go_on():
    states = {f"n{at}": able(run(5, 0, peers=2, at=at)) for at in range(2)}
    lost = Sat(states["n1"], phase=PodPhase.LOST, reachable=False, since=1.0)
    both = changing({"n0": (0,), "n1": (0,)}, generation=2, n1=lost, state=states["n0"])
    verdicts = judge(make_scene(both, nodes={"n0": 4}))
    status = verdicts[JobId("a")].status if verdicts else both.entry.status
    assert status.placement is None or status.placement.gpus == 2


def test_unsaved_live_job_may_grow_onto_other_nodes():
    here = (NodeName("n0"),)
    for known, nodes in (
        ({"live": Trust.CONFIRMED, **UNSAVED}, ()),
        (UNSAVED, here),
        ({"live": Trust.CONFIRMED}, here),
    ):
        scene = make_scene(training(None, bound_to=here, **known))
        [state] = take_snapshot(scene, profiles={}, costs=Costs()).running
        assert state.bound_to == nodes


def test_work_that_nothing_saves_is_kept_during_a_live_change():
    scene = make_scene(changing({"n0": (0, 1, 2)}, state=under_way(LARGER), **UNSAVED))
    [state] = take_snapshot(scene, profiles={}, costs=Costs()).running
    assert state.unsaved_from is not None
    assert not state.may_change_live


def test_pause_of_a_live_change_counts():
    done = able(replace(run(7, 1), live=Live(5, (1,))))
    assert done.live is not None
    change = LiveChange(7, pause_ms=40.0)
    state = replace(done, live=replace(done.live, change=change))
    status, news = judged(changing({"n0": (1,)}, state=state))
    assert (status.phase, status.running, news) == (Phase.RUNNING, 7, ["Running"])
    assert (status.live_changes, status.live_seconds) == (1, 0.04)
    assert (status.reshape_seconds, status.paused_at) == (0.04, None)


def test_pause_says_if_the_change_was_live():
    before = make_scene(changing({"n0": (1,)}))
    was = before.entries[JobId("a")].status
    for live, changes in ((True, 1), (False, 0)):
        status = replace(was, reshape_seconds=0.04, live_changes=changes)
        [(job, pause)] = find_pauses(before, {JobId("a"): Verdict(status)})
        assert (job, pause) == (JobId("a"), Pause(was.generation, 0.04, is_live=live))


def test_short_pauses_are_shown_by_tenths_of_a_millisecond():
    assert [in_ms(each) for each in (0.00043, 0.0099, 0.0432)] == ["0.4 ms", "9.9 ms", "43 ms"]


def test_condition_of_unsaved_work_mentions_live_changes():
    trial = LiveTrial(1, True, 0.012)
    status, _ = judged(training(able(run(5, 0, 1), trial=trial), **UNSAVED))
    assert "its GPUs change live" in status.condition(ConditionType.SAVED).message


def test_change_that_fell_back_is_the_last_for_now():
    done = able(run(7, 1))
    assert done.live is not None
    change = LiveChange(7, message="rank 1 did not reach the boundary in 30 s")
    state = replace(done, live=replace(done.live, change=change))
    status, news = judged(changing({"n0": (1,)}, state=state))
    assert (status.live, status.live_changes) == (Trust.FAILED, 0)
    assert news == ["NotLive", "Running"]


def test_change_that_fell_back_is_tried_again_in_the_start_that_followed():
    left = LiveState(capable=1, change=LiveChange(6, message="rank 3 was killed"))
    states = {f"n{at}": able(run(5, 0, peers=2, at=at)) for at in range(2)}
    leaves = changing({"n0": (0,)}, state=states["n0"], n1=replace(states["n1"], live=left))
    status, _ = judged(leaves)
    assert (status.live, status.live_failed_in) == (Trust.FAILED, 7)
    known = {"live": status.live, "live_failed_in": StartNumber(7), "live_failures": 1}
    back = LiveState(capable=1, change=LiveChange(7, message="rank 3 was killed"))
    again = replace(able(run(7, 0)), live=back)
    rest = {"holds": {"n0": (0,)}, "running": StartNumber(7), "generation": 3, "live_tried": 1}
    assert sent(training(again, **rest, **known))[A0].live_trial == 2
    tried = replace(back, trial=LiveTrial(2, True, 0.01))
    status, news = judged(training(replace(again, live=tried), **rest, **known))
    assert (status.live, news) == (Trust.CONFIRMED, ["Live"])


def test_policies_see_that_a_job_changes_live():
    scene = make_scene(training(live=Trust.CONFIRMED), now=NOW)
    [state] = take_snapshot(scene, profiles={}, costs=Costs()).running
    assert state.is_live
