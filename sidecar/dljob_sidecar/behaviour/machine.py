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

In a live change (Changing) some processes join or leave, and the others go on in the same attempt. The
SideCar holds the GPUs of both sides until those that leave are proven gone. A newer declaration
withdraws a live change on which the members have not agreed yet, and otherwise waits for its end. A
live change that fails before is withdrawn as well, and its target reached by a restart with a
checkpoint; one that fails later ends the attempt without a checkpoint. Either way its target is not
tried live again. Where a restart would lose all work (``Live.only``), the processes go on after a withdrawal until
the controller, which reads the reason, declares another target.

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
    Awaited,
    Capable,
    Changed,
    ChangeFailed,
    ChangeLive,
    ChangeRefused,
    ChangeTimedOut,
    Checkpoint,
    CheckpointDone,
    CheckpointFailed,
    CheckpointTimedOut,
    Event,
    Gathered,
    GiveUpCheckpoint,
    Gone,
    GraceOver,
    Interrupted,
    Kill,
    Leave,
    Lingering,
    NotWithdrawn,
    Prepare,
    RankEnded,
    Started,
    StartFailed,
    StartProcesses,
    StillThere,
    Terminate,
    Told,
    TryLive,
    Unstepped,
    Withdraw,
    Withdrawn,
)
from dljob_sidecar.behaviour.membership import (
    find_difference,
    is_in_name_only,
    rebase,
)
from dljob_sidecar.behaviour.state import (
    LIVE_CHANGE_FAILED,
    TOO_SLOW,
    UNCONFIRMED,
    Limits,
    Machine,
)
from dljob_sidecar.behaviour.table import TABLE, Trigger, Verb, draw
from dljob_wire.messages import (
    LONGEST_MESSAGE,
    LiveChange,
    LiveTrial,
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
    """Compare two targets without leader, reason, next start, trials, known end and the way there."""
    one = replace(one, live=None)
    other = replace(other, epoch=one.epoch, reason=one.reason, live=None)
    if isinstance(one, Stop) and isinstance(other, Stop):
        other = replace(other, coming=one.coming)
    if isinstance(one, Run) and isinstance(other, Run):
        other = replace(other, trial=one.trial, live_trial=one.live_trial, ended=one.ended)
    return one == other


def stamped_by(machine: Machine, target: Target) -> Machine:
    known = machine.target
    assert known is not None
    stamped = replace(known, epoch=target.epoch, installation=machine.installation)
    if isinstance(stamped, Run) and isinstance(target, Run):
        # An earlier message may arrive after the latest, and must not withdraw a trial.
        ends = [end for end in (stamped.ended, target.ended) if end is not None]
        trial = max(stamped.trial, target.trial)
        live_trial = max(stamped.live_trial, target.live_trial)
        stamped = replace(stamped, trial=trial, live_trial=live_trial)
        stamped = replace(stamped, ended=max(ends, default=None))
        if machine.run == known:
            machine = replace(machine, run=stamped)
    if machine.changing == known:
        machine = replace(machine, changing=stamped)
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
        return _go_on(_start_again(stamped_by(machine, target)))
    if known is not None and is_hurried(known, target):
        # A new leader has not asked to hurry, so drop that request.
        return Reaction(replace(machine, target=target) if target.epoch > known.epoch else machine)
    machine = replace(machine, target=target)
    # The author of a run may not know that the training has ended, and a trial ends soon.
    waits = not machine.may_start or (_is_trying(machine) and can_change_live(machine))
    if waits or goes_on(machine):
        return Reaction(machine if waits else _note_going_on(machine))
    reaction = _step(machine, _trigger_for_change(machine))
    coming = target.processes if isinstance(target, Run) else target.coming
    is_over = machine.released or machine.is_leaving
    # Processes that join in a live change start at once.
    if is_over or not coming or reaction.machine.phase is Phase.CHANGING:
        return reaction
    # Prepare the spares last, because saving the running training has priority.
    return reaction._replace(actions=(*reaction.actions, Prepare(coming)))


def _start_again(machine: Machine) -> Reaction:
    """Start the run that waits after a successful end once its author has seen that end."""
    waits = machine.phase is Phase.EXITED and machine.target != machine.run
    if waits and machine.may_start and isinstance(machine.target, Run) and not machine.is_leaving:
        return _step(machine, Trigger.RUN)
    return Reaction(machine)


def _go_on(reaction: Reaction) -> Reaction:
    """Begin what had to wait for the end of a trial or of a live change: a newer target, or a trial."""
    machine = reaction.machine
    if machine.phase is not Phase.RUNNING or _is_trying(machine):
        return reaction
    trigger = _trigger_for_trial(machine)
    if machine.target != machine.run or machine.is_leaving:
        trigger = _trigger_for_change(machine)
    if goes_on(machine):
        return reaction._replace(machine=_note_going_on(machine))
    if trigger is None:
        return reaction
    begun = _step(machine, trigger)
    actions = (*reaction.actions, *begun.actions)
    return Reaction(begun.machine, actions, trigger=reaction.trigger or begun.trigger)


def _is_trying(machine: Machine) -> bool:
    return machine.is_trying or machine.is_trying_live


def _trigger_for_trial(machine: Machine) -> Trigger | None:
    """Return the trigger for a trial that the target declares and that was not made yet."""
    run = machine.target
    if not isinstance(run, Run) or machine.ended:
        return None
    can_save = machine.limits.tries and not machine.follows
    if can_save and run.trial > machine.trial.number:
        return Trigger.TRY
    is_capable = machine.limits.live_seconds > 0 and machine.capable == run.processes
    return Trigger.TRY_LIVE if is_capable and run.live_trial > machine.live_trial.number else None


def can_change_live(machine: Machine) -> bool:
    """Return True if the target can be reached without ending the processes that stay."""
    target, run, limits = machine.target, machine.run, machine.limits
    if target is None or run is None or machine.phase is not Phase.RUNNING:
        return False
    if not limits.live_seconds or machine.is_interrupted or machine.ended:
        return False
    if machine.has_fallen_back(target) or find_difference(run, target) is None:
        return False
    return machine.capable == run.processes or is_in_name_only(run, target)


def goes_on(machine: Machine) -> bool:
    """Return True if the target may only be reached live, which is not possible now."""
    live = machine.target.live if machine.target is not None else None
    is_asked = live is not None and live.only and machine.target != machine.run
    may_go_on = machine.phase in (Phase.STARTING, Phase.RUNNING) and not machine.is_interrupted
    return is_asked and may_go_on and not can_change_live(machine)


def _note_going_on(machine: Machine) -> Machine:
    """Let the controller know why the processes go on as they are; during a start that is not decided yet."""
    target = machine.target
    if target is None or machine.phase is not Phase.RUNNING or machine.has_fallen_back(target):
        return machine
    noted = LiveChange(target.generation, message="its processes do not fit these members")
    return replace(machine, live_change=noted)


def _trigger_for_change(machine: Machine) -> Trigger:
    """Return the trigger for a target that differs from the current state."""
    target = machine.target
    if machine.phase is Phase.CHANGING:
        is_hurried = isinstance(target, Stop) and not target.checkpoint
        return Trigger.CHANGE_UNSAVED if is_hurried or machine.only_joins else Trigger.CHANGE
    if can_change_live(machine):
        return Trigger.LIVE
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
    run, attempt = machine.target, machine.attempt + 1
    is_live = machine.limits.live_seconds > 0 and not machine.has_fallen_back(run)
    live = run.live if is_live else None
    # Where all processes join, others train already.
    joins = live is not None and max(live.members[rank] for rank in run.ranks) < 0
    started = replace(machine, run=run, attempt=attempt, ended=(), failure=None)
    started = replace(started, culprit=None, is_finished=False, is_unstepped=False, trial=Trial())
    started = replace(started, capable=0, live_trial=LiveTrial(), changing=run if joins else None)
    return started, (StartProcesses(run, attempt, joins),)


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


def _change(machine: Machine) -> tuple[Machine, tuple[Action, ...]]:
    run, target = machine.run, machine.target
    assert run is not None
    assert target is not None
    waiting, armed = _await(replace(machine, changing=target))
    return waiting, (ChangeLive(run, target), *armed)


def _await(machine: Machine) -> tuple[Machine, tuple[Action, ...]]:
    over = ChangeTimedOut(machine.attempt)
    waiting = replace(machine, is_gathered=False, is_withdrawing=False, awaited="")
    return waiting, (ArmTimer(over, machine.limits.gathering_seconds),)


def _hurry(machine: Machine) -> tuple[Machine, tuple[Action, ...]]:
    over = ChangeTimedOut(machine.attempt)
    return replace(machine, is_gathered=True), (ArmTimer(over, machine.limits.live_seconds),)


def _try_live(machine: Machine) -> tuple[Machine, tuple[Action, ...]]:
    run = machine.target
    assert isinstance(run, Run)
    over = ChangeTimedOut(machine.attempt)
    trying = replace(
        machine, live_trial=LiveTrial(run.live_trial), is_withdrawing=False, awaited=""
    )
    return trying, (TryLive(run, run.live_trial), ArmTimer(over, machine.limits.live_seconds))


def _withdraw(machine: Machine) -> tuple[Machine, tuple[Action, ...]]:
    over = ChangeTimedOut(machine.attempt)
    armed = ArmTimer(over, machine.limits.live_seconds)
    return replace(machine, is_withdrawing=True), (Withdraw(), armed)


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
    Verb.CHANGE: _change,
    Verb.TRY_LIVE: _try_live,
    Verb.AWAIT: _await,
    Verb.HURRY: _hurry,
    Verb.WITHDRAW: _withdraw,
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
    if machine.phase is Phase.STARTING and machine.only_joins:
        return _step(machine, Trigger.STARTED_TO_JOIN)
    return _go_on(_step(machine, Trigger.STARTED))


def _start_failed(machine: Machine, event: StartFailed) -> Reaction:
    if machine.phase is Phase.STARTING:
        machine = replace(machine, failure=event.problem)
    return _step(machine, Trigger.START_FAILED)


def _rank_ended(machine: Machine, event: RankEnded) -> Reaction:
    if machine.released or event.rank in {end.rank for end in machine.ended}:
        return Reaction(machine)
    machine = replace(machine, ended=(*machine.ended, event))
    # After STARTING and RUNNING, a failed process is the result of a stop and no failure. Where some
    # stay in a live change, the next start follows.
    only_joins = machine.phase is Phase.CHANGING and machine.only_joins
    was_on_its_own = only_joins or machine.phase in {Phase.STARTING, Phase.RUNNING}
    if was_on_its_own and not event.is_well:
        # Keep the first of several failed processes as the cause.
        culprit = machine.culprit or event
        machine = replace(machine, failure=_failure(culprit), culprit=culprit)
    if was_on_its_own and machine.is_trying:
        machine = replace(machine, trial=replace(machine.trial, ended=True))
    if _is_in_change(machine) and not event.is_well:
        machine = _fall_back(machine, _failure(event).message, ended=True)
    assert machine.run is not None
    if len(machine.ended) == machine.run.processes:
        # A process that ends in STOPPING was terminated or follows a failure. Where all leave or all
        # join in a live change, the training goes on or has gone on elsewhere.
        stays = isinstance(machine.changing, Run) and not machine.only_joins
        is_own = stays if machine.phase is Phase.CHANGING else machine.phase in _UNTOUCHED
        is_finished = is_own and all(end.is_well for end in machine.ended)
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
    return _go_on(_step(_end_trial(machine, Saving.CONFIRMED), Trigger.SAVED))


def _fail(machine: Machine, *, saving: Saving, problem: Problem) -> Machine:
    if machine.is_unstepped:
        return replace(machine, saving=Saving.NONE, saving_problem=None)
    return replace(machine, saving=saving, saving_problem=problem)


def _not_saved(machine: Machine, event: CheckpointFailed) -> Reaction:
    if machine.saving is None:
        machine = _fail(machine, saving=Saving.FAILED, problem=event.problem)
    why = event.problem.message
    return _go_on(_step(_end_trial(machine, Saving.FAILED, why=why), Trigger.NOT_SAVED))


def _saving_timed_out(machine: Machine, _: CheckpointTimedOut) -> Reaction:
    if machine.phase is Phase.RUNNING and not machine.is_trying:
        return Reaction(machine)  # The timer was armed for a trial that is over.
    if machine.phase is Phase.CHECKPOINTING and not machine.follows:
        machine = _fail(machine, saving=Saving.TIMED_OUT, problem=TOO_SLOW)
    why = f"it was not confirmed in {machine.limits.checkpoint_seconds:g} s"
    machine = _end_trial(machine, Saving.TIMED_OUT, why=why)
    return _go_on(_step(machine, Trigger.SAVING_TIMED_OUT))


def _end_trial(machine: Machine, saving: Saving, *, why: str = "") -> Machine:
    """Record the result of the current trial, if any."""
    if not machine.is_trying:
        return machine
    if saving is Saving.CONFIRMED:
        machine = replace(machine, saving_problem=None)
    return replace(
        machine, trial=replace(machine.trial, saving=saving, message=why[:LONGEST_MESSAGE])
    )


# A live change and its trial have the same news. The trial takes place in RUNNING.


def _capable(machine: Machine, event: Capable) -> Reaction:
    return _go_on(Reaction(replace(machine, capable=event.processes)))


def _is_in_change(machine: Machine) -> bool:
    is_trial = machine.phase is Phase.RUNNING and machine.is_trying_live
    return is_trial or machine.phase is Phase.CHANGING


def _changed(machine: Machine, event: Changed) -> Reaction:
    if not _is_in_change(machine) or isinstance(machine.changing, Stop):
        return Reaction(machine)
    run, former, target = machine.changing, machine.run, machine.target
    if run is not None and former is not None and target is not None:
        done = LiveChange(run.generation, event.pause_seconds * 1000, event.state_bytes)
        # A change in name only says nothing about the processes.
        capable = machine.capable if is_in_name_only(former, run) else run.processes
        machine = replace(machine, run=run, ended=(), capable=capable, live_change=done)
        machine = replace(machine, changing=None, saving=Saving.NONE)
        if target != run:
            machine = replace(machine, target=rebase(target, former.generation, run))
    else:
        machine = _end_live_trial(machine, seconds=event.pause_seconds)
    return _go_on(_step(machine, Trigger.CHANGED))


def _change_ends(machine: Machine, event: ChangeRefused | ChangeFailed) -> Reaction:
    """Withdraw a change that was refused; end the processes of one that failed."""
    if not _is_in_change(machine):
        return Reaction(machine)
    has_failed = isinstance(event, ChangeFailed)
    machine = _fall_back(machine, event.why, ended=has_failed)
    return _go_on(_step(machine, Trigger.CHANGE_FAILED if has_failed else Trigger.CHANGE_REFUSED))


def _change_timed_out(machine: Machine, _: ChangeTimedOut) -> Reaction:
    if not _is_in_change(machine):
        return Reaction(machine)  # The timer was armed for a trial that is over.
    if machine.phase is Phase.RUNNING and not machine.is_withdrawing:
        return _step(machine, Trigger.CHANGE_TIMED_OUT)
    if machine.phase is Phase.CHANGING and not machine.is_gathered and not machine.is_withdrawing:
        seconds = machine.limits.gathering_seconds
        why = f"the processes that join were not ready in {seconds:g} s{_waited_for(machine)}"
        return _step(_fall_back(machine, why), Trigger.CHANGE_REFUSED)
    live = machine.changing.live if machine.changing is not None else None
    if live is not None and live.only and not machine.is_withdrawing:
        # Processes that have not agreed on a boundary can go on.
        return _step(_fall_back(machine, _too_slow(machine)), Trigger.CHANGE_REFUSED)
    return _step(_fall_back(machine, _too_slow(machine), ended=True), Trigger.CHANGE_FAILED)


def _withdrawn(machine: Machine, event: Withdrawn | NotWithdrawn) -> Reaction:
    if not _is_in_change(machine):
        return Reaction(machine)
    is_trial = machine.phase is Phase.RUNNING
    if isinstance(event, Withdrawn):
        if is_trial:
            machine = _end_live_trial(machine, _too_slow(machine))
        return _go_on(_step(replace(machine, changing=None), Trigger.WITHDRAWN))
    if is_trial or machine.falls_back:
        return _step(_fall_back(machine, _too_slow(machine), ended=True), Trigger.CHANGE_FAILED)
    # A newer declaration waits for the end of the change.
    return Reaction(replace(machine, is_withdrawing=False))


def _too_slow(machine: Machine) -> str:
    limit = machine.limits.live_seconds
    return f"it took longer than liveSeconds ({limit:g} s){_waited_for(machine)}"


def _waited_for(machine: Machine) -> str:
    return f"; it waited for {machine.awaited}" if machine.awaited else ""


def _fall_back(machine: Machine, why: str, *, ended: bool = False) -> Machine:
    """Note the first reason why a live change or its trial fails; ``ended`` if its processes end."""
    if machine.changing is None:
        machine = _end_live_trial(machine, why, ended=ended)
    elif not machine.falls_back:
        noted = LiveChange(machine.changing.generation, message=why[:LONGEST_MESSAGE])
        machine = replace(machine, live_change=noted)
    is_own = ended if machine.changing is None else machine.only_joins
    if not is_own or machine.failure is not None:
        return machine  # The training goes on, or the target starts next.
    failure = replace(LIVE_CHANGE_FAILED, message=why[:LONGEST_MESSAGE])
    return replace(machine, failure=failure)


def _end_live_trial(
    machine: Machine, why: str = "", *, seconds: float = 0.0, ended: bool = False
) -> Machine:
    trial = machine.live_trial
    ended_trial = replace(trial, succeeded=not why, seconds=seconds, ended=ended)
    return replace(machine, live_trial=replace(ended_trial, message=why[:LONGEST_MESSAGE]))


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
    machine = replace(machine, is_stuck=False, lingering=None, changing=None)
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
    Capable: _capable,
    Gathered: lambda machine, _: _step(machine, Trigger.GATHERED),
    Awaited: lambda machine, event: Reaction(replace(machine, awaited=event.what)),
    Changed: _changed,
    ChangeRefused: _change_ends,
    ChangeFailed: _change_ends,
    ChangeTimedOut: _change_timed_out,
    Withdrawn: _withdrawn,
    NotWithdrawn: _withdrawn,
}

# --- the picture --------------------------------------------------------------------------
