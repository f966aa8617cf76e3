"""
The laws of the machine, one by one. test_machine_interleavings.py tests that they hold together in
every order of events.
"""

import re
from dataclasses import replace
from itertools import product

import pytest

from dlsidecar.behaviour.events import (
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
from dlsidecar.behaviour.machine import Limits, Machine, react
from dlsidecar.behaviour.state import QUIET
from dlsidecar.behaviour.table import TABLE, Verb, Word, draw
from dlwire.messages import Phase, Problem, Refused, Saving
from tests.sidecar.targets import INCARNATION, as_follower, run, stop

PROBLEM = Problem("CommandNotFound", "no such command", "write one that exists")
READY = Machine(INCARNATION, Limits(saves=True))
READY_UNSAVED = Machine(INCARNATION, Limits(saves=False))


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


def test_the_first_run_starts_at_once():
    reaction = react(READY, Told(run(1)))
    assert reaction.actions == (StartProcesses(run(1), attempt=1),)
    assert reaction.machine.phase is Phase.STARTING
    assert after(*BEGUN).phase is Phase.RUNNING


def test_gpus_are_held_from_the_start_until_the_proof():
    assert READY.held == ()
    assert after(Told(run(1))).held == ("0", "1")
    assert after(*CRASHED).held == ("0", "1")
    assert after(*CRASHED, Gone(1)).held == ()


def test_a_stop_before_any_run_is_carried_out_at_once():
    machine = after(Told(stop(1)))
    assert (machine.phase, machine.released) == (Phase.STOPPED, True)


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


def test_a_job_that_cannot_save_itself_is_terminated_at_once():
    assert done(*BEGUN, Told(stop(2)), machine=READY_UNSAVED) == [Terminate, ArmTimer]


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


@pytest.mark.parametrize(
    "event",
    [Told(stop(2, checkpoint=False)), CheckpointTimedOut(1), RankEnded(1, 2, None, 6)],
    ids=lambda event: type(event).__name__,
)
def test_it_ends_when_it_is_told_or_has_lost_its_peers_and_at_last_by_itself(event):
    assert done(*FOLLOWING, event, machine=FOLLOWER) == [Terminate, ArmTimer]
    ended = after(*FOLLOWING, event, Gone(1), machine=FOLLOWER)
    # It had nothing to save, so that nothing failed.
    assert (ended.phase, ended.saving, ended.problems) == (Phase.STOPPED, Saving.NONE, ())


@pytest.mark.parametrize(
    ("event", "saving", "problem"),
    [
        (CheckpointFailed(1, PROBLEM), Saving.FAILED, "CommandNotFound"),
        (CheckpointTimedOut(1), Saving.TIMED_OUT, "CheckpointTimedOut"),
    ],
)
def test_a_checkpoint_that_does_not_come_holds_nothing_up(event, saving, problem):
    told = (*BEGUN, Told(stop(2)), event)
    assert done(*told) == [Terminate, ArmTimer]
    assert after(*told).saving is saving
    assert [problem.name for problem in after(*told, Gone(1)).problems] == [problem]


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

WAYS_DOWN = {
    "starting": (Told(run(1)),),
    "running": BEGUN,
    "checkpointing": (*BEGUN, Told(run(2))),
    "stopping": (*BEGUN, Told(run(2)), CheckpointDone(1)),
    "killing": (*BEGUN, Told(run(2)), CheckpointDone(1), GraceOver(1)),
    "failing": CRASHED,
}


@pytest.mark.parametrize("way", WAYS_DOWN)
def test_the_newest_of_a_burst_is_what_starts_and_it_starts_once(way):
    burst = [Told(run(3)), Told(stop(4)), Told(run(5, gpus=1))]
    machine = after(*WAYS_DOWN[way], *burst, CheckpointDone(1))
    assert machine.attempt == 1
    reaction = react(machine, Gone(1))
    assert reaction.actions == (StartProcesses(run(5, gpus=1), attempt=2),)


@pytest.mark.parametrize("way", WAYS_DOWN)
def test_nothing_starts_before_the_proof(way):
    news: list[Event] = [
        Told(run(9)),
        Started(1),
        RankEnded(1, 0, 0),
        RankEnded(1, 1, 0),
        CheckpointDone(1),
    ]
    machine = after(*WAYS_DOWN[way])
    for event in news:
        reaction = react(machine, event)
        assert not any(isinstance(action, StartProcesses) for action in reaction.actions)
        machine = reaction.machine
    assert machine.held == ("0", "1")


@pytest.mark.parametrize(
    "ended", [ENDED_WELL, (*CRASHED, Gone(1)), (*BEGUN, Told(stop(2)), Gone(1))]
)
def test_a_newer_run_starts_at_once_where_nothing_lives(ended):
    machine = after(*ended)
    machine = machine if machine.released else after(CheckpointDone(1), Gone(1), machine=machine)
    assert react(machine, Told(run(3))).actions == (StartProcesses(run(3), attempt=2),)


@pytest.mark.parametrize("way", WAYS_DOWN)
def test_an_older_one_is_refused_everywhere(way):
    machine = after(*WAYS_DOWN[way], Told(run(7, epoch=2)))
    for older in (run(6, epoch=2), stop(6, epoch=2), run(8, epoch=1)):
        assert react(machine, Told(older)) == (machine, (), Refused.OLDER, None)


@pytest.mark.parametrize("way", WAYS_DOWN)
def test_a_repeat_changes_nothing(way):
    machine = after(*WAYS_DOWN[way])
    assert machine.target is not None
    assert react(machine, Told(machine.target)) == (machine, (), None, None)
    other_words = replace(machine.target, reason="told differently")
    assert react(machine, Told(other_words)) == (machine, (), None, None)


def test_a_stop_can_be_hurried_in_its_own_generation():
    told, hurried = stop(2), stop(2, checkpoint=False)
    assert done(*BEGUN, Told(told), Told(hurried)) == [Terminate, ArmTimer]
    machine = after(*BEGUN, Told(told), Told(hurried))
    # The first word may come late, or be said by a leader who knew of no other.
    assert react(machine, Told(told)) == (machine, (), None, None)
    stamped = react(machine, Told(stop(2, epoch=2)))
    assert (stamped.machine.target, stamped.machine.phase) == (stop(2, epoch=2), Phase.STOPPING)
    assert stamped.actions == ()


def test_a_generation_means_one_thing():
    machine = after(*BEGUN)
    for other in (run(1, gpus=1), stop(1)):
        assert react(machine, Told(other)).refused is Refused.CONFLICT


@pytest.mark.parametrize("way", WAYS_DOWN)
def test_a_new_leader_stamps_what_it_finds_without_touching_it(way):
    machine = after(*WAYS_DOWN[way])
    assert machine.target is not None
    stamped = react(machine, Told(replace(machine.target, epoch=2)))
    assert (stamped.actions, stamped.refused) == ((), None)
    assert stamped.machine.term == (2, machine.term.generation)
    assert stamped.machine.phase is machine.phase
    # The old leader's declarations are older now, and so are its repetitions.
    assert react(stamped.machine, Told(run(99, epoch=1))).refused is Refused.OLDER


def test_a_stamp_does_not_make_a_crash_into_a_restart():
    machine = after(*BEGUN, Told(run(1, epoch=2)), RankEnded(1, 0, 1), Gone(1))
    assert machine.phase is Phase.FAILED


def test_another_epoch_with_another_meaning_is_a_change():
    assert done(*BEGUN, Told(run(1, epoch=2, gpus=1))) == [Checkpoint, ArmTimer, Prepare]


def test_a_command_for_another_start_of_the_container_is_refused():
    meant_for_another = replace(run(1), incarnation="second-start")
    assert react(READY, Told(meant_for_another)).refused is Refused.OTHER_INCARNATION


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


def test_training_that_ends_well_has_exited_once_nothing_is_left():
    assert after(*ENDED_WELL[:-1]).phase is Phase.STOPPING
    assert after(*ENDED_WELL).phase is Phase.EXITED


def test_one_rank_that_ends_badly_takes_the_others_with_it():
    assert done(*CRASHED) == [Terminate, ArmTimer]
    machine = after(*CRASHED, RankEnded(1, 0, None, 15), Gone(1))
    assert machine.phase is Phase.FAILED
    [problem] = machine.problems
    assert problem.message == "the process of rank 1 ended with signal 9"


def test_one_rank_that_ends_well_leaves_the_others_alone():
    assert done(*BEGUN, RankEnded(1, 0, 0)) == []
    assert after(*BEGUN, RankEnded(1, 0, 0)).phase is Phase.RUNNING


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


def test_nothing_is_accepted_after_an_interrupt():
    machine = after(*BEGUN, Interrupted())
    assert react(machine, Told(run(2))).refused is Refused.LEAVING


def test_leaving_can_be_cancelled_until_it_is_done():
    told = (*BEGUN, Told(stop(2, leave=True)), CheckpointDone(1), Told(run(3)))
    assert react(after(*told), Gone(1)).actions == (StartProcesses(run(3), attempt=2),)
    left = after(*BEGUN, Told(stop(2, leave=True)), CheckpointDone(1), Gone(1))
    assert react(left, Told(run(3))).refused is Refused.LEAVING


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ((), 0),
        (ENDED_WELL, 0),
        ((*BEGUN, RankEnded(1, 1, 3), RankEnded(1, 0, None, 15), Gone(1)), 3),
        ((*CRASHED, Gone(1)), 137),
        ((Told(run(1)), StartFailed(1, PROBLEM), Gone(1)), 127),
    ],
)
def test_the_sidecar_ends_with_the_status_of_the_training(events, status):
    assert react(after(*events), Interrupted()).actions == (Leave(status),)


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ((*BEGUN, Told(stop(2, leave=True)), CheckpointDone(1), RankEnded(1, 0, None, 15)), 0),
        ((*CRASHED, Told(stop(2, leave=True))), 0),
    ],
)
def test_a_container_that_was_told_to_leave_is_not_started_again(events, status):
    """A kubelet starts it again where it ends with anything but 0; the log ends with its pod then."""
    assert react(after(*events), Gone(1)).actions == (Leave(status),)


