"""A checkpoint is tried while the training continues, and the result is reported."""

from dataclasses import replace

import pytest

from dljob_sidecar.agent import limits_of
from dljob_sidecar.behaviour.events import (
    ArmTimer,
    Checkpoint,
    CheckpointDone,
    CheckpointFailed,
    CheckpointTimedOut,
    GiveUpCheckpoint,
    Gone,
    RankEnded,
    Started,
    Terminate,
    Told,
)
from dljob_sidecar.behaviour.machine import Limits, Machine, Reaction, react
from dljob_sidecar.checkpoints.recognizing.shapes import UNKNOWN_SECONDS
from dljob_wire.checkpoints import Checkpoint as Way
from dljob_wire.checkpoints import Confirmation
from dljob_wire.messages import Phase, Post, Problem, Refused, Trial
from dljob_wire.messages import Saving as Saved
from dljob_wire.training import Training
from tests.sidecar.clients import live_through
from tests.sidecar.fakes import Container
from tests.sidecar.targets import INCARNATION, as_follower, run, stop

LIMITS = Limits(saves=True, tries=True, checkpoint_seconds=7.0)
READY = Machine(INCARNATION, LIMITS)
PROBLEM = Problem("CheckpointFailed", "no training process runs")


def follow(*events, machine=READY) -> Reaction:
    """Return the reaction to the last of these events."""
    reaction = Reaction(machine)
    for event in events:
        reaction = react(reaction.machine, event)
    return reaction


RUNNING = (Told(run(1)), Started(1))
TRYING = (*RUNNING, Told(run(1, trial=1)))


def test_trial_asks_and_training_continues():
    asked = follow(*TRYING)
    assert asked.actions == (Checkpoint(is_trial=True), ArmTimer(CheckpointTimedOut(1), 7.0))
    assert (asked.machine.phase, asked.machine.trial) == (Phase.RUNNING, Trial(1))
    done = react(asked.machine, CheckpointDone(1))
    assert done.actions == ()
    assert done.machine.trial == Trial(1, Saved.CONFIRMED)
    assert done.machine.run == done.machine.target == run(1, trial=1)


def test_repeated_trial_asks_nothing():
    machine = follow(*TRYING).machine
    for late in (run(1, trial=1), run(1), run(1, trial=1, epoch=2)):
        reaction = react(machine, Told(late))
        assert reaction.actions == ()
        assert reaction.machine.target == replace(late, trial=1)


def test_next_trial_follows_the_former():
    machine = follow(*TRYING, Told(run(1, trial=2))).machine
    assert machine.trial.number == 1
    again = react(machine, CheckpointDone(1))
    assert again.actions[0] == Checkpoint(is_trial=True)
    assert again.machine.trial == Trial(2)


def test_unconfirmed_trial_has_its_reason():
    for event, saving, why, actions in (
        (CheckpointFailed(1, PROBLEM), Saved.FAILED, PROBLEM.message, ()),
        (
            CheckpointTimedOut(1),
            Saved.TIMED_OUT,
            "it was not confirmed in 7 s",
            (GiveUpCheckpoint(),),
        ),
    ):
        reaction = follow(*TRYING, event)
        assert reaction.machine.phase is Phase.RUNNING
        assert reaction.machine.trial == Trial(1, saving, message=why)
        assert (reaction.machine.problems, reaction.actions) == ((), actions)


@pytest.mark.parametrize("target", [run(2), stop(2)])
def test_change_takes_over_a_trial(target):
    taken = follow(*TRYING, Told(target))
    assert taken.machine.phase is Phase.CHECKPOINTING
    assert Checkpoint not in map(type, taken.actions)
    assert ArmTimer(CheckpointTimedOut(1), 7.0) in taken.actions
    saved = react(taken.machine, CheckpointDone(1))
    assert saved.machine.saving is Saved.CONFIRMED
    assert saved.machine.trial.saving is Saved.CONFIRMED
    assert saved.actions[0] == Terminate()
    # The next start has no trial.
    assert react(saved.machine, Gone(1)).machine.trial.number == (0 if target == run(2) else 1)


@pytest.mark.parametrize("code", [0, 3])
def test_training_that_ends_by_its_trial_is_reported(code):
    ended = follow(*TRYING, RankEnded(1, 0, code), RankEnded(1, 1, code))
    assert ended.machine.phase is Phase.STOPPING
    gone = react(ended.machine, Gone(1)).machine
    assert (gone.trial.saving, gone.trial.ended) == (Saved.FAILED, True)
    confirmed = follow(*TRYING, RankEnded(1, 0, code), CheckpointDone(1)).machine
    assert (confirmed.trial.saving, confirmed.trial.ended) == (Saved.CONFIRMED, True)


