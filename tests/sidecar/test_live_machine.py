"""The laws of live changes in the machine; test_machine_interleavings.py tests them together."""

from dataclasses import replace

import pytest

from dljob_sidecar.behaviour.events import (
    ArmTimer,
    Awaited,
    Capable,
    Changed,
    ChangeFailed,
    ChangeLive,
    ChangeRefused,
    ChangeTimedOut,
    Checkpoint,
    CheckpointDone,
    Event,
    Gathered,
    Gone,
    Interrupted,
    NotWithdrawn,
    RankEnded,
    Started,
    StartProcesses,
    Terminate,
    Told,
    TryLive,
    Withdraw,
    Withdrawn,
)
from dljob_sidecar.behaviour.machine import Limits, Machine, Reaction, react
from dljob_sidecar.behaviour.membership import Difference, find_difference, is_in_name_only
from dljob_wire.messages import Live, LiveChange, LiveTrial, Peer, Phase, Refused
from tests.sidecar.targets import INCARNATION, as_follower, live_run, run, stop

READY = Machine(INCARNATION, Limits(saves=True, tries=True, live_seconds=30.0))
FIRST = run(1)
CAPABLE = (Told(FIRST), Started(1), Capable(1, 2))
SMALLER, LARGER = live_run(FIRST, 3, keep=(1,)), live_run(FIRST, 3, keep=(0, 1), joins=2)


def follow(*events: Event, machine: Machine = READY) -> Reaction:
    reaction = Reaction(machine)
    for event in events:
        reaction = react(reaction.machine, event)
    return reaction


def test_live_run_changes_the_members():
    begun = follow(*CAPABLE, Told(LARGER))
    assert begun.actions == (ChangeLive(FIRST, LARGER), ArmTimer(ChangeTimedOut(1), 300.0))
    assert begun.machine.phase is Phase.CHANGING
    assert begun.machine.held == ("0", "1", "2", "3")
    gathered = react(begun.machine, Gathered(1))
    assert gathered.actions == (ArmTimer(ChangeTimedOut(1), 30.0),)
    done = react(gathered.machine, Changed(1, 0.05, 77)).machine
    assert (done.phase, done.run, done.attempt, done.capable) == (Phase.RUNNING, LARGER, 1, 4)
    assert done.live_change == LiveChange(3, 50.0, 77)
    # The ranks in reports are those of the new members.
    assert react(done, RankEnded(1, 3, 1)).machine.phase is Phase.STOPPING


def test_gpus_of_both_sides_are_held_until_the_proof():
    changing = follow(*CAPABLE, Told(SMALLER), Gathered(1)).machine
    assert changing.held == ("0", "1")
    failed = react(changing, ChangeFailed(1, "it was drawn")).machine
    assert (failed.phase, failed.held) == (Phase.STOPPING, ("0", "1"))
    assert react(changing, Changed(1)).machine.held == ("1",)


@pytest.mark.parametrize(
    ("events", "target"),
    [
        ((Told(FIRST), Started(1)), SMALLER),  # It has not registered.
        ((*CAPABLE, RankEnded(1, 0, 0)), SMALLER),
        (CAPABLE, replace(SMALLER, live=Live(0, (1,)))),
        (CAPABLE, replace(SMALLER, gpus=("0",))),  # The process that stays has another GPU.
        (
            CAPABLE,
            replace(LARGER, live=Live(1, (-1, 1, -1, 0))),
        ),  # One joins on a GPU that is in use.
        (CAPABLE, replace(SMALLER, live=None)),
    ],
)
def test_run_that_does_not_fit_is_a_restart(events, target):
    assert follow(*events, Told(target)).machine.phase is Phase.CHECKPOINTING


def test_way_to_a_run_is_no_part_of_it():
    changed = follow(*CAPABLE, Told(SMALLER), Gathered(1), Changed(1)).machine
    for same in (replace(SMALLER, live=None), replace(SMALLER, epoch=2, live=Live(1, (0,)))):
        reaction = react(changed, Told(same))
        assert (reaction.refused, reaction.actions) == (None, ())
        assert reaction.machine.phase is Phase.RUNNING


def test_newer_declaration_withdraws_and_wins():
    newer = live_run(FIRST, 5, keep=(0,))
    told = follow(*CAPABLE, Told(LARGER), Told(newer))
    assert told.actions == (Withdraw(), ArmTimer(ChangeTimedOut(1), 30.0))
    withdrawn = react(told.machine, Withdrawn(1))
    assert withdrawn.actions[0] == ChangeLive(FIRST, newer)


def test_newer_declaration_starts_from_the_members_of_a_change_that_cannot_be_withdrawn():
    newer = live_run(FIRST, 5, keep=(1,), joins=1)
    late = follow(*CAPABLE, Told(SMALLER), Told(newer), NotWithdrawn(1))
    changed = react(late.machine, Changed(1))
    rebased = replace(newer, live=Live(3, (0, -1)))
    assert changed.actions[0] == ChangeLive(SMALLER, rebased)
    assert react(changed.machine, Told(newer)).actions == ()
    # None of its processes is left.
    other = live_run(FIRST, 5, keep=(0,))
    late = follow(*CAPABLE, Told(SMALLER), Told(other), NotWithdrawn(1))
    assert react(late.machine, Changed(1)).machine.phase is Phase.CHECKPOINTING


