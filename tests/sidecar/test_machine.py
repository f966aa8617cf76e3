"""
The laws of the machine, one by one. test_machine_interleavings.py tests that they hold together in
every order of events.
"""

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
    """Return what the last event leads to."""
    *before, last = events
    return [type(action) for action in react(after(*before, machine=machine), last).actions]


BEGUN = (Told(run(1)), Started(1))
ENDED_WELL = (*BEGUN, RankEnded(1, 0, 0), RankEnded(1, 1, 0), Gone(1))
CRASHED = (*BEGUN, RankEnded(1, 1, None, 9))

# --- the way up ---------------------------------------------------------------------------


def test_the_first_run_starts_at_once_and_a_first_stop_is_carried_out_at_once():
    reaction = react(READY, Told(run(1)))
    assert reaction.actions == (StartProcesses(run(1), attempt=1),)
    assert reaction.machine.phase is Phase.STARTING
    assert after(*BEGUN).phase is Phase.RUNNING
    stopped = after(Told(stop(1)))
    assert (stopped.phase, stopped.released) == (Phase.STOPPED, True)


def test_spares_for_the_coming_width_are_asked_for_as_soon_as_it_is_known():
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


def test_what_is_expected_to_come_after_a_stop_is_no_part_of_what_it_means():
    told = after(*BEGUN, Told(replace(stop(2), coming=3)))
    reaction = react(told, Told(replace(stop(2), coming=4)))
    assert (reaction.refused, reaction.actions, reaction.machine) == (None, (), told)


# --- the way down -------------------------------------------------------------------------


def test_a_stop_follows_the_sequence_checkpoint_terminate_kill():
    told = (*BEGUN, Told(stop(2)))
    assert done(*told) == [Checkpoint, ArmTimer]
    assert done(*told, CheckpointDone(1)) == [Terminate, ArmTimer]
    assert done(*told, CheckpointDone(1), GraceOver(1)) == [Kill, ArmTimer]
    ended = after(*told, CheckpointDone(1), GraceOver(1), Gone(1))
    assert (ended.phase, ended.released, ended.saving) == (Phase.STOPPED, True, Saving.CONFIRMED)
    cannot_save = Machine(INCARNATION, Limits(saves=False))
    assert done(*told, machine=cannot_save) == [Terminate, ArmTimer]


def test_a_stop_without_a_checkpoint_ends_one_that_is_under_way():
    told = (*BEGUN, Told(stop(2)), Told(stop(3, checkpoint=False)))
    assert done(*told) == [Terminate, ArmTimer]


FOLLOWER = Machine(INCARNATION, Limits(saves=True, leader_saves=True))
FOLLOWING = (Told(as_follower(run(1))), Started(1), Told(stop(2)))


def test_a_container_without_the_leader_waits_and_asks_nobody():
    last = react(after(*FOLLOWING[:-1], machine=FOLLOWER), FOLLOWING[-1])
    # The leader may take all of its time, and its grace, before it is known to be done.
    assert last.actions == (ArmTimer(CheckpointTimedOut(1), 70.0),)
    assert last.machine.phase is Phase.CHECKPOINTING
    # In the leader's own container it is asked for as ever.
    assert done(*BEGUN, Told(stop(2)), machine=FOLLOWER) == [Checkpoint, ArmTimer]


def test_it_ends_when_it_is_told_or_has_lost_its_peers_and_at_last_by_itself():
    for event in (Told(stop(2, checkpoint=False)), CheckpointTimedOut(1), RankEnded(1, 2, None, 6)):
        assert done(*FOLLOWING, event, machine=FOLLOWER) == [Terminate, ArmTimer]
        ended = after(*FOLLOWING, event, Gone(1), machine=FOLLOWER)
        # It had nothing to save, so that nothing failed.
        assert (ended.phase, ended.saving, ended.problems) == (Phase.STOPPED, Saving.NONE, ())


def test_a_checkpoint_that_does_not_come_holds_nothing_up():
    for event, saving, problem in (
        (CheckpointFailed(1, PROBLEM), Saving.FAILED, "CommandNotFound"),
        (CheckpointTimedOut(1), Saving.TIMED_OUT, "CheckpointTimedOut"),
    ):
        told = (*BEGUN, Told(stop(2)), event)
        assert done(*told) == [Terminate, ArmTimer]
        assert after(*told).saving is saving
        assert [each.name for each in after(*told, Gone(1)).problems] == [problem]


def test_a_checkpoint_confirmed_during_the_grace_counts():
    told = (*BEGUN, Told(stop(2)), CheckpointTimedOut(1), CheckpointDone(1), Gone(1))
    assert (after(*told).saving, after(*told).problems) == (Saving.CONFIRMED, ())


def test_ending_before_the_checkpoint_is_confirmed_is_told():
    ends = (RankEnded(1, 0, 0), RankEnded(1, 1, 0))
    machine = after(*BEGUN, Told(stop(2)), *ends, Gone(1))
    assert machine.saving is Saving.FAILED
    assert [problem.name for problem in machine.problems] == ["CheckpointNotConfirmed"]