# --- the table as a whole -----------------------------------------------------------------


def every_event() -> list[Event]:
    return [
        Told(run(5)),
        Told(stop(5)),
        Told(stop(5, checkpoint=False)),
        Told(stop(5, leave=True)),
        Interrupted(),
        Started(1),
        StartFailed(1, PROBLEM),
        RankEnded(1, 0, 0),
        RankEnded(1, 1, 1),
        CheckpointDone(1),
        CheckpointFailed(1, PROBLEM),
        CheckpointTimedOut(1),
        GraceOver(1),
        StillThere(1),
        Gone(1),
    ]


EVERY_PHASE = {
    Phase.READY: READY,
    Phase.STARTING: after(Told(run(1))),
    Phase.RUNNING: after(*BEGUN),
    Phase.CHECKPOINTING: after(*BEGUN, Told(stop(2))),
    Phase.STOPPING: after(*CRASHED),
    Phase.STOPPED: after(*BEGUN, Told(stop(2)), CheckpointDone(1), Gone(1)),
    Phase.EXITED: after(*ENDED_WELL),
    Phase.FAILED: after(*CRASHED, Gone(1)),
}


@pytest.mark.parametrize(
    ("phase", "event"),
    list(product(EVERY_PHASE, every_event())),
    ids=lambda part: part.value if isinstance(part, Phase) else type(part).__name__,
)
def test_every_event_can_come_in_every_phase(phase, event):
    machine = EVERY_PHASE[phase]
    assert machine.phase is phase
    reaction = react(machine, event)
    assert reaction.machine.released == (not reaction.machine.held)
    if reaction.word is None and not isinstance(event, Interrupted):
        assert reaction.machine == machine
        assert reaction.actions == ()


@pytest.mark.parametrize("phase", EVERY_PHASE)
def test_news_of_an_earlier_attempt_is_no_news(phase):
    machine = replace(EVERY_PHASE[phase], attempt=7)
    for event in every_event():
        if hasattr(event, "attempt"):
            assert react(machine, event) == (machine, (), None, None)


def test_nothing_is_started_but_where_nothing_lives_or_with_the_proof():
    for phase, rows in TABLE.items():
        for word, row in rows.items():
            if Verb.START in row.verbs:
                assert phase in QUIET or word is Word.GONE_TO_RUN


def test_a_quiet_phase_is_entered_by_the_proof_alone():
    for phase, rows in TABLE.items():
        for word, row in rows.items():
            if phase not in QUIET and row.phase in QUIET:
                assert word.name.startswith("GONE_")


def test_the_picture_names_every_phase():
    drawn = re.findall(r"--> (\w+)", draw())
    assert set(drawn) == {phase.value for phase in Phase}
