"""The policy's view of a scene, and the effect of its steps on the statuses of jobs."""

from dataclasses import replace
from typing import Any

import pytest

from dljob.control.deciding.snapshots import REPORT_S, statuses_of, take_snapshot
from dljob.control.situation.ports import PodPhase
from dljob.control.situation.quarantine import Quarantine
from dljob.control.situation.status import ConditionType
from dljob.core import policies
from dljob.core.measuring import FIRST_STEP_S
from dljob.core.model import (
    Cause,
    CauseCode,
    Checkpoint,
    GpuRef,
    JobId,
    Mechanism,
    NodeName,
    Phase,
    Training,
)
from dljob.core.placement.limits import NamespaceLimits
from dljob.core.planning import Move, Plan, Reshape, Start, Stop, Wait
from dljob.core.profiles import Costs
from dljob_wire.messages import Progress
from tests.builders import make_placement, make_profile
from tests.control.scenes import NOW, PENDING, Sat, cast, make_scene, ready, run, running, stop

A = JobId("a")
N0 = NodeName("n0")
FASTER = Cause(CauseCode.FASTER_WITH_MORE)


def shown(*casts, quarantine=None, **rest):
    return take_snapshot(
        make_scene(*casts, **rest), profiles={}, costs=Costs(), quarantine=quarantine
    )


def unavailable(snapshot):
    return {
        GpuRef(node.name, gpu.index): gpu.unavailable_because
        for node in snapshot.cluster.nodes
        for gpu in node.gpus
        if gpu.unavailable_because
    }


# --- jobs in the snapshot -------------------------------------------------------------------


def test_snapshot_shows_the_metrics_of_the_leader():
    progress = Progress(iteration=9, begun=True, metrics={"loss": 0.5, "accuracy": 0.8})
    reports = cast("a", {"n0": (0,)}, n0=Sat(running(run(3, 0), progress=progress)))
    [a, b] = shown(reports, cast("b", {"n0": (1,)})).running
    assert a.metrics == {"loss": 0.5, "accuracy": 0.8}
    assert b.metrics == {}


def test_snapshot_splits_running_and_pending_in_order():
    snapshot = shown(cast("c"), cast("b", {"n0": (0,)}), cast("a"), cast("d", {"n0": (1,)}))
    assert [state.id for state in snapshot.running] == ["b", "d"]
    assert [state.id for state in snapshot.pending] == ["c", "a"]


@pytest.mark.parametrize(
    "rest",
    [
        {"phase": Phase.COMPLETED},
        {"phase": Phase.FAILED},
        {"cancelled": True},
        {"retry_at": NOW + 1},
        {"problem": "its spec cannot be read"},
        {"job_pods": {"n0": Sat(running(run(3, 0)), phase=PodPhase.LOST)}},
        {"job_pods": {"n0": Sat(None, since=NOW - 1, reachable=False)}},
    ],
    ids=lambda rest: next(iter(rest)),
)
def test_undecidable_jobs_are_not_in_the_snapshot(rest):
    snapshot = shown(cast("a", **rest))
    assert (len(snapshot.running), len(snapshot.pending)) == (0, 0)


def test_job_that_retries_soon_keeps_its_gpus():
    assert len(shown(cast("a", {"n0": (0,)}, retry_at=NOW + 1)).running) == 1


def test_progress_is_extrapolated():
    progress: dict[str, Any] = {"iteration": 50, "iterated_at": NOW - 4, "speed": 2.0}
    (state,) = shown(
        cast("a", {"n0": (0, 1)}, counted_at=NOW - 1, service=100.0, **progress)
    ).running
    assert state.iterations_at(NOW) == 58
    assert state.service_at(NOW) == 102.0


