"""
The agent: receives events, decides by the table, and has the actions carried out.

All events arrive here on one event loop: declarations of the controller from
:mod:`dljob_sidecar.serving.serving`, process events from a :class:`~dljob_sidecar.contract.Supervisor`, and
timers from the loop. The agent carries out the actions of :func:`dljob_sidecar.behaviour.machine.react`
in order before the next event, and decides nothing itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Callable

from dljob_sidecar.behaviour.events import (
    Action,
    ArmTimer,
    ChangeLive,
    Checkpoint,
    Event,
    GiveUpCheckpoint,
    Kill,
    Leave,
    Prepare,
    StartFailed,
    StartProcesses,
    Terminate,
    Told,
    TryLive,
    Withdraw,
)
from dljob_sidecar.behaviour.machine import (
    Limits,
    Machine,
    Reaction,
    react,
)
from dljob_sidecar.behaviour.state import QUIET
from dljob_sidecar.contract import Facts, Supervisor
from dljob_sidecar.remedies import make_problem
from dljob_wire.codec import encode_left
from dljob_wire.messages import (
    LONGEST_MESSAGE,
    MOST_PROBLEMS,
    Change,
    Failure,
    LiveState,
    Phase,
    Post,
    Problem,
    Refused,
    Saving,
    State,
    Target,
    Term,
    Trial,
)
from dljob_wire.training import Training

log = logging.getLogger(__name__)


class Stopwatch:
    """
    The durations of the current change of GPUs and of the last complete one.

    The controller predicts the duration of the next change from them.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._phase = Phase.READY
        self._since = now()
        self._running = Change(generation=0)
        self.change: Change | None = None
        """The last complete change; None if there was none."""

    def see(self, machine: Machine) -> None:
        """Update from the machine after a step."""
        if machine.phase is self._phase:
            return
        now = self._now()
        before, self._phase = self._phase, machine.phase
        seconds, self._since = now - self._since, now
        if before is Phase.CHECKPOINTING:
            self._running = replace(self._running, checkpoint_seconds=seconds)
        elif before is Phase.STOPPING:
            saving = machine.saving or Saving.NONE
            self._running = replace(self._running, stop_seconds=seconds, saving=saving)
        elif before is Phase.STARTING and machine.phase in (Phase.RUNNING, Phase.CHANGING):
            self._running = replace(self._running, start_seconds=seconds)
        elif before is Phase.CHANGING:
            self._end_live(machine)
            return
        # A quiet phase ends a change; the start that may follow is a change of its own.
        if machine.phase in QUIET or machine.phase is Phase.RUNNING:
            self.change = replace(self._running, generation=machine.term.generation)
            self._running = Change(generation=0)

    def _end_live(self, machine: Machine) -> None:
        """End a live change, which counts unless it was withdrawn or fell back."""
        running, self._running = self._running, Change(generation=0)
        done, before = machine.live_change, 0 if self.change is None else self.change.generation
        if done is None or done.message or done.generation == before:
            return
        pause = done.pause_ms / 1000
        self.change = replace(running, generation=done.generation, live=True, pause_seconds=pause)


_CALLS: Mapping[type, Callable[[Supervisor], None]] = {
    GiveUpCheckpoint: lambda supervisor: supervisor.give_up_checkpoint(),
    Withdraw: lambda supervisor: supervisor.withdraw(),
    Terminate: lambda supervisor: supervisor.terminate(),
    Kill: lambda supervisor: supervisor.kill(),
}
"""The actions that say all by their kind."""
SOON_SECONDS = 30.0
"""A training that ends this soon after its trial without continuing ended because of it."""


