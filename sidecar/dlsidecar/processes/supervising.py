"""
Starting the training processes, and ending them with proof that none is left.

Called by ``dlsidecar.agent`` with what the machine decided; see :class:`dlsidecar.contract.Supervisor`
for the promises. The way down is: a checkpoint, SIGTERM to the ranks (and to what they leave behind
as soon as they have ended), SIGKILL to everything that :mod:`dlsidecar.linux.family` can find, again
and again. *Gone* is said after two looks in a row that found nobody, between which no child was
collected either: a process that forks and ends at every moment can hide from one look, but each of
its deaths is told to us. Where GPU memory can be read, it must be back at what it was before the
start as well.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from dlsidecar.behaviour.events import (
    CheckpointDone,
    CheckpointFailed,
    Event,
    Gone,
    Lingering,
    RankEnded,
    Started,
    StartFailed,
)
from dlsidecar.checkpoints import requests
from dlsidecar.checkpoints.storing import CheckpointStore
from dlsidecar.contract import Report
from dlsidecar.linux.family import Household
from dlsidecar.linux.kernel import send
from dlsidecar.linux.spawning import (
    CannotStart,
    Ended,
    Reaper,
    start,
)
from dlsidecar.observing.gpu_thread import Reading
from dlsidecar.processes import ranks, rendezvous
from dlsidecar.processes.rank_process import Trainer
from dlsidecar.processes.releasing import Release
from dlsidecar.remedies import make_problem
from dlsidecar.serving.admitting import Admission, Answer
from dlsidecar.settings import Framework, Training
from dlsidecar.warm import offering
from dlsidecar.warm.warming import Nursery
from dlwire.messages import Problem, Process, Run

log = logging.getLogger(__name__)

FIRST_LOOK_SECONDS = 0.002
SLOWEST_LOOK_SECONDS = 0.25
RESUME = "DLJOB_CHECKPOINT_RESUME"
"""The variable that names the latest complete checkpoint, where one is known."""
EARLY_SECONDS = 300.0
"""A start that fails so early and before its first step may have failed to read its checkpoint."""
LAST_LINES_SECONDS = 1.0
"""For so long the release waits for the last lines of a training that ended by itself to be read."""
DESPERATE_LOOKS = 50
"""After so many looks that still found somebody, PID 1 lets the kernel kill all at once."""


class Processes:
    """The supervisor of one job's processes in one container."""

    def __init__(
        self,
        training: Training,
        *,
        report: Report,
        environment: Mapping[str, str],
        outputs: tuple[int, int],
        reaper: Reaper,
        household: Household,
        nursery: Nursery,
        admission: Admission,
    ) -> None:
        """``outputs`` are what the training gets as its output and its error output."""
        self._training = training
        self._report = report
        self._environment = dict(environment)
        self._defaults: dict[str, str] = {}
        """What the training gets unless its environment says otherwise."""
        self._rendezvous, self._board = rendezvous.Rendezvous(), offering.Board()
        self._store = CheckpointStore(training.saving)
        self._outputs = outputs
        self._reaper, self._household = reaper, household
        self._nursery, self._admission = nursery, admission
        self._loop = asyncio.get_running_loop()
        self._attempt = 0
        self._started_at = 0.0
        self._trainers: list[Trainer] = []
        self._request: requests.Request | None = None
        self._release = Release({})
        self._empty_since: float | None = None
        self._lingering: frozenset[str] = frozenset()
        """The GPUs that were told to be all that is in the way of the release."""
        self._must_report_gone = False
        self._has_reported_start = False
        self._is_terminating = self._is_killing = False
        self._looks = self._kills = 0
        self._empty_at: int | None = None
        self._read_until: float | None = None
        """Until when unread output keeps a start from being over; None where it ended otherwise."""
        self._timer: asyncio.TimerHandle | None = None
        self.on_begin: Callable[[], None] = lambda: None
        self.on_gone: Callable[[], None] = lambda: None
        self.on_failure: Callable[[], None] = lambda: None
        """Called when the first process of a start has failed by itself, before any is ended."""
        self.has_stepped: Callable[[], bool] = lambda: True
        """Asked when a process has ended, whether this start of the training took a step."""
        self.passed: Sequence[int] = ()
        """Descriptors that the training processes inherit."""
        self.is_output_read: Callable[[], bool] = lambda: True
        """Asked when a process has ended, whether all that it said was looked at."""
        self.on_released_in_use: Callable[[str], None] = lambda _: None
        """Called with the reason when GPUs are released though their memory is in use."""

    def hear_of_checkpoints(
        self, on_problem: Callable[[str, str], None], on_relief: Callable[[str], None]
    ) -> None:
        """Say who hears what is wrong with the checkpoints, and that it is no more."""
        self._store.on_problem, self._store.on_relief = on_problem, on_relief

    def describe(self) -> tuple[Process, ...]:
        # One that could not be started has no process id.
        return tuple(one.describe() for one in self._trainers if one.pid)

    # --- starting ---------------------------------------------------------------------------

    def start(self, run: Run, attempt: int) -> None:
        self._attempt = attempt
        self._must_report_gone = True
        self._has_reported_start = False
        self._is_terminating = self._is_killing = False
        self._read_until = None
        self._trainers = []
        self._release, self._lingering = Release({}), frozenset()
        self._empty_since = None
        self._started_at = self._loop.time()

        def hear(answer: Answer) -> None:
            if isinstance(answer, Problem):
                self._fail_start(answer)
            else:
                self._release = answer.release
                self._start_vetted(run, answer.names)

        self._admission.ask(run, hear, lambda: self._may_start(attempt))

    def _may_start(self, attempt: int) -> bool:
        """Whether nothing has overtaken this attempt while it waited for an answer."""
        return attempt == self._attempt and self._must_report_gone and not self._is_terminating

    @property
    def has_begun(self) -> bool:
        """Whether there was a start at all."""
        return self._attempt > 0

    def _start_vetted(self, run: Run, names: Mapping[str, str]) -> None:
        """Start when nothing that is torn is left where the training looks for checkpoints."""
        attempt = self._attempt

        def hear() -> None:
            if self._may_start(attempt):
                self._start_all(run, names)

        self._store.vet(run, hear)

    def _start_all(self, run: Run, names: Mapping[str, str]) -> None:
        self.on_begin()
        if not self._prepare_meeting(run):
            return
        self._board.renew()
        framework = self._training.framework.value
        for rank in ranks.lay_out(run, framework=framework, names=names):
            trainer = Trainer(rank)
            self._trainers.append(trainer)
            if not self._start_one(trainer):
                return
        self._nursery.want(run.processes)
        self._see_started()

    def _prepare_meeting(self, run: Run) -> bool:
        """Do for Horovod's processes what its launcher would; return whether that could be done."""
        self._defaults = {}
        if self._training.framework is not Framework.HOROVOD or not ranks.needs_meeting(run):
            return True
        interface = rendezvous.find_interface(run)
        self._defaults = {rendezvous.INTERFACE: interface} if interface else {}
        try:
            if run.node_rank == 0:
                self._rendezvous.open(run)
        except rendezvous.CannotOpen as error:
            self._fail_start(make_problem("RendezvousCannotOpen", str(error)))
            return False
        return True

    def _start_one(self, trainer: Trainer) -> bool:
        """Start a process warm where that is possible, else cold; return whether it could be."""
        attempt = self._attempt
        environment = self._environment_of(trainer)

        def hear(fault: str) -> None:
            self._hear_warm(trainer, attempt, fault)

        pid = self._nursery.take(environment, hear)
        if pid is None:
            return self._start_cold(trainer)
        trainer.pid, trainer.warm = pid, True
        self._reaper.watch(pid, lambda ended: self._hear_end(trainer, attempt, pid, ended))
        return True

    def _start_cold(self, trainer: Trainer) -> bool:
        attempt = self._attempt
        out, err = self._outputs
        environment = self._environment_of(trainer)
        try:
            pid = start(
                self._training.command,
                env=environment,
                stdout=out,
                stderr=err,
                pass_fds=self.passed,
            )
        except CannotStart as error:
            self._fail_start(make_problem(error.reason, str(error)))
            return False
        trainer.pid, trainer.warm, trainer.is_running = pid, False, True
        self._reaper.watch(pid, lambda ended: self._hear_end(trainer, attempt, pid, ended))
        return True

    def _environment_of(self, trainer: Trainer) -> dict[str, str]:
        resume = {RESUME: self._store.resume} if self._store.resume else {}
        given = {**self._defaults, **resume, **self._environment}
        return {**given, **self._board.variables, **trainer.environment}

    def _hear_warm(self, trainer: Trainer, attempt: int, fault: str) -> None:
        """A spare became the training process, or did not: then a cold one takes its place."""
        if attempt != self._attempt or trainer.is_running or trainer.ended:
            return
        if fault:
            log.warning("rank %d starts cold: its spare interpreter: %s", trainer.rank, fault)
            # The cold one is started at its end, so that there are never two.
            send(trainer.pid, signal.SIGKILL)
            return
        trainer.is_running = True
        self._see_started()

    def _replace(self, trainer: Trainer) -> None:
        """A spare ended before it became anything."""
        trainer.warm = False
        if not self._is_terminating and self._start_cold(trainer):
            self._see_started()

    def _see_started(self) -> None:
        ready = all(one.is_running for one in self._trainers)
        if ready and not self._has_reported_start and not self._is_terminating:
            self._has_reported_start = True
            self._tell(Started(self._attempt))

    def _fail_start(self, problem: Problem) -> None:
        self._has_reported_start = True
        self._tell(StartFailed(self._attempt, problem))
        self._look_soon()

    def _tell(self, event: Event) -> None:
        self._loop.call_soon(self._report, event)

    # --- hearing ----------------------------------------------------------------------------

    def _hear_end(self, trainer: Trainer, attempt: int, pid: int, ended: Ended) -> None:
        if attempt != self._attempt or trainer.pid != pid:
            return
        # What it answered may still lie in the pipe.
        self._nursery.settle(pid)
        if not trainer.is_running:
            trainer.pid = 0
            self._replace(trainer)
            self._look_soon()
            return
        trainer.ended = ended
        if self._ends_by_itself:
            self._read_until = self._loop.time() + LAST_LINES_SECONDS
        self._see_failure(ended)
        self._tell(RankEnded(attempt, trainer.rank, ended.code, ended.signal, time.time()))
        if self._request is not None:
            self._request.hear_end()
        if not self._living():
            if self._is_terminating:
                self._terminate_rest()
            self._look_soon()

    @property
    def _ends_by_itself(self) -> bool:
        """Whether nobody has asked for an end: neither by a signal nor for the checkpoint before it."""
        return not self._is_terminating and (self._request is None or self._request.is_trial)

    def _see_failure(self, ended: Ended) -> None:
        """
        Note that a start failed by itself, if this is the first end that says so.

        One that fails early may have failed to read its checkpoint.
        """
        is_own = self._ends_by_itself and ended.code != 0
        if is_own:
            self.on_failure()
        is_first = sum(one.ended is not None for one in self._trainers) == 1
        is_early = self._loop.time() - self._started_at < EARLY_SECONDS
        if is_first and is_own and is_early and not self.has_stepped():
            self._store.note_failure()

    def _living(self) -> list[Trainer]:
        return [one for one in self._trainers if one.pid and not one.ended]

    def hear_child(self) -> None:
        """Some child was collected: look at once, if we are looking."""
        if self._is_killing and self._timer is not None:
            self._look_soon()

    # --- stopping ---------------------------------------------------------------------------

    def prepare(self, processes: int) -> None:
        self._nursery.prepare(processes)

    def checkpoint(self, *, is_trial: bool = False) -> None:
        if not self._must_report_gone:
            # That nobody is left has just been told, and is the last word of an attempt.
            return
        attempt = self._attempt
        self.give_up_checkpoint()

        def tell(fault: str) -> None:
            if attempt != self._attempt or request.is_given_up:
                return
            if self._request is request:
                # A later end is not taken for the answer to this.
                self._request = None
            if not fault:
                self._report(CheckpointDone(attempt))
            else:
                self._report(CheckpointFailed(attempt, make_problem("CheckpointFailed", fault)))

        first = self._trainers[0] if self._trainers else None
        request = self._request = requests.Request(
            self._training.saving,
            self._trainers,
            environment=self._environment if first is None else self._environment_of(first),
            outputs=self._outputs,
            reaper=self._reaper,
            watch=self._store.make_watch(lambda: [one.pid for one in self._household.members()]),
            is_output_read=self.is_output_read,
            tell=tell,
        )
        request.is_trial = is_trial

    def give_up_checkpoint(self) -> None:
        if self._request is not None:
            self._request.is_given_up = True
        self._cancel_request()

    def hear_confirmation(self) -> None:
        """A line of the log matched the expression that confirms a checkpoint."""
        if self._request is not None:
            self._request.hear_line()

    @property
    def _is_settling(self) -> bool:
        return self._request is not None and self._request.is_settling

    def _cancel_request(self) -> None:
        if self._request is not None:
            self._request.cancel()
            self._request = None

    def terminate(self) -> None:
        if not self._is_settling:
            self._cancel_request()
        self._is_terminating = True
        living = self._living()
        # The ranks first: helpers that lose their parent's protection too early make it fail.
        for one in living:
            send(one.pid, signal.SIGTERM)
        if not living:
            self._terminate_rest()
        self._look_soon()

    def _terminate_rest(self) -> None:
        for one in self._household.members():
            send(one.pid, signal.SIGTERM)

    def kill(self) -> None:
        self._cancel_request()
        self._is_terminating = self._is_killing = True
        self._kills = 0
        self._looks = 0
        self._look()

    def forward(self, signum: int) -> None:
        """Pass on a signal that was meant for the training."""
        for one in self._living():
            send(one.pid, signum)

    def close(self) -> None:
        """Leave nothing open; the job's processes are gone by then."""
        self._rendezvous.close()
        self._board.close()
        self._store.close()

    # --- the proof --------------------------------------------------------------------------

    def _look_soon(self) -> None:
        self._looks = 0
        self._look_after(0.0)

    def _look_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """See whether anybody is left; as long as somebody is, look again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._must_report_gone:
            return
        if not self._is_killing and self._living():
            # Their ends will be told.
            return
        # What has died already must not make the next look doubtful.
        self._reaper.reap()
        collected = self._reaper.collected
        if self._is_anybody_left() or self._is_settling:
            self._empty_at = None
            self._look_later()
        elif self._empty_at != collected:
            self._empty_at = collected
            self._look_after(0.0)
        elif self._has_unread_lines():
            self._look_later()
        elif self._release.bases:
            self._ask_for_memory()
        else:
            self._say_gone()

    def _has_unread_lines(self) -> bool:
        """
        Whether the last lines of a training that ended by itself are still to be read.

        They say how far it came. Nobody is left by then, so that only a reader who is behind, or
        an output without a reader, makes the release wait, and not for long.
        """
        if self._read_until is None or self._loop.time() > self._read_until:
            return False
        return not self.is_output_read()

    def _look_later(self) -> None:
        self._looks += 1
        self._look_after(min(FIRST_LOOK_SECONDS * 2 ** min(self._looks, 10), SLOWEST_LOOK_SECONDS))

    def _is_anybody_left(self) -> bool:
        left = self._kill_all() if self._is_killing else bool(self._household.members())
        return left or bool(self._living())

    def _ask_for_memory(self) -> None:
        """Nobody is left; see whether the GPUs say so as well."""
        attempt = self._attempt

        def hear(reading: Reading) -> None:
            if attempt != self._attempt or not self._must_report_gone:
                return
            # What does not answer is not proven.
            unreleased = self._release.find_unreleased(reading or ())
            if unreleased and not self._is_patience_over():
                self._tell_lingering(unreleased)
                self._look_later()
                return
            if unreleased:
                self._tell_released_in_use(unreleased)
            self._say_gone()

        self._admission.gauges.ask(hear)

    def _is_patience_over(self) -> bool:
        """Whether memory has been in the way for as long as it may be, where a machine is shared."""
        now = self._loop.time()
        self._empty_since = now if self._empty_since is None else self._empty_since
        return 0 < self._training.release_seconds <= now - self._empty_since

    def _tell_released_in_use(self, unreleased: Mapping[str, str]) -> None:
        limit = self._training.release_seconds
        self.on_released_in_use(
            f"no process of the job was left for {limit:g} s, so that its GPUs are released although"
            f" {'; '.join(unreleased.values())}"
        )

    def _tell_lingering(self, unreleased: Mapping[str, str]) -> None:
        """Say once of these GPUs that they, and no process, are in the way of the release."""
        if self._lingering != unreleased.keys():
            self._lingering = frozenset(unreleased)
            message = f"no process of the job is left, but {'; '.join(unreleased.values())}"
            limit = self._training.release_seconds
            message += f"; --release-seconds releases them after {limit:g} s" if limit else ""
            problem = make_problem("GPUMemoryNotReleased", message)
            self._tell(Lingering(self._attempt, problem))

    def _kill_all(self) -> bool:
        if not self._household.kill():
            return False
        self._kills += 1
        if self._kills >= DESPERATE_LOOKS and os.getpid() == 1:
            # All but us, in one go of the kernel; our own helpers are made anew.
            os.kill(-1, signal.SIGKILL)
        return True

    def _say_gone(self) -> None:
        self._must_report_gone = False
        self._is_killing = False
        self._empty_at = None
        self._cancel_request()
        self._rendezvous.close()
        self.on_gone()
        self._tell(Gone(self._attempt))
