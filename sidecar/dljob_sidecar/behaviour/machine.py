"""
The behaviour of a SideCar: :func:`react` takes a value and an event, and returns the next value and the actions.

The controller declares the desired state, and the SideCar converges to the newest declaration. For
that it must know two things: the newest declaration (the target), and the processes that may still
live (those of the current run, until the proof that none is left). It starts processes of another
run only from phases in which none lives, and only the proof leads into such a phase. So in any order
of events there are never two trainings at once.

A newer declaration replaces the target at any time. If no process lives, the SideCar carries it out.
Otherwise the processes must end first, and the SideCar looks at the target again only after the
proof. So a newer declaration cancels a change under way at each point, and a burst of declarations
costs one stop and one start (the cancelling of CoDDL). Processes that are being stopped may hang,
because they wait for peers that are gone. Therefore each step on the way down has a time limit, and
SIGKILL follows the last one.

Three comparisons come before the table (:func:`why_refused`), because they are the
same in every phase. The SideCar refuses a declaration that is older than the target, and one of the
same term with other contents; only the checkpoint of a stop and the trial of a run may change in the
same term. A repeat changes nothing. A target that differs in its epoch alone is adopted without any
action: in this way a new leader stamps the SideCars that it finds.

If the first process of the whole job saves it, and runs in another container, Checkpointing is a
wait: the SideCar asks no process here, and ends none before the controller reports the checkpoint as
over, unless the ranks have lost their peers or the time is up.

A trial of a checkpoint changes no phase: the training saves, and continues. A change that comes
meanwhile takes the request over, so that the training is asked once. The work since the request may
be lost then, which is no more than the work during a checkpoint of its own.

News from the processes has the number of the attempt that started them. News of an earlier attempt
changes nothing, and neither does an event that the table does not name for a phase.

No code in this package reads a clock, waits, or touches a process; ``dljob_sidecar.agent`` carries out
the actions. :func:`draw` draws the picture in ``docs/protocol.md`` from the table
(:mod:`dljob_sidecar.behaviour.table`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Callable, NamedTuple

from dljob_sidecar.behaviour.events import (
    Action,
    ArmTimer,
    Checkpoint,
    CheckpointDone,
    CheckpointFailed,
    CheckpointTimedOut,
    Event,
    GiveUpCheckpoint,
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
    Unstepped,
)
from dljob_sidecar.behaviour.state import (
    TOO_SLOW,
    UNCONFIRMED,
    Limits,
    Machine,
)
from dljob_sidecar.behaviour.table import TABLE, Trigger, Verb, draw
from dljob_wire.messages import (
    LONGEST_MESSAGE,
    Phase,
    Problem,
    Refused,
    Run,
    Saving,
    Stop,
    Target,
    Trial,
)

__all__ = ["TABLE", "Limits", "Machine", "Reaction", "Trigger", "Verb", "draw", "react"]

# --- the table ----------------------------------------------------------------------------


# --- one step -----------------------------------------------------------------------------


class Reaction(NamedTuple):
    """The result of an event."""

    machine: Machine
    actions: tuple[Action, ...] = ()
    refused: Refused | None = None
    """Why a declaration was not accepted."""
    trigger: Trigger | None = None
    """The trigger of the event; None if the event was refused, repeated or late."""


def why_refused(machine: Machine, target: Target) -> Refused | None:
    # A target for an earlier start of the container does not apply to this one.
    if target.incarnation != machine.incarnation:
        return Refused.OTHER_INCARNATION
    own = machine.installation
    if own and target.installation and own != target.installation:
        return Refused.OTHER_INSTALLATION
    # A SideCar that ends could not prove the end of processes that it starts now.
    if machine.is_interrupted or machine.has_left:
        return Refused.LEAVING
    known = machine.target
    if known is None or target.term > known.term:
        return None
    # A replaced controller may not know that yet, and continues to send targets.
    if target.term < known.term:
        return Refused.OLDER
    is_hurry = is_hurried(target, known) or is_hurried(known, target)
    return None if is_hurry or says_the_same(target, known) else Refused.CONFLICT


def is_hurried(target: Target, known: Target) -> bool:
    """Return whether the target is the same stop without its checkpoint."""
    if not isinstance(target, Stop) or not isinstance(known, Stop):
        return False
    drops_it = known.checkpoint and not target.checkpoint
    return drops_it and says_the_same(replace(target, checkpoint=True), known)


def says_the_same(one: Target, other: Target) -> bool:
    """Compare two targets without leader, reason, next start, trial and known end."""
    other = replace(other, epoch=one.epoch, reason=one.reason)
    if isinstance(one, Stop) and isinstance(other, Stop):
        other = replace(other, coming=one.coming)
    if isinstance(one, Run) and isinstance(other, Run):
        other = replace(other, trial=one.trial, ended=one.ended)
    return one == other


def stamped_by(machine: Machine, target: Target) -> Machine:
    known = machine.target
    assert known is not None
    stamped = replace(known, epoch=target.epoch, installation=machine.installation)
    if isinstance(stamped, Run) and isinstance(target, Run):
        # An earlier message may arrive after the latest, and must not withdraw a trial.
        ends = [end for end in (stamped.ended, target.ended) if end is not None]
        trial = max(stamped.trial, target.trial)
        stamped = replace(stamped, trial=trial, ended=max(ends, default=None))
        if machine.run == known:
            return replace(machine, target=stamped, run=stamped)
    return replace(machine, target=stamped)


def react(machine: Machine, event: Event) -> Reaction:
    """Return the next machine and the actions that the event causes."""
    if isinstance(event, Told):
        return _told(machine, event.target)
    if isinstance(event, Interrupted):
        machine = replace(machine, is_interrupted=True)
        return _step(machine, _trigger_for_change(machine))
    if event.attempt != machine.attempt:
        return Reaction(machine)
    return _NEWS[type(event)](machine, event)


def _told(machine: Machine, target: Target) -> Reaction:
    refused = why_refused(machine, target)
    if refused is not None:
        return Reaction(machine, refused=refused)
    if not machine.installation:
        machine = replace(machine, installation=target.installation)
    known = machine.target
    if known is not None and says_the_same(target, known):
        return _try(_start_again(stamped_by(machine, target)))
    if known is not None and is_hurried(known, target):
        # A new leader has not asked to hurry, so drop that request.
        return Reaction(replace(machine, target=target) if target.epoch > known.epoch else machine)
    machine = replace(machine, target=target)
    if not machine.may_start:
        # Do not start: the author of this run may not know that the training has ended.
        return Reaction(machine)
    reaction = _step(machine, _trigger_for_change(machine))
    coming = target.processes if isinstance(target, Run) else target.coming
    if machine.released or not coming or machine.is_leaving:
        return reaction
    # Prepare the spares last, because saving the running training has priority.
    return reaction._replace(actions=(*reaction.actions, Prepare(coming)))


def _start_again(machine: Machine) -> Reaction:
    """Start the run that waits after a successful end once its author has seen that end."""
    waits = machine.phase is Phase.EXITED and machine.target != machine.run
    if waits and machine.may_start and isinstance(machine.target, Run) and not machine.is_leaving:
        return _step(machine, Trigger.RUN)
    return Reaction(machine)


def _try(reaction: Reaction) -> Reaction:
    """Request a trial checkpoint if the target declares one that was not made yet."""
    machine = reaction.machine
    if machine.phase is not Phase.RUNNING or not machine.limits.tries or machine.follows:
        return reaction
    if not isinstance(machine.target, Run) or machine.target != machine.run or machine.is_leaving:
        return reaction
    if machine.target.trial <= machine.trial.number or machine.is_trying or machine.ended:
        return reaction
    tried = _step(reaction.machine, Trigger.TRY)
    actions, trigger = (*reaction.actions, *tried.actions), reaction.trigger or tried.trigger
    return Reaction(tried.machine, actions, trigger=trigger)


def _trigger_for_change(machine: Machine) -> Trigger:
    """Return the trigger for a target that differs from the current state."""
    target = machine.target
    if not machine.released:
        wants_saving = not isinstance(target, Stop) or target.checkpoint
        return Trigger.CHANGE if wants_saving and machine.limits.saves else Trigger.CHANGE_UNSAVED
    if machine.is_leaving:
        return Trigger.LEAVE
    return Trigger.RUN if isinstance(target, Run) else Trigger.STOP


def _trigger_for_gone(machine: Machine) -> Trigger:
    if machine.has_ended_well:
        return Trigger.GONE_WELL_TO_LEAVE if machine.is_leaving else Trigger.GONE_WELL
    if machine.is_leaving:
        return Trigger.GONE_TO_LEAVE
    if isinstance(machine.target, Stop):
        return Trigger.GONE_TO_STOP
    if machine.target != machine.run:
        return Trigger.GONE_TO_RUN
    return Trigger.GONE_WELL if machine.failure is None else Trigger.GONE_BADLY


def _step(machine: Machine, trigger: Trigger) -> Reaction:
    """Look up the row of the trigger and turn its verbs into actions."""
    row = TABLE[machine.phase].get(trigger)
    if row is None:
        return Reaction(machine)
    machine = replace(machine, phase=row.phase)
    actions: tuple[Action, ...] = ()
    for verb in row.verbs:
        machine, more = _VERBS[verb](machine)
        actions += more
    return Reaction(machine, actions, trigger=trigger)


# --- what the verbs do --------------------------------------------------------------------


def _start(machine: Machine) -> tuple[Machine, tuple[Action, ...]]:
    assert isinstance(machine.target, Run)
    attempt = machine.attempt + 1
    started = replace(machine, run=machine.target, attempt=attempt, ended=(), failure=None)
    started = replace(started, culprit=None, is_finished=False, is_unstepped=False, trial=Trial())
    return started, (StartProcesses(machine.target, attempt),)


def _save(machine: Machine) -> tuple[Machine, tuple[Action, ...]]:
    over = CheckpointTimedOut(machine.attempt)
    limits = machine.limits
    if machine.follows:
        # The rank that saves the job is in another container and may need these processes as peers.
        # The controller reports the end of the checkpoint; without a report, wait until the
        # leader's own limits have passed.
        seconds = limits.checkpoint_seconds + limits.grace_seconds
        following = replace(machine, saving=Saving.NONE, saving_problem=None)
        return following, (ArmTimer(over, seconds),)
    saving = replace(machine, saving=None, saving_problem=None)
    armed = ArmTimer(over, limits.checkpoint_seconds)
    # Reuse a request that is already under way.
    return saving, (armed,) if machine.is_trying else (Checkpoint(), armed)


def _begin_trial(machine: Machine) -> tuple[Machine, tuple[Action, ...]]:
    assert isinstance(machine.target, Run)
    over = CheckpointTimedOut(machine.attempt)
    trying = replace(machine, trial=Trial(machine.target.trial))
    return trying, (Checkpoint(is_trial=True), ArmTimer(over, machine.limits.checkpoint_seconds))


def _give_up(machine: Machine) -> tuple[Machine, tuple[Action, ...]]:
    return machine, (GiveUpCheckpoint(),)


def _end(machine: Machine) -> tuple[Machine, tuple[Action, ...]]:
    over = GraceOver(machine.attempt)
    return machine, (Terminate(), ArmTimer(over, machine.limits.grace_seconds))


def _kill(machine: Machine) -> tuple[Machine, tuple[Action, ...]]:
    over = StillThere(machine.attempt)
    return machine, (Kill(), ArmTimer(over, machine.limits.kill_seconds))


def _leave(machine: Machine) -> tuple[Machine, tuple[Action, ...]]:
    return replace(machine, has_left=True), (Leave(machine.exit_status),)


_VERBS: Mapping[Verb, Callable[[Machine], tuple[Machine, tuple[Action, ...]]]] = {
    Verb.START: _start,
    Verb.SAVE: _save,
    Verb.TRY: _begin_trial,
    Verb.GIVE_UP: _give_up,
    Verb.END: _end,
    Verb.KILL: _kill,
    Verb.LEAVE: _leave,
}

# --- what the news says -------------------------------------------------------------------
# Each function notes what is new, and names it in a trigger for the table.


def _started(machine: Machine, _: Started) -> Reaction:
    if machine.phase is Phase.STARTING:
        # Discard the result of the previous attempt's checkpoint.
        machine = replace(machine, saving=Saving.NONE)
    return _try(_step(machine, Trigger.STARTED))


def _start_failed(machine: Machine, event: StartFailed) -> Reaction:
    if machine.phase is Phase.STARTING:
        machine = replace(machine, failure=event.problem)
    return _step(machine, Trigger.START_FAILED)


def _rank_ended(machine: Machine, event: RankEnded) -> Reaction:
    if machine.released or event.rank in {end.rank for end in machine.ended}:
        return Reaction(machine)
    machine = replace(machine, ended=(*machine.ended, event))
    # After STARTING and RUNNING, a failed process is the result of a stop and no failure.
    was_on_its_own = machine.phase in {Phase.STARTING, Phase.RUNNING}
    if was_on_its_own and not event.is_well:
        # Keep the first of several failed processes as the cause.
        culprit = machine.culprit or event
        machine = replace(machine, failure=_failure(culprit), culprit=culprit)
    if was_on_its_own and machine.is_trying:
        machine = replace(machine, trial=replace(machine.trial, ended=True))
    assert machine.run is not None
    if len(machine.ended) == machine.run.processes:
        # A process that ends in STOPPING was terminated or follows a failure.
        is_finished = machine.phase in _UNTOUCHED and all(end.is_well for end in machine.ended)
        machine = replace(machine, is_finished=is_finished)
        return _step(machine, Trigger.ALL_ENDED)
    return _step(machine, Trigger.RANK_ENDED if event.is_well else Trigger.RANK_FAILED)


_UNTOUCHED = frozenset({Phase.STARTING, Phase.RUNNING, Phase.CHECKPOINTING})
"""The phases in which no process was terminated."""


def _failure(event: RankEnded) -> Problem:
    how = f"exit code {event.exit_code}"
    if event.exit_code is None:
        how = f"signal {event.signal}"
    return Problem(
        "TrainingFailed",
        f"the process of rank {event.rank} ended with {how}",
        "look into the log of the training",
    )


def _saved(machine: Machine, _: CheckpointDone) -> Reaction:
    # Accept a checkpoint that is confirmed during the grace period.
    if not machine.released and machine.saving is not Saving.NONE:
        machine = replace(machine, saving=Saving.CONFIRMED, saving_problem=None)
    return _try(_step(_end_trial(machine, Saving.CONFIRMED), Trigger.SAVED))


def _fail(machine: Machine, *, saving: Saving, problem: Problem) -> Machine:
    if machine.is_unstepped:
        return replace(machine, saving=Saving.NONE, saving_problem=None)
    return replace(machine, saving=saving, saving_problem=problem)


def _not_saved(machine: Machine, event: CheckpointFailed) -> Reaction:
    if machine.saving is None:
        machine = _fail(machine, saving=Saving.FAILED, problem=event.problem)
    why = event.problem.message
    return _try(_step(_end_trial(machine, Saving.FAILED, why=why), Trigger.NOT_SAVED))


def _saving_timed_out(machine: Machine, _: CheckpointTimedOut) -> Reaction:
    if machine.phase is Phase.RUNNING and not machine.is_trying:
        return Reaction(machine)  # The timer was armed for a trial that is over.
    if machine.phase is Phase.CHECKPOINTING and not machine.follows:
        machine = _fail(machine, saving=Saving.TIMED_OUT, problem=TOO_SLOW)
    why = f"it was not confirmed in {machine.limits.checkpoint_seconds:g} s"
    machine = _end_trial(machine, Saving.TIMED_OUT, why=why)
    return _try(_step(machine, Trigger.SAVING_TIMED_OUT))


def _end_trial(machine: Machine, saving: Saving, *, why: str = "") -> Machine:
    """Record the result of the current trial, if any."""
    if not machine.is_trying:
        return machine
    if saving is Saving.CONFIRMED:
        machine = replace(machine, saving_problem=None)
    return replace(
        machine, trial=replace(machine.trial, saving=saving, message=why[:LONGEST_MESSAGE])
    )


def _still_there(machine: Machine, _: StillThere) -> Reaction:
    if machine.phase is Phase.STOPPING:
        machine = replace(machine, is_stuck=True)
    return _step(machine, Trigger.STILL_THERE)


def _lingering(machine: Machine, event: Lingering) -> Reaction:
    return Reaction(replace(machine, lingering=event.problem))


def _gone(machine: Machine, _: Gone) -> Reaction:
    # Only STOPPING ends with a proof; a supervisor reports every rank before the proof.
    if machine.phase is not Phase.STOPPING:
        return Reaction(machine)
    machine = replace(machine, is_stuck=False, lingering=None)
    if machine.saving is None:
        machine = _fail(machine, saving=Saving.FAILED, problem=UNCONFIRMED)
    if machine.trial.ended:
        machine = _end_trial(machine, Saving.FAILED, why=UNCONFIRMED.message)
    return _step(machine, _trigger_for_gone(machine))


_NEWS: Mapping[type, Callable[[Machine, Any], Reaction]] = {
    Started: _started,
    StartFailed: _start_failed,
    RankEnded: _rank_ended,
    CheckpointDone: _saved,
    CheckpointFailed: _not_saved,
    Unstepped: lambda machine, _: Reaction(replace(machine, is_unstepped=True)),
    CheckpointTimedOut: _saving_timed_out,
    GraceOver: lambda machine, _: _step(machine, Trigger.GRACE_OVER),
    StillThere: _still_there,
    Lingering: _lingering,
    Gone: _gone,
}

# --- the picture --------------------------------------------------------------------------
