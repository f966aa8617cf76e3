"""The laws of the machine one by one; test_machine_interleavings.py tests them together."""

from dataclasses import replace

from dljob_sidecar.behaviour.events import (
    ArmTimer,
    Checkpoint,
    CheckpointDone,
    CheckpointFailed,
    CheckpointTimedOut,
    Event,
    Gone,
    GraceOver,
    Interrupted,
    Kill,
    Leave,
    Lingering,
    Prepare,
    RankEnded,
    Started,
    StartFailed,
    StartProcesses,
    StillThere,
    Terminate,
    Told,
)
from dljob_sidecar.behaviour.machine import Limits, Machine, react
from dljob_sidecar.behaviour.state import QUIET
from dljob_sidecar.behaviour.table import TABLE, Trigger, Verb
from dljob_wire.messages import Phase, Problem, Refused, Saving
from tests.sidecar.targets import INCARNATION, as_follower, run, stop

PROBLEM = Problem("CommandNotFound", "no such command", "write one that exists")
READY = Machine(INCARNATION, Limits(saves=True))


def after(*events: Event, machine: Machine = READY) -> Machine:
    for event in events:
        machine = react(machine, event).machine
    return machine


def done(*events: Event, machine: Machine = READY) -> list[type]:
    """Return the kinds of actions after the last event."""
    *before, last = events
    return [type(action) for action in react(after(*before, machine=machine), last).actions]


BEGUN = (Told(run(1)), Started(1))
ENDED_WELL = (*BEGUN, RankEnded(1, 0, 0), RankEnded(1, 1, 0), Gone(1))
CRASHED = (*BEGUN, RankEnded(1, 1, None, 9))


def test_first_target_is_carried_out_at_once():
    reaction = react(READY, Told(run(1)))
    assert reaction.actions == (StartProcesses(run(1), attempt=1),)
    assert reaction.machine.phase is Phase.STARTING
    assert after(*BEGUN).phase is Phase.RUNNING
    stopped = after(Told(stop(1)))
    assert (stopped.phase, stopped.released) == (Phase.STOPPED, True)


def test_spares_are_prepared_as_soon_as_the_width_is_known():
    def prepared(*events):
        *before, last = events
        actions = react(after(*before), last).actions
        return [action.processes for action in actions if isinstance(action, Prepare)]

    assert prepared(*BEGUN, Told(run(2, gpus=4, processes=4))) == [4]
    assert prepared(*BEGUN, Told(replace(stop(2), coming=3))) == [3]
    assert prepared(*BEGUN, Told(stop(2))) == []
    assert prepared(*BEGUN, Told(stop(2)), Told(run(3, gpus=4, processes=4))) == [4]
    # Where nothing lives, the start itself comes at once.
    assert prepared(Told(run(1))) == prepared(*CRASHED, Gone(1), Told(run(2))) == []


def test_coming_width_and_reason_are_no_part_of_a_target():
    for known, other in (
        (replace(stop(2), coming=3), replace(stop(2), coming=4)),
        (run(2), replace(run(2), reason="another reason")),
    ):
        machine = after(*BEGUN, Told(known))
        assert react(machine, Told(other)) == (machine, (), None, None)


def test_stop_is_checkpoint_terminate_kill():
    declared = (*BEGUN, Told(stop(2)))
    assert done(*declared) == [Checkpoint, ArmTimer]
    assert done(*declared, CheckpointDone(1)) == [Terminate, ArmTimer]
    assert done(*declared, CheckpointDone(1), GraceOver(1)) == [Kill, ArmTimer]
    ended = after(*declared, CheckpointDone(1), GraceOver(1), Gone(1))
    assert (ended.phase, ended.released, ended.saving) == (Phase.STOPPED, True, Saving.CONFIRMED)
    cannot_save = Machine(INCARNATION, Limits(saves=False))
    assert done(*declared, machine=cannot_save) == [Terminate, ArmTimer]


def test_unsaved_stop_ends_a_running_checkpoint():
    declared = (*BEGUN, Told(stop(2)), Told(stop(3, checkpoint=False)))
    assert done(*declared) == [Terminate, ArmTimer]


FOLLOWER = Machine(INCARNATION, Limits(saves=True, leader_saves=True))
FOLLOWING = (Told(as_follower(run(1))), Started(1), Told(stop(2)))


def test_follower_waits_without_asking():
    last = react(after(*FOLLOWING[:-1], machine=FOLLOWER), FOLLOWING[-1])
    # The leader may need its whole timeout and grace.
    assert last.actions == (ArmTimer(CheckpointTimedOut(1), 70.0),)
    assert last.machine.phase is Phase.CHECKPOINTING
    # The leader itself is asked as usual.
    assert done(*BEGUN, Told(stop(2)), machine=FOLLOWER) == [Checkpoint, ArmTimer]


def test_follower_ends_on_order_lost_peer_or_timeout():
    for event in (Told(stop(2, checkpoint=False)), CheckpointTimedOut(1), RankEnded(1, 2, None, 6)):
        assert done(*FOLLOWING, event, machine=FOLLOWER) == [Terminate, ArmTimer]
        ended = after(*FOLLOWING, event, Gone(1), machine=FOLLOWER)
        # It had nothing to save.
        assert (ended.phase, ended.saving, ended.problems) == (Phase.STOPPED, Saving.NONE, ())