@pytest.mark.parametrize("seconds", [40.0, 900.0])
def test_hanging_job_is_not_nearly_done(seconds):
    hangs = cast("a", {"n0": (0,)}, iteration=50, iterated_at=NOW - seconds, speed=2.0)
    (state,) = shown(hangs).running
    assert state.iterations_at(NOW) == 50 + 1 + 2.0 * REPORT_S
    assert state.service_at(NOW) == NOW


def test_adjusting_job_makes_no_progress():
    (state,) = shown(
        cast("a", {"n0": (0,)}, iteration=50, iterated_at=NOW - 4, speed=2.0, phase=Phase.ADJUSTING)
    ).running
    assert (state.iterations_at(NOW + 9), state.adjusting) == (50, True)


def test_job_without_a_total_has_no_end():
    (state,) = shown(cast("a", training=Training())).pending
    assert state.iterations_total == float("inf")


def test_only_an_unshared_checkpoint_binds():
    (state,) = shown(cast("a", bound_to=(N0,))).pending
    assert state.bound_to == (N0,)
    (state,) = shown(cast("a", checkpoint=Checkpoint(shared=True), bound_to=(N0,))).pending
    assert state.bound_to == ()


def test_gpus_that_a_lost_job_may_adopt_count_in_the_limit():
    limits = NamespaceLimits(max_gpus={"lab": 3})
    leftover = frozenset({GpuRef(N0, 0), GpuRef(N0, 1)})
    lost = cast(
        "lab/a", n0=Sat(phase=PodPhase.LOST), leftover=leftover, cause=Cause(CauseCode.NODE_LOST)
    )
    scene = make_scene(lost)
    found = take_snapshot(scene, profiles={}, costs=Costs(), limits=limits).limits
    assert found == limits.less({"lab": 2})


# --- GPUs that are not available ------------------------------------------------------------


LEFT = {"leftover": frozenset({GpuRef(N0, 1)})}


def silent(state, seconds=20.0):
    return Sat(state, reachable=False, since=NOW - seconds)


TRAINS = running(run(3, 0, 1))
SILENT = "job a may still use it, and its SideCar does not answer"


@pytest.mark.parametrize(
    ("holds", "sat", "rest", "expected"),
    [
        pytest.param({"n0": (0,)}, silent(TRAINS), {"generation": 2}, {1: SILENT}, id="is silent"),
        pytest.param({"n0": (0,)}, silent(TRAINS, 5.0), {"generation": 2}, {}, id="for a moment"),
        pytest.param(None, silent(None, 5.0), LEFT, {1: SILENT}, id="was lost, not heard since"),
        pytest.param(None, Sat(phase=PodPhase.LOST), LEFT, {1: SILENT}, id="is lost"),
        pytest.param({"n0": (0,)}, PENDING, {}, {}, id="comes up for the first time"),
        pytest.param({"n0": (0,)}, None, {"problem": "?"}, {0: "job a is set aside"}, id="aside"),
    ],
)
def test_gpus_that_a_pod_may_hold_are_unavailable(holds, sat, rest, expected):
    job_pods = {"n0": sat} if sat is not None else None
    found = unavailable(shown(cast("a", holds, job_pods=job_pods, **rest)))
    assert found == {GpuRef(N0, number): why for number, why in expected.items()}


def test_job_with_nonsensical_figures_is_set_aside_alone():
    quarantine = Quarantine()
    snapshot = shown(cast("a", {"n0": (0,)}, service=None), cast("b"), quarantine=quarantine)
    assert unavailable(snapshot) == {GpuRef(N0, 0): "job a is set aside"}
    assert [state.id for state in snapshot.pending] == ["b"]
    assert quarantine.jobs == {A}


def test_reason_of_the_platform_is_kept():
    scene = make_scene(cast("a", {"n0": (0,)}, problem="its spec cannot be read"))
    node = scene.nodes[N0]
    broken = replace(node, gpus=(replace(node.gpus[0], unavailable_because="ECC"), *node.gpus[1:]))
    scene = replace(scene, nodes={N0: broken})
    snapshot = take_snapshot(scene, profiles={}, costs=Costs())
    assert unavailable(snapshot) == {GpuRef(N0, 0): "ECC"}