def test_impossible_trial_is_skipped():
    for limits, target in (
        (Limits(saves=True), run(1)),  # It ends when it saves itself.
        (replace(LIMITS, leader_saves=True), as_follower(run(1))),
    ):
        trying = replace(target, trial=1)
        events = (Told(target), Started(1), Told(trying))
        reaction = follow(*events, machine=Machine(INCARNATION, limits))
        assert (reaction.actions, reaction.machine.trial) == ((), Trial())
        assert reaction.machine.target == trying


def test_trial_with_another_content_is_refused():
    assert follow(*RUNNING, Told(run(1, trial=1, batch_size=9))).refused is Refused.CONFLICT
    # A trial that is declared with its start begins when all ranks run.
    assert follow(Told(run(1, trial=3)), Started(1)).machine.trial == Trial(3)


def test_training_that_saves_by_ending_is_not_tried():
    for saving, goes_on in (
        (Way(), False),
        (Way(signal="SIGUSR1"), False),
        (Way(signal="SIGUSR1", confirm=Confirmation.FILE, path="/c"), True),
        (Way(signal="SIGTERM", confirm=Confirmation.FILE, path="/c"), False),
        (Way(http=":1/save", confirm=Confirmation.LOG), True),
        (Way(command=("save",)), True),
    ):
        assert limits_of(Training(command=("true",), checkpoint=saving)).tries is goes_on, saving


def tell(story):
    """Play a trial with an agent; ``story`` has the events after the request."""

    async def play():
        container = Container(tries=True)
        agent, below = container.agent, container.supervisor
        agent.declare(run(1))
        agent.happen(below.started())
        agent.post(Post(iteration=40))
        assert agent.state().trial == Trial()
        agent.declare(run(1, trial=1))
        assert below.demanded == ["start 1", "checkpoint and go on"]
        story(agent, below)
        return agent.state().trial

    return live_through(play())


def test_trial_reports_iteration_and_progress():
    def story(agent, below):
        agent.post(Post(iteration=44))
        agent.happen(below.saved())
        trial = agent.state().trial
        assert (trial.saving, trial.iteration, trial.went_on) == (Saved.CONFIRMED, 40, False)
        agent.post(Post(iteration=45))

    trial = tell(story)
    assert (trial.iteration, trial.went_on, trial.ended) == (40, True, False)


def test_training_that_ends_after_saving_is_reported():
    def end(agent, below):
        agent.happen(below.saved())
        agent.happen(below.ended(0))
        agent.happen(below.ended(1))

    def end_later(agent, below):
        agent.happen(below.saved())
        agent.post(Post(iteration=41))
        agent.happen(below.ended(0))

    def end_unasked(agent, below):
        agent.happen(CheckpointFailed(below.attempt, PROBLEM))
        agent.happen(below.ended(0, code=3))

    def end_stopped(agent, below):
        agent.happen(below.saved())
        agent.declare(stop(2))
        agent.happen(below.ended(0))
        agent.happen(below.ended(1))

    assert tell(end).ended
    for story in (end_later, end_unasked, end_stopped):
        assert not tell(story).ended, story


@pytest.fixture
def job(make_job):
    """A training whose checkpoint was tried, and the result."""

    def begin(**options):
        training = make_job("several", **options)
        target = training.change().target
        assert training.sidecar.declare(replace(target, trial=1)).status == 200
        state = training.sidecar.wait_for(
            lambda state: (
                state.trial and state.trial.saving is not Saved.NONE and state.trial.went_on
            )
        )
        assert (state.phase, state.held_generation) == (Phase.RUNNING, 1)
        assert training.read("trains") == ["1"], "it was started once"
        return training, state.trial

    return begin


@pytest.mark.processes
@pytest.mark.story
def test_working_checkpoint_is_confirmed_in_a_trial(job):
    training, trial = job(gap=0.05)
    assert (trial.number, trial.saving, trial.ended) == (1, Saved.CONFIRMED, False)
    assert len(list(training.path.glob("step-*"))) == 1
    # The next change asks for another checkpoint.
    training.reshape()
    assert len(list(training.path.glob("step-*"))) == 2


@pytest.mark.processes
def test_change_waits_for_files_written_after_the_trial(job):
    training, trial = job(gap=UNKNOWN_SECONDS + 1.0)
    assert trial.saving is Saved.CONFIRMED
    assert training.reshape().change.saving is Saved.CONFIRMED
    assert not training.torn(), training.tell()