def test_failed_checkpoint_does_not_delay_the_stop():
    for event, saving, problem in (
        (CheckpointFailed(1, PROBLEM), Saving.FAILED, "CommandNotFound"),
        (CheckpointTimedOut(1), Saving.TIMED_OUT, "CheckpointTimedOut"),
    ):
        declared = (*BEGUN, Told(stop(2)), event)
        assert done(*declared) == [Terminate, ArmTimer]
        assert after(*declared).saving is saving
        assert [each.name for each in after(*declared, Gone(1)).problems] == [problem]


def test_checkpoint_during_the_grace_counts():
    declared = (*BEGUN, Told(stop(2)), CheckpointTimedOut(1), CheckpointDone(1), Gone(1))
    assert (after(*declared).saving, after(*declared).problems) == (Saving.CONFIRMED, ())


def test_end_before_confirmation_is_reported():
    ends = (RankEnded(1, 0, 0), RankEnded(1, 1, 0))
    machine = after(*BEGUN, Told(stop(2)), *ends, Gone(1))
    assert machine.saving is Saving.FAILED
    assert [problem.name for problem in machine.problems] == ["CheckpointNotConfirmed"]


def test_surviving_process_is_killed_again_and_reported():
    declared = (*BEGUN, Told(stop(2, checkpoint=False)), GraceOver(1), StillThere(1))
    assert done(*declared) == [Kill, ArmTimer]
    assert [problem.name for problem in after(*declared).problems] == ["ProcessesDoNotEnd"]
    assert not after(*declared).released
    assert after(*declared, Gone(1)).problems == ()


def test_obstacle_is_reported_instead_of_processes():
    problem = Problem("GPUMemoryNotReleased", "GPU-0 holds more", "look")
    declared = (*BEGUN, Told(stop(2, checkpoint=False)), GraceOver(1))
    assert after(*declared, Lingering(1, problem)).problems == ()
    assert after(*declared, Lingering(1, problem), StillThere(1)).problems == (problem,)
    assert [one.name for one in after(*declared, StillThere(1)).problems] == ["ProcessesDoNotEnd"]
    assert after(*declared, Lingering(1, problem), StillThere(1), Gone(1)).problems == ()


def test_stop_can_be_hurried_in_its_generation():
    declared, hurried = stop(2), stop(2, checkpoint=False)
    assert done(*BEGUN, Told(declared), Told(hurried)) == [Terminate, ArmTimer]
    machine = after(*BEGUN, Told(declared), Told(hurried))
    # The first declaration may arrive late, or again from another leader.
    assert react(machine, Told(declared)) == (machine, (), None, None)
    stamped = react(machine, Told(stop(2, epoch=2)))
    assert (stamped.machine.target, stamped.machine.phase) == (stop(2, epoch=2), Phase.STOPPING)
    assert stamped.actions == ()


def test_stamp_does_not_restart_a_crash():
    machine = after(*BEGUN, Told(run(1, epoch=2)), RankEnded(1, 0, 1), Gone(1))
    assert machine.phase is Phase.FAILED


def test_newer_epoch_with_another_target_is_a_change():
    assert done(*BEGUN, Told(run(1, epoch=2, gpus=1))) == [Checkpoint, ArmTimer, Prepare]
    assert react(after(*BEGUN), Told(run(1, gpus=1))).refused is Refused.CONFLICT


def test_only_the_first_installation_is_obeyed():
    machine = after(Told(run(1)), Told(replace(run(2), installation="ours")))
    assert machine.installation == "ours"
    foreign = replace(run(3, epoch=2**53 - 1), installation="theirs")
    assert react(machine, Told(foreign)).refused is Refused.OTHER_INSTALLATION
    # An older controller names no installation.
    assert react(machine, Told(run(3))).refused is None


def test_installation_may_be_named_later():
    named = replace(run(1, epoch=2), installation="ours")
    assert done(*BEGUN, Told(named)) == []
    machine = after(*BEGUN, Told(named))
    assert machine.target is not None
    assert (machine.installation, machine.target.installation) == ("ours", "ours")


def test_failed_rank_ends_the_others():
    assert done(*BEGUN, RankEnded(1, 0, 0)) == []
    assert after(*ENDED_WELL[:-1]).phase is Phase.STOPPING
    assert after(*ENDED_WELL).phase is Phase.EXITED
    assert done(*CRASHED) == [Terminate, ArmTimer]
    assert after(*CRASHED).held == ("0", "1")
    machine = after(*CRASHED, RankEnded(1, 0, None, 15), Gone(1))
    assert (machine.phase, machine.held) == (Phase.FAILED, ())
    [problem] = machine.problems
    assert problem.message == "the process of rank 1 ended with signal 9"


def test_failed_start_is_cleaned_up_first():
    declared = (Told(run(1)), StartFailed(1, PROBLEM))
    assert done(*declared) == [Terminate, ArmTimer]
    assert after(*declared).held == ("0", "1")
    machine = after(*declared, Gone(1))
    assert (machine.phase, machine.problems) == (Phase.FAILED, (PROBLEM,))