# --- steps ----------------------------------------------------------------------------------


def after(step, *casts, profiles=(), **rest):
    scene = make_scene(*casts, **rest)
    known = {profile.type: profile for profile in profiles}
    snapshot = take_snapshot(scene, profiles=known, costs=Costs())
    return statuses_of(Plan((step,)), snapshot, scene=scene, policy=policies.make("foresight"))[A]


def test_start_gives_gpus():
    placement = make_placement(n0=(0, 1))
    said = after(Start(A, placement, FASTER, batch_size=64), cast("a", generation=0))
    assert (said.phase, said.generation, said.placement) == (Phase.INITIALIZED, 1, placement)
    assert (said.batch_size, said.started_at, said.decided_at) == (64, NOW, NOW)
    assert said.message == "starts on 2 GPUs on n0: it is done sooner with more GPUs"
    assert said.condition(ConditionType.SCHEDULED).status


def test_assumptions_are_a_condition_while_they_last():
    step = Start(A, make_placement(n0=(0,)), FASTER)
    lacks = after(step, cast("a"))
    told = lacks.condition(ConditionType.INFORMED)
    assert (told.status, told.reason) == (False, "Assumed")
    assert told.message.startswith(
        "no speed of it is known, nor how long its 1,000 iterations take; foresight"
    )
    known = (make_profile(dict.fromkeys(range(1, 9), 1.0)),)
    informed = after(step, cast("a", conditions=lacks.conditions), profiles=known)
    told = informed.condition(ConditionType.INFORMED)
    assert (told.status, told.reason) == (True, "Known")
    assert told.message == "all that foresight uses of the job is known"
    # A job that never lacked anything has no such condition.
    assert after(step, cast("a"), profiles=known).condition(ConditionType.INFORMED) is None


def test_first_start_is_remembered():
    step = Start(A, make_placement(n0=(0,)), FASTER)
    assert after(step, cast("a", started_at=5.0)).started_at == 5.0


@pytest.mark.parametrize("kind", [Reshape, Move])
def test_change_is_counted_and_leaves_leftover(kind):
    old, new = make_placement(n0=(0, 1)), make_placement(n1=(0,))
    said = after(
        kind(A, old, new, FASTER), cast("a", {"n0": (0, 1)}, leftover=frozenset({GpuRef(N0, 3)}))
    )
    assert (said.phase, said.reshapes) == (Phase.ADJUSTING, 1)
    assert said.leftover == {GpuRef(N0, number) for number in (0, 1, 3)}


def test_change_before_the_first_run_is_no_reshape():
    old, new = make_placement(n0=(0, 1)), make_placement(n0=(0,))
    initialised = cast("a", {"n0": (0, 1)}, phase=Phase.INITIALIZED)
    said = after(Reshape(A, old, new, FASTER), initialised)
    assert (said.phase, said.reshapes) == (Phase.INITIALIZED, 0)


@pytest.mark.parametrize(
    ("code", "phase"), [(CauseCode.OUTRANKED, Phase.QUEUED), (CauseCode.SUSPENDED, Phase.SUSPENDED)]
)
def test_stop_takes_all_gpus(code, phase):
    old = make_placement(n0=(0,))
    said = after(Stop(A, old, Cause(code)), cast("a", {"n0": (0,)}, speed=3.0))
    assert (said.phase, said.placement, said.saves) == (phase, None, True)
    assert (said.leftover, said.speed) == (set(old.refs()), 0.0)
    assert not said.condition(ConditionType.SCHEDULED).status