def test_what_does_not_die_is_killed_again_and_told_of():
    told = (*BEGUN, Told(stop(2, checkpoint=False)), GraceOver(1), StillThere(1))
    assert done(*told) == [Kill, ArmTimer]
    assert [problem.name for problem in after(*told).problems] == ["ProcessesDoNotEnd"]
    assert not after(*told).released
    assert after(*told, Gone(1)).problems == ()


def test_what_is_in_the_way_of_the_proof_is_told_instead_of_processes():
    problem = Problem("GPUMemoryNotReleased", "GPU-0 holds more", "look")
    told = (*BEGUN, Told(stop(2, checkpoint=False)), GraceOver(1))
    assert after(*told, Lingering(1, problem)).problems == ()
    assert after(*told, Lingering(1, problem), StillThere(1)).problems == (problem,)
    assert [one.name for one in after(*told, StillThere(1)).problems] == ["ProcessesDoNotEnd"]
    assert after(*told, Lingering(1, problem), StillThere(1), Gone(1)).problems == ()


# --- a newer declaration ------------------------------------------------------------------


def test_a_stop_can_be_hurried_in_its_own_generation():
    told, hurried = stop(2), stop(2, checkpoint=False)
    assert done(*BEGUN, Told(told), Told(hurried)) == [Terminate, ArmTimer]
    machine = after(*BEGUN, Told(told), Told(hurried))
    # The first trigger may come late, or be said by a leader who knew of no other.
    assert react(machine, Told(told)) == (machine, (), None, None)
    stamped = react(machine, Told(stop(2, epoch=2)))
    assert (stamped.machine.target, stamped.machine.phase) == (stop(2, epoch=2), Phase.STOPPING)
    assert stamped.actions == ()


def test_a_stamp_does_not_make_a_crash_into_a_restart():
    machine = after(*BEGUN, Told(run(1, epoch=2)), RankEnded(1, 0, 1), Gone(1))
    assert machine.phase is Phase.FAILED


def test_another_epoch_with_another_meaning_is_a_change():
    assert done(*BEGUN, Told(run(1, epoch=2, gpus=1))) == [Checkpoint, ArmTimer, Prepare]
    assert react(after(*BEGUN), Told(run(1, gpus=1))).refused is Refused.CONFLICT


def test_the_same_in_other_words_changes_nothing():
    machine = after(*BEGUN)
    other_words = replace(run(1), reason="told differently")
    assert react(machine, Told(other_words)) == (machine, (), None, None)


def test_the_first_installation_that_commands_is_the_only_one_that_is_obeyed():
    machine = after(Told(run(1)), Told(replace(run(2), installation="ours")))
    assert machine.installation == "ours"
    foreign = replace(run(3, epoch=2**53 - 1), installation="theirs")
    assert react(machine, Told(foreign)).refused is Refused.OTHER_INSTALLATION
    # A controller that was set back to a version of before names none.
    assert react(machine, Told(run(3))).refused is None


def test_an_installation_that_names_itself_later_disturbs_nothing():
    named = replace(run(1, epoch=2), installation="ours")
    assert done(*BEGUN, Told(named)) == []
    machine = after(*BEGUN, Told(named))
    assert machine.target is not None
    assert (machine.installation, machine.target.installation) == ("ours", "ours")


# --- ends ---------------------------------------------------------------------------------


def test_one_rank_that_ends_badly_takes_the_others_with_it_and_one_that_ends_well_does_not():
    assert done(*BEGUN, RankEnded(1, 0, 0)) == []
    assert after(*ENDED_WELL[:-1]).phase is Phase.STOPPING
    assert after(*ENDED_WELL).phase is Phase.EXITED
    assert done(*CRASHED) == [Terminate, ArmTimer]
    assert after(*CRASHED).held == ("0", "1")
    machine = after(*CRASHED, RankEnded(1, 0, None, 15), Gone(1))
    assert (machine.phase, machine.held) == (Phase.FAILED, ())
    [problem] = machine.problems
    assert problem.message == "the process of rank 1 ended with signal 9"


def test_a_start_that_fails_is_cleaned_up_before_it_has_failed():
    told = (Told(run(1)), StartFailed(1, PROBLEM))
    assert done(*told) == [Terminate, ArmTimer]
    assert after(*told).held == ("0", "1")
    machine = after(*told, Gone(1))
    assert (machine.phase, machine.problems) == (Phase.FAILED, (PROBLEM,))


def test_a_stop_does_not_forget_how_the_training_ended():
    assert after(*ENDED_WELL, Told(stop(2))).phase is Phase.EXITED
    assert after(*CRASHED, Gone(1), Told(stop(2))).phase is Phase.FAILED


def test_a_crash_is_told_even_where_the_stop_came_first_to_its_end():
    machine = after(*CRASHED, Told(stop(2)), Gone(1))
    assert machine.phase is Phase.STOPPED
    assert [problem.name for problem in machine.problems] == ["TrainingFailed"]


# --- leaving ------------------------------------------------------------------------------


