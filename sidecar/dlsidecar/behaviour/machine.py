"""
The whole behaviour of a SideCar, as one table of what happens in which phase.

Theory of operation. The controller declares what shall be, and the SideCar converges to the newest
declaration it has seen. For that it needs to know two things: what was declared last (the target),
and which processes may still live (those of the current run, until it is proven that none is left).
Processes of another run are started only from phases in which nothing lives, and such a phase is
entered only by the proof. So whatever overtakes whatever, there are never two trainings at once.

A newer declaration replaces the target at any time. If nothing lives, it is carried out. If
something does, that must end, and on the way there the newest target may change again and again:
only when the proof comes is it looked at. In this way a newer declaration cancels a change under
way at each point of it, and a burst of them costs one stop and one start (the cancelling of CoDDL).
The processes that are being stopped may well hang, because they wait for peers which are gone; so
each step on the way down has a time limit, and after the last one comes SIGKILL.

Three comparisons come before the table, because they are the same in every phase. A declaration
older than the target is refused, and so is one of the same term that says something else; only
that a stop need not wait for a checkpoint, and that a run shall try its checkpoint, can be said of
their terms later, and hold then. A repeat changes nothing. And a target that differs in its epoch alone is adopted without touching anything:
that is how a new leader puts its stamp on what it found.

Where the first process of the whole job saves it, and that is in another container, Checkpointing
is a wait: nobody here is asked, and nobody ends before the controller says that it is over, unless
the ranks themselves have lost their peers or the time is up.

A trial of a checkpoint changes no phase: the training is asked to save itself, and goes on. A change
that comes meanwhile takes the request over, so that the training is asked once. What it did since the
request may be lost then, which is no more than what it does during a checkpoint of its own.

News from the processes carries the number of the attempt at starting them. What belongs to an
earlier attempt has been overtaken and changes nothing, and neither does what the table does not
name for a phase.

Everything that affects the behaviour is in this file, and nothing in it reads a clock, waits, or
touches a process: :func:`react` takes a value (:mod:`dlsidecar.behaviour.state`) and an event, and returns
the next value and what to do. ``dlsidecar.agent`` does it. The picture in ``docs/protocol.md`` is
drawn by :func:`draw`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Callable, NamedTuple

from dlsidecar.behaviour.events import (
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
)
from dlsidecar.behaviour.state import (
    TOO_SLOW,
    UNCONFIRMED,
    Limits,
    Machine,
)
from dlwire.messages import (
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

__all__ = ["TABLE", "Limits", "Machine", "Reaction", "Verb", "Word", "draw", "react"]

# --- the table ----------------------------------------------------------------------------


class Word(Enum):
    """Everything that can happen, told apart as far as it makes a difference."""

    RUN = "told to run"
    STOP = "told to stop"
    LEAVE = "told to leave"
    CHANGE = "told something newer"
    CHANGE_UNSAVED = "told something newer, without a checkpoint"
    TRY = "told to try its checkpoint"
    STARTED = "all started"
    START_FAILED = "a start failed"
    RANK_ENDED = "a rank ended well"
    RANK_FAILED = "a rank ended badly"
    ALL_ENDED = "the last rank ended"
    SAVED = "checkpoint confirmed"
    NOT_SAVED = "checkpoint failed"
    SAVING_TIMED_OUT = "checkpoint too slow"
    GRACE_OVER = "grace is over"
    STILL_THERE = "still not gone"
    GONE_TO_RUN = "all gone, a newer run waits"
    GONE_TO_STOP = "all gone, as declared"
    GONE_TO_LEAVE = "all gone, leaving"
    GONE_WELL = "all gone by themselves"
    GONE_BADLY = "all gone after a failure"


class Verb(Enum):
    """What the table can demand; :func:`react` makes the actions of it."""

    START = "start"
    SAVE = "checkpoint"
    TRY = "checkpoint and go on"
    GIVE_UP = "wait no longer"
    END = "terminate"
    KILL = "kill"
    LEAVE = "leave"


class Row(NamedTuple):
    phase: Phase
    verbs: tuple[Verb, ...] = ()


_START = Row(Phase.STARTING, (Verb.START,))
_END = Row(Phase.STOPPING, (Verb.END,))
_KILL = Row(Phase.STOPPING, (Verb.KILL,))


def _quiet(phase: Phase) -> Mapping[Word, Row]:
    """Make the rows of a phase in which nothing lives; how it went last is not forgotten."""
    stopped = Phase.STOPPED if phase is Phase.READY else phase
    return {
        Word.RUN: _START,
        Word.STOP: Row(stopped),
        Word.LEAVE: Row(stopped, (Verb.LEAVE,)),
    }


TABLE: Mapping[Phase, Mapping[Word, Row]] = MappingProxyType(
    {
        Phase.READY: _quiet(Phase.READY),
        Phase.STARTING: {
            Word.STARTED: Row(Phase.RUNNING),
            Word.START_FAILED: _END,
            Word.RANK_ENDED: Row(Phase.STARTING),
            Word.RANK_FAILED: _END,
            # No supervisor tells of the last end before the start; should one do so, what was left
            # behind has to go, too, before anything can be proven.
            Word.ALL_ENDED: _END,
            # There is nothing yet that would be worth a checkpoint.
            Word.CHANGE: _END,
            Word.CHANGE_UNSAVED: _END,
        },
        Phase.RUNNING: {
            Word.RANK_ENDED: Row(Phase.RUNNING),
            # The others would wait for it for ever, and a checkpoint may need it.
            Word.RANK_FAILED: _END,
            Word.ALL_ENDED: _END,
            Word.TRY: Row(Phase.RUNNING, (Verb.TRY,)),
            Word.SAVED: Row(Phase.RUNNING),
            Word.NOT_SAVED: Row(Phase.RUNNING),
            Word.SAVING_TIMED_OUT: Row(Phase.RUNNING, (Verb.GIVE_UP,)),
            Word.CHANGE: Row(Phase.CHECKPOINTING, (Verb.SAVE,)),
            Word.CHANGE_UNSAVED: _END,
        },
        Phase.CHECKPOINTING: {
            Word.RANK_ENDED: Row(Phase.CHECKPOINTING),
            Word.RANK_FAILED: _END,
            Word.ALL_ENDED: _END,
            Word.SAVED: _END,
            Word.NOT_SAVED: _END,
            Word.SAVING_TIMED_OUT: _END,
            # The checkpoint is needed for the newer one just as well.
            Word.CHANGE: Row(Phase.CHECKPOINTING),
            Word.CHANGE_UNSAVED: _END,
        },
        Phase.STOPPING: {
            Word.STARTED: Row(Phase.STOPPING),
            Word.START_FAILED: Row(Phase.STOPPING),
            Word.RANK_ENDED: Row(Phase.STOPPING),
            Word.RANK_FAILED: Row(Phase.STOPPING),
            Word.ALL_ENDED: Row(Phase.STOPPING),
            Word.SAVED: Row(Phase.STOPPING),
            Word.NOT_SAVED: Row(Phase.STOPPING),
            Word.CHANGE: Row(Phase.STOPPING),
            Word.CHANGE_UNSAVED: Row(Phase.STOPPING),
            Word.GRACE_OVER: _KILL,
            Word.STILL_THERE: _KILL,
            Word.GONE_TO_RUN: _START,
            Word.GONE_TO_STOP: Row(Phase.STOPPED),
            Word.GONE_TO_LEAVE: Row(Phase.STOPPED, (Verb.LEAVE,)),
            Word.GONE_WELL: Row(Phase.EXITED),
            Word.GONE_BADLY: Row(Phase.FAILED),
        },
        Phase.STOPPED: _quiet(Phase.STOPPED),
        Phase.EXITED: _quiet(Phase.EXITED),
        Phase.FAILED: _quiet(Phase.FAILED),
    }
)
"""The whole truth. What is not named changes nothing."""

# --- one step -----------------------------------------------------------------------------


class Reaction(NamedTuple):
    """What an event leads to."""

    machine: Machine
    actions: tuple[Action, ...] = ()
    refused: Refused | None = None
    """Why a declaration was not accepted."""
    word: Word | None = None
    """What the event meant; None if it meant nothing, because it was refused, repeated or late."""


def react(machine: Machine, event: Event) -> Reaction:
    """Return what becomes of the machine, and what has to be done."""
    if isinstance(event, Told):
        return _told(machine, event.target)
    if isinstance(event, Interrupted):
        machine = replace(machine, is_interrupted=True)
        return _step(machine, _word_for_change(machine))
    if event.attempt != machine.attempt:
        return Reaction(machine)
    return _NEWS[type(event)](machine, event)


def _told(machine: Machine, target: Target) -> Reaction:
    refused = _why_refused(machine, target)
    if refused is not None:
        return Reaction(machine, refused=refused)
    if not machine.installation:
        machine = replace(machine, installation=target.installation)
    known = machine.target
    if known is not None and _says_the_same(target, known):
        return _try(Reaction(_stamped(machine, target)))
    if known is not None and _is_hurried(known, target):
        # That it shall hurry has overtaken this; who leads now may have wanted nothing of the kind.
        return Reaction(replace(machine, target=target) if target.epoch > known.epoch else machine)
    machine = replace(machine, target=target)
    reaction = _step(machine, _word_for_change(machine))
    coming = target.processes if isinstance(target, Run) else target.coming
    if machine.released or not coming or machine.is_leaving:
        return reaction
    # Last, because what lives now is to be saved first.
    return reaction._replace(actions=(*reaction.actions, Prepare(coming)))


def _why_refused(machine: Machine, target: Target) -> Refused | None:
    if target.incarnation != machine.incarnation or not _is_of(machine.installation, target):
        is_other_start = target.incarnation != machine.incarnation
        return Refused.OTHER_INCARNATION if is_other_start else Refused.OTHER_INSTALLATION
    if machine.is_interrupted or machine.has_left:
        return Refused.LEAVING
    known = machine.target
    if known is None:
        return None
    if target.term < known.term:
        return Refused.OLDER
    if target.term == known.term and not _may_follow(target, known):
        return Refused.CONFLICT
    return None


def _is_of(installation: str, target: Target) -> bool:
    """Whether a declaration is of this installation; one of before it was named may be of any."""
    return not (installation and target.installation) or installation == target.installation


def _may_follow(target: Target, known: Target) -> bool:
    """Whether two declarations may be of one term, in this order or late."""
    is_hurry = _is_hurried(target, known) or _is_hurried(known, target)
    return is_hurry or _says_the_same(target, known)


def _is_hurried(target: Target, known: Target) -> bool:
    """Whether it is the same stop, but without a checkpoint, or without waiting for one any longer."""
    if not isinstance(target, Stop) or not isinstance(known, Stop):
        return False
    drops_it = known.checkpoint and not target.checkpoint
    return drops_it and _says_the_same(replace(target, checkpoint=True), known)


def _says_the_same(one: Target, other: Target) -> bool:
    """Whether nothing differs but who says it, why, what is to come after it, and what is tried."""
    other = replace(other, epoch=one.epoch, reason=one.reason)
    if isinstance(one, Stop) and isinstance(other, Stop):
        other = replace(other, coming=one.coming)
    if isinstance(one, Run) and isinstance(other, Run):
        other = replace(other, trial=one.trial)
    return one == other


def _stamped(machine: Machine, target: Target) -> Machine:
    known = machine.target
    assert known is not None
    stamped = replace(known, epoch=target.epoch, installation=machine.installation)
    if isinstance(stamped, Run) and isinstance(target, Run):
        # One that was said before the latest may come after it, and takes no trial back.
        stamped = replace(stamped, trial=max(stamped.trial, target.trial))
        if machine.run == known:
            return replace(machine, target=stamped, run=stamped)
    return replace(machine, target=stamped)


def _try(reaction: Reaction) -> Reaction:
    """Have the training save itself and go on as well, where that is declared and not done."""
    if not reaction.machine.has_trial_to_make:
        return reaction
    tried = _step(reaction.machine, Word.TRY)
    actions, word = (*reaction.actions, *tried.actions), reaction.word or tried.word
    return Reaction(tried.machine, actions, word=word)


def _word_for_change(machine: Machine) -> Word:
    """Name the news that the machine shall be something else than it is."""
    target = machine.target
    if not machine.released:
        wants_saving = not isinstance(target, Stop) or target.checkpoint
        return Word.CHANGE if wants_saving and machine.limits.saves else Word.CHANGE_UNSAVED
    if machine.is_leaving:
        return Word.LEAVE
    return Word.RUN if isinstance(target, Run) else Word.STOP


def _word_for_gone(machine: Machine) -> Word:
    if machine.is_leaving:
        return Word.GONE_TO_LEAVE
    if isinstance(machine.target, Stop):
        return Word.GONE_TO_STOP
    if machine.target != machine.run:
        return Word.GONE_TO_RUN
    return Word.GONE_WELL if machine.failure is None else Word.GONE_BADLY


def _step(machine: Machine, word: Word) -> Reaction:
    """Look the word up, and turn the verbs of its row into actions."""
    row = TABLE[machine.phase].get(word)
    if row is None:
        return Reaction(machine)
    machine = replace(machine, phase=row.phase)
    actions: tuple[Action, ...] = ()
    for verb in row.verbs:
        machine, more = _VERBS[verb](machine)
        actions += more
    return Reaction(machine, actions, word=word)


# --- what the verbs do --------------------------------------------------------------------


def _start(machine: Machine) -> tuple[Machine, tuple[Action, ...]]:
    assert isinstance(machine.target, Run)
    attempt = machine.attempt + 1
    started = replace(machine, run=machine.target, attempt=attempt, ended=(), failure=None)
    started = replace(started, culprit=None, trial=Trial())
    return started, (StartProcesses(machine.target, attempt),)


def _save(machine: Machine) -> tuple[Machine, tuple[Action, ...]]:
    over = CheckpointTimedOut(machine.attempt)
    limits = machine.limits
    if machine.follows:
        # Who saves the job is elsewhere, and may need its peers for that. The controller says when
        # it is over; should nobody say so, it is over when the leader must have ended, too.
        seconds = limits.checkpoint_seconds + limits.grace_seconds
        following = replace(machine, saving=Saving.NONE, saving_problem=None)
        return following, (ArmTimer(over, seconds),)
    saving = replace(machine, saving=None, saving_problem=None)
    armed = ArmTimer(over, limits.checkpoint_seconds)
    # A request that is under way is what this change needs, too.
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
# Each function notes what is new, and names it in a word for the table.


def _started(machine: Machine, _: Started) -> Reaction:
    if machine.phase is Phase.STARTING:
        # Until here it told how the work of the former attempt was saved.
        machine = replace(machine, saving=Saving.NONE)
    return _try(_step(machine, Word.STARTED))


def _start_failed(machine: Machine, event: StartFailed) -> Reaction:
    if machine.phase is Phase.STARTING:
        machine = replace(machine, failure=event.problem)
    return _step(machine, Word.START_FAILED)


def _rank_ended(machine: Machine, event: RankEnded) -> Reaction:
    if machine.released or event.rank in {end.rank for end in machine.ended}:
        return Reaction(machine)
    machine = replace(machine, ended=(*machine.ended, event))
    # Later a bad end is the answer to what we did, and no news.
    was_on_its_own = machine.phase in {Phase.STARTING, Phase.RUNNING}
    if was_on_its_own and not event.is_well:
        # Several may end before the first end is answered: the first of them is why.
        culprit = machine.culprit or event
        machine = replace(machine, failure=_failure(culprit), culprit=culprit)
    if was_on_its_own and machine.is_trying:
        machine = replace(machine, trial=replace(machine.trial, ended=True))
    assert machine.run is not None
    if len(machine.ended) == machine.run.processes:
        return _step(machine, Word.ALL_ENDED)
    return _step(machine, Word.RANK_ENDED if event.is_well else Word.RANK_FAILED)


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
    # A checkpoint that is confirmed while the grace runs is one nevertheless.
    if not machine.released and machine.saving is not Saving.NONE:
        machine = replace(machine, saving=Saving.CONFIRMED, saving_problem=None)
    return _try(_step(_end_trial(machine, Saving.CONFIRMED), Word.SAVED))


def _not_saved(machine: Machine, event: CheckpointFailed) -> Reaction:
    if machine.saving is None:
        machine = replace(machine, saving=Saving.FAILED, saving_problem=event.problem)
    why = event.problem.message
    return _try(_step(_end_trial(machine, Saving.FAILED, why), Word.NOT_SAVED))


def _saving_timed_out(machine: Machine, _: CheckpointTimedOut) -> Reaction:
    if machine.phase is Phase.RUNNING and not machine.is_trying:
        return Reaction(machine)  # The trial that it was armed for is over.
    if machine.phase is Phase.CHECKPOINTING and not machine.follows:
        machine = replace(machine, saving=Saving.TIMED_OUT, saving_problem=TOO_SLOW)
    why = f"it was not confirmed in {machine.limits.checkpoint_seconds:g} s"
    machine = _end_trial(machine, Saving.TIMED_OUT, why)
    return _try(_step(machine, Word.SAVING_TIMED_OUT))


def _end_trial(machine: Machine, saving: Saving, why: str = "") -> Machine:
    """Note how a trial went, if one is under way."""
    if not machine.is_trying:
        return machine
    return replace(
        machine, trial=replace(machine.trial, saving=saving, message=why[:LONGEST_MESSAGE])
    )


def _grace_over(machine: Machine, _: GraceOver) -> Reaction:
    return _step(machine, Word.GRACE_OVER)


def _still_there(machine: Machine, _: StillThere) -> Reaction:
    if machine.phase is Phase.STOPPING:
        machine = replace(machine, is_stuck=True)
    return _step(machine, Word.STILL_THERE)


def _lingering(machine: Machine, event: Lingering) -> Reaction:
    return Reaction(replace(machine, lingering=event.problem))


def _gone(machine: Machine, _: Gone) -> Reaction:
    # Only the way down ends in a proof: a supervisor tells of every rank before.
    if machine.phase is not Phase.STOPPING:
        return Reaction(machine)
    machine = replace(machine, is_stuck=False, lingering=None)
    if machine.saving is None:
        machine = replace(machine, saving=Saving.FAILED, saving_problem=UNCONFIRMED)
    if machine.trial.ended:
        machine = _end_trial(machine, Saving.FAILED, UNCONFIRMED.message)
    return _step(machine, _word_for_gone(machine))


_NEWS: Mapping[type, Callable[[Machine, Any], Reaction]] = {
    Started: _started,
    StartFailed: _start_failed,
    RankEnded: _rank_ended,
    CheckpointDone: _saved,
    CheckpointFailed: _not_saved,
    CheckpointTimedOut: _saving_timed_out,
    GraceOver: _grace_over,
    StillThere: _still_there,
    Lingering: _lingering,
    Gone: _gone,
}

# --- the picture --------------------------------------------------------------------------


def draw() -> str:
    """Draw the table as a Mermaid diagram; what leaves a phase as it is, is left out."""
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.READY.value}"]
    for phase, rows in TABLE.items():
        arrows: dict[Row, list[str]] = {}
        for word, row in rows.items():
            if row.phase is not phase or row.verbs:
                arrows.setdefault(row, []).append(word.value)
        for row, words in arrows.items():
            done = "".join(f" / {verb.value}" for verb in row.verbs)
            lines.append(f"    {phase.value} --> {row.phase.value}: {', '.join(words)}{done}")
    return "\n".join(lines) + "\n"