def test_stop_without_a_checkpoint_does_not_wait():
    assert follow(*CAPABLE, Told(LARGER), Told(stop(4, checkpoint=False))).actions[0] == Terminate()
    assert follow(*CAPABLE, Told(LARGER), Interrupted()).actions[0] == Withdraw()


def test_repeat_changes_nothing_and_an_interrupt_refuses_the_next():
    changing = follow(*CAPABLE, Told(LARGER)).machine
    assert react(changing, Told(LARGER)) == (changing, (), None, None)
    interrupted = follow(Interrupted(), Told(stop(5)), machine=changing)
    assert interrupted.refused is Refused.LEAVING
    assert interrupted.machine.phase is Phase.CHANGING
    # It saves itself once the change was taken back.
    assert react(interrupted.machine, Withdrawn(1)).actions[0] == Checkpoint()


def test_trial_that_cannot_begin_costs_nothing():
    trying = (*CAPABLE, Told(replace(FIRST, live_trial=1)))
    refused = follow(*trying, ChangeRefused(1, "no space left"))
    assert refused.actions == ()
    trial = refused.machine.live_trial
    assert (trial.succeeded, trial.ended, trial.message) == (False, False, "no space left")


def test_change_that_is_refused_falls_back_with_a_checkpoint_once():
    refused = follow(*CAPABLE, Told(LARGER), ChangeRefused(1, "rank 2 ended"))
    assert refused.actions[0] == Withdraw()
    back = react(refused.machine, Withdrawn(1))
    assert back.actions[0] == Checkpoint()
    assert back.machine.live_change == LiveChange(3, message="rank 2 ended")
    gone = follow(CheckpointDone(1), Gone(1), machine=back.machine)
    assert gone.actions == (StartProcesses(LARGER, 2),)
    assert gone.machine.live_change == back.machine.live_change
    assert gone.machine.failure is None


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (ChangeFailed(1, "rank 0: RuntimeError"), "rank 0: RuntimeError"),
        (RankEnded(1, 0, None, 9), "the process of rank 0 ended with signal 9"),
        (ChangeTimedOut(1), "it took longer than liveSeconds (30 s); it waited for rank 1"),
    ],
)
def test_failed_change_ends_in_one_restart(event, why):
    failed = follow(*CAPABLE, Told(SMALLER), Gathered(1), Awaited(1, "rank 1"), event)
    assert failed.actions[0] == Terminate()
    gone = react(failed.machine, Gone(1))
    assert gone.actions == (StartProcesses(SMALLER, 2),)
    assert gone.machine.live_change == LiveChange(3, message=why)
    assert (gone.machine.failure, gone.machine.held) == (None, ("1",))


ONLY = replace(LARGER, live=Live(1, (0, 1, -1, -1), only=True))


@pytest.mark.parametrize("events", [(ChangeRefused(1, "why"),), (Gathered(1), ChangeTimedOut(1))])
def test_processes_that_must_not_restart_go_on_as_they_were(events):
    refused = follow(*CAPABLE, Told(ONLY), *events)
    assert refused.actions[0] == Withdraw()
    back = react(refused.machine, Withdrawn(1))
    assert (back.actions, back.machine.phase, back.machine.held) == ((), Phase.RUNNING, FIRST.gpus)
    assert back.machine.has_fallen_back(ONLY)
    assert (back.machine.present, back.machine.target) == (FIRST, ONLY)
    # They are still those of the first start.
    assert react(back.machine, Told(replace(SMALLER, generation=5))).machine.phase is Phase.CHANGING
    assert react(refused.machine, NotWithdrawn(1)).actions[0] == Terminate()


def test_processes_that_must_not_restart_are_not_saved_for_a_run_that_does_not_fit():
    elsewhere = replace(ONLY, live=Live(0, (0, 1, -1, -1), only=True))
    for events in ((Told(FIRST), Started(1)), CAPABLE):
        told = follow(*events, Told(elsewhere))
        assert (told.actions, told.machine.phase) == ((), Phase.RUNNING)
        assert told.machine.live_change == LiveChange(
            3, message="its processes do not fit these members"
        )
    assert follow(Told(FIRST), Told(ONLY)).actions == ()
    # It waits for the trial of a live change, as always.
    begun = follow(Told(FIRST), Told(ONLY), Started(1), machine=READY)
    assert (begun.machine.phase, begun.machine.run) == (Phase.RUNNING, FIRST)


def test_same_processes_under_a_newer_generation_need_not_register():
    again = replace(live_run(FIRST, 3, keep=(0, 1)), rendezvous_port=FIRST.rendezvous_port)
    told = follow(Told(FIRST), Started(1), Told(again))
    assert told.actions[0] == ChangeLive(FIRST, again)
    done = react(told.machine, Changed(1)).machine
    assert (done.run, done.capable, done.live_change) == (again, 0, LiveChange(3))
    # Those of another container leave.
    both = replace(FIRST, world_size=4, peers=(*FIRST.peers, Peer("b", 2)))
    assert not is_in_name_only(both, again)
    larger_batch = replace(again, batch_size=7)
    assert follow(Told(FIRST), Started(1), Told(larger_batch)).machine.phase is Phase.CHECKPOINTING