def test_start_that_loses_a_node_is_broken():
    old = make_placement(n0=(0,), n3=(0,))
    job_pods = {"n0": running(run(3, 0, peers=2)), "n3": running(run(3, 0, peers=2, at=1))}
    step = Stop(A, old, Cause(CauseCode.NODE_LOST))
    said = after(step, cast("a", {"n0": (0,), "n3": (0,)}, job_pods=job_pods))
    assert (said.saves, said.broken) == (True, 3)
    only_to_be = after(step, cast("a", {"n0": (0,), "n3": (0,)}, n0=running(run(3, 0)), n3=ready()))
    assert only_to_be.broken == 0


def test_wait_gives_its_reason():
    cause = Cause(CauseCode.NO_ROOM)
    said = after(Wait(A, cause), cast("a", generation=0, phase=Phase.SUBMITTED))
    assert (said.phase, said.cause, said.generation) == (Phase.QUEUED, cause, 0)
    assert said.message.startswith("waits: ")
    assert said.condition(ConditionType.SCHEDULED).reason == "NoRoom"


# --- withdrawn changes ----------------------------------------------------------------------


def taken_back(state, **rest):
    """A job that trains on two GPUs had to release one, and is to keep both again."""
    old, new = make_placement(n0=(0,)), make_placement(n0=(0, 1))
    known: dict[str, Any] = {
        "phase": Phase.ADJUSTING,
        "reshapes": 1,
        "leftover": frozenset({GpuRef(N0, 1)}),
    }
    training = Training(iterations=9, batch_size=0)
    changing = cast("a", {"n0": (0,)}, generation=2, n0=state, training=training, **known)
    return after(Reshape(A, old, new, FASTER, **rest), changing)


def test_unbegun_change_is_withdrawn_without_a_restart():
    said = taken_back(running(run(3, 0, 1)))
    assert (said.generation, said.adopted, said.run_generation) == (3, 3, 3)
    assert (said.phase, said.reshapes, said.leftover) == (Phase.RUNNING, 0, frozenset())


@pytest.mark.parametrize(
    "state",
    [
        running(run(3, 0, 1), stop(4)),
        running(run(3, 0, 1), run(5, 0)),
        Sat(running(run(3, 0, 1)), declared=run(5, 0)),
    ],
)
def test_begun_change_is_not_withdrawn(state):
    said = taken_back(state)
    assert (said.adopted, said.run_generation, said.phase) == (0, 7, Phase.ADJUSTING)


def test_another_batch_size_needs_another_start():
    assert taken_back(running(run(3, 0, 1)), batch_size=128).adopted == 0


def test_job_that_was_to_stop_may_go_on():
    step = Start(A, make_placement(n0=(0,)), FASTER)
    trains = cast("a", generation=2, n0=running(run(3, 0)), training=Training())
    assert after(step, trains).adopted == 3
    assert after(step, trains).phase is Phase.RUNNING
    recreated = after(step, trains, mechanism=Mechanism.RECREATE)
    assert (recreated.adopted, recreated.phase) == (0, Phase.INITIALIZED)


# --- end of a change ------------------------------------------------------------------------

NO_STEP = Progress(idle_seconds=5.0)


@pytest.mark.parametrize(
    ("progress", "adjusts"),
    [
        (NO_STEP, True),
        (Progress(iteration=7, begun=True, iterations_per_second=2.0), False),
        # A training that reports once an hour runs, too.
        (Progress(idle_seconds=FIRST_STEP_S), False),
    ],
)
def test_change_ends_with_the_first_step(progress, adjusts):
    trains = cast("a", {"n0": (0,)}, n0=running(run(3, 0), progress=progress))
    (state,) = shown(trains).running
    assert state.adjusting is adjusts


def test_only_the_leader_must_report_steps():
    told = [run(3, 0, at=rank, peers=2) for rank in range(2)]
    job_pods = {
        "n0": running(told[0], progress=Progress(iteration=7, begun=True)),
        "n1": running(told[1], progress=NO_STEP),
    }
    (state,) = shown(cast("a", {"n0": (0,), "n1": (0,)}, job_pods=job_pods)).running
    assert not state.adjusting