def test_stop_keeps_the_final_phase():
    assert after(*ENDED_WELL, Told(stop(2))).phase is Phase.EXITED
    assert after(*CRASHED, Gone(1), Told(stop(2))).phase is Phase.FAILED


def test_crash_is_reported_after_a_stop():
    machine = after(*CRASHED, Told(stop(2)), Gone(1))
    assert machine.phase is Phase.STOPPED
    assert [problem.name for problem in machine.problems] == ["TrainingFailed"]


def test_interrupt_stops_training_then_leaves():
    assert done(*BEGUN, Interrupted()) == [Checkpoint, ArmTimer]
    machine = after(*BEGUN, Interrupted(), CheckpointDone(1), RankEnded(1, 0, None, 15))
    assert react(machine, Gone(1)).actions == (Leave(143),)


def test_leaving_can_be_cancelled():
    declared = (*BEGUN, Told(stop(2, leave=True)), CheckpointDone(1), Told(run(3)))
    assert react(after(*declared), Gone(1)).actions == (StartProcesses(run(3), attempt=2),)
    left = after(*BEGUN, Told(stop(2, leave=True)), CheckpointDone(1), Gone(1))
    assert react(left, Told(run(3))).refused is Refused.LEAVING


def test_exit_status_is_that_of_the_training():
    one_failed = (*BEGUN, RankEnded(1, 1, 3), RankEnded(1, 0, None, 15), Gone(1))
    for events, status in (
        ((), 0),
        (ENDED_WELL, 0),
        (one_failed, 3),
        ((*CRASHED, Gone(1)), 137),
        ((Told(run(1)), StartFailed(1, PROBLEM), Gone(1)), 127),
    ):
        assert react(after(*events), Interrupted()).actions == (Leave(status),), events


def test_leave_exits_with_zero():
    """A kubelet restarts a container that ends with another status."""
    leave = Told(stop(2, leave=True))
    for events in (
        (*BEGUN, leave, CheckpointDone(1), RankEnded(1, 0, None, 15)),
        (*CRASHED, leave),
    ):
        assert react(after(*events), Gone(1)).actions == (Leave(0),)


def test_start_needs_a_quiet_phase_or_the_proof():
    for phase, rows in TABLE.items():
        for trigger, row in rows.items():
            if Verb.START in row.verbs:
                assert phase in QUIET or trigger is Trigger.GONE_TO_RUN


def test_quiet_phase_needs_the_proof():
    for phase, rows in TABLE.items():
        for trigger, row in rows.items():
            if phase not in QUIET and row.phase in QUIET:
                assert trigger.name.startswith("GONE_")


def knowing(number: int, ended: int | None) -> Told:
    """A run whose controller has seen this end."""
    return Told(replace(run(number), ended=ended))


ENDS = (RankEnded(1, 0, 0), RankEnded(1, 1, 0))
CHANGES = {
    "the request came before the end": (*BEGUN, knowing(2, 0), *ENDS),
    "the request found no process": (*BEGUN, knowing(2, 0), *ENDS, CheckpointFailed(1, PROBLEM)),
    "the run came before the proof": (*BEGUN, *ENDS, knowing(2, 0)),
    "one rank ended before the request": (*BEGUN, ENDS[0], knowing(2, 0), ENDS[1]),
}


def test_training_that_ended_well_is_not_restarted():
    for name, events in CHANGES.items():
        ended = after(*events, Gone(1))
        assert ended.phase is Phase.EXITED, name
        assert done(*events, Gone(1)) == [], name


def test_run_sent_before_the_end_starts_nothing():
    late = after(*ENDED_WELL, knowing(2, 0))
    assert late.phase is Phase.EXITED
    assert react(late, knowing(3, 1)).machine.phase is Phase.STARTING
    # The same controller may learn of the end later.
    assert react(late, knowing(2, 1)).machine.phase is Phase.STARTING


def test_stop_during_the_end_shows_success():
    for leaves in (False, True):
        declared = Told(replace(stop(2), leave=leaves))
        events = (*BEGUN, declared, *ENDS, Gone(1))
        assert after(*events).phase is Phase.EXITED
        assert done(*events) == ([Leave] if leaves else [])


def test_training_is_restarted_unless_it_has_ended_well():
    cases: dict[str, tuple[Event, ...]] = {
        "the controller knows of no ends": (*BEGUN, Told(run(2)), *ENDS, Gone(1)),
        "the same, and the run came late": (*ENDED_WELL, Told(run(2))),
        "it exits because it has saved": (*BEGUN, knowing(2, 0), *ENDS, CheckpointDone(1), Gone(1)),
        "it is terminated": (*BEGUN, knowing(2, 0), CheckpointTimedOut(1), *ENDS, Gone(1)),
        "a rank failed": (*BEGUN, knowing(2, 0), ENDS[0], RankEnded(1, 1, 3), Gone(1)),
    }
    for why, events in cases.items():
        assert after(*events).phase is Phase.STARTING, why