def test_late_newcomers_are_withdrawn():
    late = follow(*CAPABLE, Told(LARGER), ChangeTimedOut(1))
    assert late.actions[0] == Withdraw()
    assert react(late.machine, ChangeTimedOut(1)).actions[0] == Terminate()


def test_training_that_ends_during_a_change_is_over():
    ends = (RankEnded(1, 0, 0), RankEnded(1, 1, 0))
    target = replace(LARGER, ended=0)
    assert follow(*CAPABLE, Told(target), ends[0]).actions[0] == Withdraw()
    assert follow(*CAPABLE, Told(target), *ends, Gone(1)).machine.phase is Phase.EXITED


def test_trial_waits_for_registered_processes_and_for_a_save():
    trying = replace(FIRST, live_trial=1)
    assert follow(Told(trying), Started(1)).actions == ()
    asked = follow(Told(trying), Started(1), Capable(1, 2))
    assert asked.actions == (TryLive(trying, 1), ArmTimer(ChangeTimedOut(1), 30.0))
    done = react(asked.machine, Changed(1, 0.25)).machine
    assert (done.phase, done.live_trial) == (Phase.RUNNING, LiveTrial(1, True, 0.25))
    saving = follow(
        *CAPABLE, Told(replace(FIRST, trial=1)), Told(replace(FIRST, trial=1, live_trial=1))
    )
    assert saving.actions == ()
    assert react(saving.machine, CheckpointDone(1)).actions[0] == TryLive(
        replace(FIRST, trial=1, live_trial=1), 1
    )


def test_live_change_waits_for_a_trial():
    trying = follow(*CAPABLE, Told(replace(FIRST, live_trial=1)), Told(SMALLER))
    assert (trying.actions, trying.machine.phase) == ((), Phase.RUNNING)
    assert react(trying.machine, Changed(1)).machine.phase is Phase.CHANGING


def test_trial_without_a_common_boundary_costs_nothing():
    trying = follow(*CAPABLE, Told(replace(FIRST, live_trial=1)), ChangeTimedOut(1))
    assert trying.actions[0] == Withdraw()
    withdrawn = react(trying.machine, Withdrawn(1)).machine
    assert (withdrawn.phase, withdrawn.live_trial.succeeded) == (Phase.RUNNING, False)
    stuck = react(trying.machine, NotWithdrawn(1))
    assert (stuck.actions[0], stuck.machine.live_trial.ended) == (Terminate(), True)
    failed = react(stuck.machine, Gone(1)).machine
    assert failed.phase is Phase.FAILED
    assert [one.name for one in failed.problems] == ["LiveChangeFailed"]


# --- several containers -------------------------------------------------------------------

OTHERS = replace(as_follower(run(3)), live=Live(1, (0, 1, -1, -1)))
"""The second container, whose processes join those of the first."""


def test_container_that_only_joins_runs_once_it_has_joined():
    begun = follow(Told(OTHERS))
    assert begun.actions == (StartProcesses(OTHERS, 1, joins=True),)
    joining = react(begun.machine, Started(1))
    assert joining.machine.phase is Phase.CHANGING
    joined = follow(Gathered(1), Changed(1), machine=joining.machine).machine
    assert (joined.phase, joined.run) == (Phase.RUNNING, OTHERS)
    failed = follow(RankEnded(1, 2, 1), Gone(1), machine=joining.machine).machine
    assert failed.phase is Phase.FAILED
    # Nothing here could go on without the others.
    assert react(joining.machine, Told(stop(4))).actions[0] == Terminate()


def test_container_whose_processes_all_leave_is_stopped_as_declared():
    both = as_follower(run(1))
    leaving = replace(stop(3, leave=True), live=Live(1, (0, 1), host="leader", port=20003))
    begun = follow(Told(both), Started(1), Capable(1, 2), Told(leaving))
    assert begun.actions[0] == ChangeLive(both, leaving)
    assert begun.machine.held == both.gpus
    ends = (RankEnded(1, 2, 0), RankEnded(1, 3, 0))
    gone = follow(NotWithdrawn(1), *ends, Gone(1), machine=begun.machine).machine
    assert (gone.phase, gone.has_left) == (Phase.STOPPED, True)


def test_difference_of_a_container():
    assert find_difference(FIRST, LARGER) == Difference({0: 0, 1: 1}, (), (2, 3))
    assert find_difference(FIRST, SMALLER) == Difference({1: 0}, (0,), ())
    # A process would move to this container.
    assert find_difference(FIRST, replace(LARGER, live=Live(1, (0, 5, -1, -1)))) is None
    peers = (Peer("a", 1), Peer("b", 1))
    assert (
        find_difference(FIRST, replace(SMALLER, world_size=2, peers=peers, live=Live(1, (1, 0))))
        is None
    )