class Trials:
    """
    The latest trial checkpoint of the latest start.

    The machine has its state and outcome. This class records the progress at the request, the
    duration, and whether the training continued: some programs save themselves and end, and some hang.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._trial = Trial()
        """The trial in the machine at the last call."""
        self._asked_at = 0.0
        self._iteration = 0
        """The latest reported iteration when the trial was requested."""
        self._over_at = 0.0
        self._iteration_then = 0
        """The latest reported iteration at the outcome."""
        self._has_ended = False

    def see(self, machine: Machine, iteration: int) -> None:
        """Update from the machine after a step; ``iteration`` is the last reported one."""
        before, self._trial = self._trial, machine.trial
        if machine.trial.number != before.number:
            self._asked_at, self._iteration, self._has_ended = self._now(), iteration, False
        is_over = machine.trial.number > 0 and machine.trial.saving is not Saving.NONE
        if not is_over:
            return
        if before.number != machine.trial.number or before.saving is Saving.NONE:
            self._over_at, self._iteration_then = self._now(), iteration
        if machine.trial.saving is Saving.FAILED:
            return  # The request may not have reached the training, so it explains no later end.
        is_by_itself = machine.target == machine.run and not machine.is_leaving
        if machine.ended and is_by_itself and iteration <= self._iteration_then:
            is_soon = self._now() - self._over_at <= SOON_SECONDS
            self._has_ended = self._has_ended or is_soon

    def describe(self, iteration: int) -> Trial:
        """Return the trial with the facts that the machine lacks."""
        trial = self._trial
        if not trial.number:
            return trial
        is_over = trial.saving is not Saving.NONE
        return replace(
            trial,
            iteration=self._iteration,
            seconds=max(0.0, self._over_at - self._asked_at) if is_over else 0.0,
            went_on=is_over and iteration > self._iteration_then,
            ended=trial.ended or self._has_ended,
        )


class Agent:
    """One start of a container, from its first event to :attr:`left`."""

    def __init__(
        self,
        *,
        incarnation: str,
        limits: Limits,
        now: Callable[[], float] = time.monotonic,
        write_left: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """``write_left`` writes down what outlives this process."""
        self._write_left = write_left
        self._loop = asyncio.get_running_loop()
        self._machine = Machine(incarnation, limits)
        self._stopwatch, self._trials = Stopwatch(now), Trials(now)
        self._version = 1
        self._waiting: set[asyncio.Future[None]] = set()
        self._inbox: deque[Event] = deque()
        self._is_busy = False
        self._timer: asyncio.TimerHandle | None = None
        self._own_problems: dict[str, Problem] = {}
        self.left: asyncio.Future[int] = self._loop.create_future()
        """The exit status, set when the SideCar is to end."""

    def begin(self, supervisor: Supervisor, facts: Facts) -> None:
        """Set the supervisor and the facts; no event may arrive before this call."""
        self._supervisor = supervisor
        self._facts = facts

    # --- events ---------------------------------------------------------------------------

    def happen(self, event: Event) -> None:
        """Handle an event before returning, unless another one is being handled."""
        self._inbox.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._inbox:
                self._take(self._inbox.popleft())
        finally:
            # After an exception, the rest of the inbox waits in order for the next event.
            self._is_busy = False

    def declare(self, target: Target) -> Refused | None:
        """Handle a declaration of the controller; return the reason for a refusal, else None."""
        assert not self._is_busy, "requests come from the loop and never from within a step"
        refused = react(self._machine, Told(target)).refused
        if refused is None:
            self.happen(Told(target))
        else:
            phase = self._machine.phase.value
            log.warning("refused %s while %s: %s", target.term, phase, refused.value)
        return refused

    def _take(self, event: Event) -> None:
        before, reaction = self._machine, react(self._machine, event)
        self._machine = reaction.machine
        self._tell(before, reaction)
        if reaction.machine == before and not reaction.actions:
            return
        self._stopwatch.see(reaction.machine)
        self._trials.see(reaction.machine, self._facts.progress().iteration)
        if reaction.machine.attempt != before.attempt:
            # The file still holds the end of the start before.
            self._write_left(b"")
        for action in reaction.actions:
            self._carry_out(action)
        if self._machine.released:
            self._disarm()
        self.changed()
        if (before.phase, before.ended) != (self._machine.phase, self._machine.ended):
            self.leave_behind()

    def leave_behind(self) -> None:
        """
        Write down how the latest start ended, for a controller that will find this process gone.

        After a failure Kubernetes shows the message of the training, or the last lines of its log.
        """
        if self._machine.has_ended:
            self._write_left(encode_left(self.state()))

    def _tell(self, before: Machine, reaction: Reaction) -> None:
        if reaction.trigger is None:
            return
        after = reaction.machine
        ways = f"{before.phase.value} -> {after.phase.value}"
        target = after.target
        why = f" ({target.reason})" if target is not None and target.reason else ""
        log.info("%s: %s; %s%s", reaction.trigger.value, ways, after.term, why)
        for problem in set(after.problems) - set(before.problems):
            log.warning("%s: %s; %s", problem.name, problem.message, problem.remedy)

    # --- actions --------------------------------------------------------------------------

    def _carry_out(self, action: Action) -> None:
        """
        Carry out an action; on an exception, report a problem and continue with the next action.

        An action fails if the machine has run out of a resource, for example descriptors. The next
        action is usually the timer that leads to another attempt.
        """
        try:
            self._do(action)
        except Exception as error:
            log.exception("%s did not succeed", type(action).__name__)
            if isinstance(action, StartProcesses):
                problem = make_problem("CannotStart", f"{type(error).__name__}: {error}")
                # Queue the failure, because the remaining actions of this step belong to the
                # current machine.
                self._inbox.append(StartFailed(action.attempt, problem))

    def _do(self, action: Action) -> None:
        if isinstance(action, StartProcesses):
            self._disarm()
            self._supervisor.start(action.run, action.attempt, joins=action.joins)
        elif isinstance(action, ChangeLive):
            self._supervisor.change(action.run, action.target)
        elif isinstance(action, TryLive):
            self._supervisor.try_live(action.run, action.number)
        elif isinstance(action, Prepare):
            self._supervisor.prepare(action.processes)
        elif isinstance(action, Checkpoint):
            self._supervisor.checkpoint(is_trial=action.is_trial)
        elif isinstance(action, ArmTimer):
            self._disarm()
            self._timer = self._loop.call_later(action.seconds, self.happen, action.event)
        elif isinstance(action, Leave):
            self._leave(action)
        else:
            _CALLS[type(action)](self._supervisor)

    def _leave(self, action: Leave) -> None:
        # Each further SIGTERM leads here again, until the process has ended.
        if not self.left.done():
            self.left.set_result(action.exit_status)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- facts ----------------------------------------------------------------------------

    @property
    def incarnation(self) -> str:
        return self._machine.incarnation

    @property
    def term(self) -> Term:
        return self._machine.term

    @property
    def installation(self) -> str:
        return self._machine.installation

    @property
    def version(self) -> int:
        return self._version

    def state(self) -> State:
        machine, facts = self._machine, self._facts
        progress = facts.progress()
        return State(
            incarnation=machine.incarnation,
            version=self._version,
            phase=machine.phase,
            released=machine.released,
            epoch=machine.term.epoch,
            generation=machine.term.generation,
            target=machine.target,
            held=machine.held,
            held_generation=0 if machine.run is None else machine.run.generation,
            leaving=machine.is_leaving,
            processes=facts.processes(),
            progress=progress,
            gpus=facts.gpus(),
            warmth=facts.warmth(),
            change=self._stopwatch.change,
            trial=self._trials.describe(progress.iteration) if machine.limits.tries else None,
            failure=self._failure(),
            problems=self._problems(),
            installation=machine.installation,
            live=LiveState(
                machine.capable, machine.live_trial, machine.live_change, machine.present
            )
            if machine.limits.live_seconds
            else None,
        )

    def _failure(self) -> Failure | None:
        culprit = self._machine.culprit
        if culprit is None:
            return None
        words = self._facts.last_words()
        return Failure(
            rank=culprit.rank,
            at=culprit.at,
            exit_code=culprit.exit_code,
            signal=culprit.signal,
            # A process that a signal ended raised no exception.
            exception=words.exception_of(culprit.rank) if culprit.signal is None else "",
            lines=words.lines,
        )

    def _problems(self) -> tuple[Problem, ...]:
        known = (*self._machine.problems, *self._own_problems.values(), *self._facts.problems())
        return tuple(_fitting(problem) for problem in dict.fromkeys(known))[:MOST_PROBLEMS]

    def complain(self, problem: Problem) -> None:
        """Report a problem of the SideCar itself until it is solved."""
        if self._own_problems.get(problem.name) != problem:
            log.warning("%s: %s; %s", problem.name, problem.message, problem.remedy)
            self._own_problems[problem.name] = problem
            self.changed()

    def solve(self, name: str) -> None:
        if self._own_problems.pop(name, None) is not None:
            self.changed()

    def post(self, post: Post) -> None:
        self._facts.post(post)

    # --- waiting for changes --------------------------------------------------------------

    def changed(self) -> None:
        """Wake all requests that wait for a change of the state."""
        self._version += 1
        # Setting a result only schedules the waiting task, so the set does not change in this loop.
        # A task that was woken or cancelled just before leaves the set when it runs.
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def wait_for_change(self, version: int) -> None:
        # There is no await between this comparison and the entry in the set, so no change is
        # missed.
        while self._version == version:
            waiting = self._loop.create_future()
            self._waiting.add(waiting)
            try:
                await waiting
            finally:
                self._waiting.discard(waiting)


def limits_of(training: Training) -> Limits:
    return Limits(
        saves=training.checkpoint.is_possible,
        leader_saves=not training.checkpoint.to_all,
        tries=training.checkpoint.goes_on,
        checkpoint_seconds=training.checkpoint.timeout_seconds,
        grace_seconds=training.checkpoint.grace_seconds,
        kill_seconds=training.kill_seconds,
        live_seconds=training.longest_live_seconds,
    )


def _fitting(problem: Problem) -> Problem:
    """Cut long texts to the limit of the protocol."""
    if max(len(problem.message), len(problem.remedy)) <= LONGEST_MESSAGE:
        return problem
    message, remedy = problem.message[:LONGEST_MESSAGE], problem.remedy[:LONGEST_MESSAGE]
    return replace(problem, message=message, remedy=remedy)