def test_an_interrupt_ends_the_training_in_order_and_then_the_sidecar():
    assert done(*BEGUN, Interrupted()) == [Checkpoint, ArmTimer]
    machine = after(*BEGUN, Interrupted(), CheckpointDone(1), RankEnded(1, 0, None, 15))
    assert react(machine, Gone(1)).actions == (Leave(143),)


def test_leaving_can_be_cancelled_until_it_is_done():
    told = (*BEGUN, Told(stop(2, leave=True)), CheckpointDone(1), Told(run(3)))
    assert react(after(*told), Gone(1)).actions == (StartProcesses(run(3), attempt=2),)
    left = after(*BEGUN, Told(stop(2, leave=True)), CheckpointDone(1), Gone(1))
    assert react(left, Told(run(3))).refused is Refused.LEAVING


def test_the_sidecar_ends_with_the_status_of_the_training():
    one_failed = (*BEGUN, RankEnded(1, 1, 3), RankEnded(1, 0, None, 15), Gone(1))
    for events, status in (
        ((), 0),
        (ENDED_WELL, 0),
        (one_failed, 3),
        ((*CRASHED, Gone(1)), 137),
        ((Told(run(1)), StartFailed(1, PROBLEM), Gone(1)), 127),
    ):
        assert react(after(*events), Interrupted()).actions == (Leave(status),), events


def test_a_container_that_was_told_to_leave_is_not_started_again():
    """A kubelet starts it again where it ends with anything but 0; the log ends with its pod then."""
    leave = Told(stop(2, leave=True))
    for events in (
        (*BEGUN, leave, CheckpointDone(1), RankEnded(1, 0, None, 15)),
        (*CRASHED, leave),
    ):
        assert react(after(*events), Gone(1)).actions == (Leave(0),)


# --- the table as a whole -----------------------------------------------------------------


def test_nothing_is_started_but_where_nothing_lives_or_with_the_proof():
    for phase, rows in TABLE.items():
        for trigger, row in rows.items():
            if Verb.START in row.verbs:
                assert phase in QUIET or trigger is Trigger.GONE_TO_RUN


def test_a_quiet_phase_is_entered_by_the_proof_alone():
    for phase, rows in TABLE.items():
        for trigger, row in rows.items():
            if phase not in QUIET and row.phase in QUIET:
                assert trigger.name.startswith("GONE_")


# --- an end during a change ---------------------------------------------------------------


def knowing(number: int, ended: int | None) -> Told:
    """A run of a controller that says which end it has seen."""
    return Told(replace(run(number), ended=ended))


ENDS = (RankEnded(1, 0, 0), RankEnded(1, 1, 0))
CHANGES = {
    "the request came before the end": (*BEGUN, knowing(2, 0), *ENDS),
    "the request found no process": (*BEGUN, knowing(2, 0), *ENDS, CheckpointFailed(1, PROBLEM)),
    "the run came before the proof": (*BEGUN, *ENDS, knowing(2, 0)),
    "one rank ended before the request": (*BEGUN, ENDS[0], knowing(2, 0), ENDS[1]),
}


def test_a_training_that_ended_well_during_a_change_is_not_started_again():
    for name, events in CHANGES.items():
        ended = after(*events, Gone(1))
        assert ended.phase is Phase.EXITED, name
        assert done(*events, Gone(1)) == [], name


def test_a_run_that_was_sent_before_the_end_was_seen_starts_nothing_and_the_next_one_does():
    late = after(*ENDED_WELL, knowing(2, 0))
    assert late.phase is Phase.EXITED
    assert react(late, knowing(3, 1)).machine.phase is Phase.STARTING
    # The author of the run that waits may hear of the end later, too.
    assert react(late, knowing(2, 1)).machine.phase is Phase.STARTING


def test_a_controller_that_knows_of_no_ends_is_obeyed_as_before():
    assert after(*BEGUN, Told(run(2)), *ENDS, Gone(1)).phase is Phase.STARTING
    assert after(*ENDED_WELL, Told(run(2))).phase is Phase.STARTING


def test_a_stop_or_a_leave_during_the_end_shows_that_the_training_ended_well():
    for leaves in (False, True):
        told = Told(replace(stop(2), leave=leaves))
        events = (*BEGUN, told, *ENDS, Gone(1))
        assert after(*events).phase is Phase.EXITED
        assert done(*events) == ([Leave] if leaves else [])


def test_a_training_that_exits_because_it_has_saved_itself_is_started_again():
    """By its end it confirms the checkpoint, as with ``confirm: exit``."""
    saved = (*BEGUN, knowing(2, 0), *ENDS, CheckpointDone(1), Gone(1))
    assert after(*saved).phase is Phase.STARTING


def test_a_training_that_is_terminated_and_exits_well_is_started_again():
    events = (*BEGUN, knowing(2, 0), CheckpointTimedOut(1), *ENDS, Gone(1))
    assert after(*events).phase is Phase.STARTING


def test_a_training_that_failed_in_a_rank_during_a_change_is_not_done():
    events = (*BEGUN, knowing(2, 0), RankEnded(1, 0, 0), RankEnded(1, 1, 3), Gone(1))
    assert after(*events).phase is Phase.STARTING
