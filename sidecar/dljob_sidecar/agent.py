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
from dataclasses import replace
from typing import Callable

from dljob_sidecar.behaviour.events import (
    Action,
    ArmTimer,
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
)
from dljob_sidecar.behaviour.machine import (
    Limits,
    Machine,
    Reaction,
    react,
)
from dljob_sidecar.behaviour.timing import Stopwatch
from dljob_sidecar.checkpoints.trying import Trials
from dljob_sidecar.contract import Facts, Supervisor
from dljob_sidecar.remedies import make_problem
from dljob_sidecar.serving import metrics
from dljob_wire.codec import encode_left
from dljob_wire.messages import (
    LONGEST_MESSAGE,
    MOST_PROBLEMS,
    Failure,
    Post,
    Problem,
    Refused,
    State,
    Target,
    Term,
)
from dljob_wire.training import Training

log = logging.getLogger(__name__)


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
            self._supervisor.start(action.run, action.attempt)
        elif isinstance(action, Prepare):
            self._supervisor.prepare(action.processes)
        elif isinstance(action, Checkpoint):
            self._supervisor.checkpoint(is_trial=action.is_trial)
        elif isinstance(action, GiveUpCheckpoint):
            self._supervisor.give_up_checkpoint()
        elif isinstance(action, Terminate):
            self._supervisor.terminate()
        elif isinstance(action, Kill):
            self._supervisor.kill()
        elif isinstance(action, ArmTimer):
            self._disarm()
            self._timer = self._loop.call_later(action.seconds, self.happen, action.event)
        else:
            self._leave(action)

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

    @property
    def is_held(self) -> bool:
        return not self._machine.released

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

    def metrics(self) -> str:
        return metrics.write(self.state())

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
    )


def _fitting(problem: Problem) -> Problem:
    """Cut long texts to the limit of the protocol."""
    if max(len(problem.message), len(problem.remedy)) <= LONGEST_MESSAGE:
        return problem
    message, remedy = problem.message[:LONGEST_MESSAGE], problem.remedy[:LONGEST_MESSAGE]
    return replace(problem, message=message, remedy=remedy)
