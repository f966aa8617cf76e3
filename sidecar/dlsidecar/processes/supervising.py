"""
Starting the training processes, and ending them with proof that none is left.

Called by ``dlsidecar.agent`` with the decisions of the machine; see
:class:`dlsidecar.contract.Supervisor` for the promises. The way down is: a checkpoint, SIGTERM to
the ranks (and to what they leave behind as soon as they have ended), SIGKILL to everything that
:mod:`dlsidecar.linux.family` can find, again and again, until :mod:`dlsidecar.processes.release_proof` has
proven that nothing is left.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Callable

from dlsidecar.behaviour.events import Event, RankEnded
from dlsidecar.checkpoints.requests import LastOutput
from dlsidecar.checkpoints.storing import CheckpointStore
from dlsidecar.contract import Report
from dlsidecar.linux.family import ProcessTree
from dlsidecar.linux.kernel import send
from dlsidecar.linux.spawning import Ended, Reaper
from dlsidecar.observing.rank_outputs import Outputs
from dlsidecar.processes.memory_proof import MemoryProof
from dlsidecar.processes.rank_environment import RankEnvironment
from dlsidecar.processes.rank_process import RankProcess
from dlsidecar.processes.release_proof import ReleaseProof
from dlsidecar.processes.saving import CheckpointRequests
from dlsidecar.processes.starting import RankStarter
from dlsidecar.remedies import make_problem
from dlsidecar.serving.admitting import Admission, Answer
from dlsidecar.warm.budgets import read_free_bytes
from dlsidecar.warm.warming import SparePool
from dlwire.messages import Problem, Process, Run
from dlwire.training import Training

log = logging.getLogger(__name__)

EARLY_SECONDS = 300.0
"""A start that fails so early and before its first step may have failed to read its checkpoint."""
LAST_LINES_SECONDS = 1.0
"""The longest time that the release waits for the last lines of a training that ended by itself."""


@dataclass(frozen=True)
class Hooks:
    """The functions by which a supervisor asks and informs the other parts."""

    report: Report = lambda _event: None
    on_begin: Callable[[], None] = lambda: None
    """Called before the ranks of an attempt are started."""
    on_gone: Callable[[], None] = lambda: None
    on_failure: Callable[[], None] = lambda: None
    """Called when the first process of a start has failed by itself, before any is ended."""
    has_stepped: Callable[[], bool] = lambda: True
    """Asked when a process has ended, whether this start of the training took a step."""
    output: LastOutput = LastOutput()
    on_problem: Callable[[str, str], None] = lambda _name, _message: None
    """Called with each problem of the checkpoints."""
    on_relief: Callable[[str], None] = lambda _name: None
    """Called with the name of such a problem when it is over."""
    on_released_in_use: Callable[[str], None] = lambda _why: None
    """Called with the reason when GPUs are released though their memory is in use."""


class Processes:
    """The supervisor of one job's processes in one container."""

    def __init__(
        self,
        training: Training,
        *,
        environment: Mapping[str, str],
        outputs: Outputs,
        reaper: Reaper,
        process_tree: ProcessTree,
        spare_pool: SparePool,
        admission: Admission,
        hooks: Hooks = Hooks(),
    ) -> None:
        self._hooks = hooks
        self._store = CheckpointStore(
            training.checkpoint,
            read_free_bytes,
            on_problem=hooks.on_problem,
            on_relief=hooks.on_relief,
        )
        self._process_tree, self._spare_pool, self._admission = process_tree, spare_pool, admission
        self._loop = asyncio.get_running_loop()
        self._started_at = 0.0
        self._read_until: float | None = None
        """Until when unread output keeps a start from being over; None where it ended otherwise."""
        self._memory = MemoryProof(
            admission.gpu_thread,
            release_seconds=training.release_seconds,
            tell=self._tell,
            on_released_in_use=hooks.on_released_in_use,
        )
        self._proof = ReleaseProof(
            reaper=reaper,
            process_tree=process_tree,
            memory=self._memory,
            tell=self._tell,
            ranks_live=lambda: bool(self._starter.living()),
            # While a checkpoint is on its way to the disk, the limit is that of the store.
            is_settling=lambda: self._requests.is_settling and not self._requests.is_securing,
            is_output_pending=lambda: self._has_unread_lines() or self._store.write_the_rest(),
            on_gone=self._end_start,
        )
        self._environment = RankEnvironment(training, environment, store=self._store)
        self._starter = RankStarter(
            training,
            self._environment,
            outputs=outputs,
            reaper=reaper,
            spare_pool=spare_pool,
            tell=self._tell,
            on_end=self._hear_end,
            look_soon=self._proof.look_soon,
        )
        self._requests = CheckpointRequests(
            self._store,
            self._starter,
            outputs=outputs,
            reaper=reaper,
            report=hooks.report,
            list_members=self._list_members,
        )

    def describe(self) -> tuple[Process, ...]:
        # One that could not be started has no process id.
        return tuple(one.describe() for one in self._starter.rank_processes if one.pid)

    # --- starting ---------------------------------------------------------------------------

    def start(self, run: Run, attempt: int) -> None:
        # From here on, news of the former attempt is known by its number and dropped: ends,
        # answers of spares, confirmations.
        self._starter.begin(attempt)
        self._proof.begin(attempt)
        self._read_until = None
        self._started_at = self._loop.time()

        # The GPUs and the folder of checkpoints are looked at in threads, and meanwhile the attempt may be ended.
        def start_ranks(names: Mapping[str, str]) -> None:
            if self._may_start(attempt):
                self._start_ranks(run, names)

        def hear(answer: Answer) -> None:
            if isinstance(answer, Problem):
                self._starter.fail(answer)
            else:
                self._memory.release = answer.release
                # Nothing that is torn must be left where the training looks for checkpoints.
                self._store.vet(run, lambda: start_ranks(answer.names))

        self._admission.ask(run, hear, is_wanted=lambda: self._may_start(attempt))

    def _start_ranks(self, run: Run, names: Mapping[str, str]) -> None:
        """Start the ranks; where that breaks, as for want of a descriptor, the start has failed."""
        # The agent, which carried out the start, is no caller of this when the answer came from a thread.
        # Without this report the machine would wait for the start for ever.
        try:
            self._hooks.on_begin()
            if self._starter.start(run, names):
                self._store.begin_start(self._list_members)
        except Exception as error:
            log.exception("the ranks could not be started")
            self._starter.fail(make_problem("CannotStart", f"{type(error).__name__}: {error}"))

    def _may_start(self, attempt: int) -> bool:
        is_latest = attempt == self._starter.attempt
        return is_latest and self._proof.is_due and not self._starter.is_terminating

    @property
    def ended(self) -> tuple[int, int]:
        """The attempt, and how many of its processes have ended."""
        return self._starter.attempt, sum(
            one.ended is not None for one in self._starter.rank_processes
        )

    def prepare(self, processes: int) -> None:
        self._spare_pool.prepare(processes)

    def _list_members(self) -> list[int]:
        return [one.pid for one in self._process_tree.members()]

    def _tell(self, event: Event) -> None:
        # The order stays: the memory proof and the release proof report through here as well, so
        # that Gone comes after each end.
        self._loop.call_soon(self._hooks.report, event)

    # --- hearing ----------------------------------------------------------------------------

    def _hear_end(self, rank_process: RankProcess, ended: Ended) -> None:
        if self._ends_by_itself:
            self._read_until = self._loop.time() + LAST_LINES_SECONDS
        self._see_failure(ended)
        attempt = self._starter.attempt
        self._tell(RankEnded(attempt, rank_process.rank, ended.code, ended.signal, time.time()))
        self._requests.hear_end()
        if not self._starter.living():
            if self._starter.is_terminating:
                self._terminate_rest()
            self._proof.look_soon()

    @property
    def _ends_by_itself(self) -> bool:
        """Whether the SideCar has not asked for an end yet: neither by a signal nor by a checkpoint
        before it."""
        return not self._starter.is_terminating and not self._requests.wants_end

    def _see_failure(self, ended: Ended) -> None:
        """
        Note that a start failed by itself, if this is the first end that says so.

        One that fails early may have failed to read its checkpoint.
        """
        is_own = self._ends_by_itself and ended.code != 0
        if is_own:
            self._hooks.on_failure()
        is_first = sum(one.ended is not None for one in self._starter.rank_processes) == 1
        is_early = self._loop.time() - self._started_at < EARLY_SECONDS
        if is_first and is_own and is_early and not self._hooks.has_stepped():
            self._store.note_failure()

    def hear_child(self) -> None:
        """Some child was collected: look at once, if we are looking."""
        self._proof.hear_child()

    # --- stopping ---------------------------------------------------------------------------

    def checkpoint(self, *, is_trial: bool = False) -> None:
        if not self._proof.is_due:
            # *Gone* has just been reported, and is the last event of an attempt.
            return
        self._requests.ask(is_trial=is_trial, output=self._hooks.output)

    def give_up_checkpoint(self) -> None:
        self._requests.give_up()

    def hear_confirmation(self) -> None:
        """A line of the log matched the expression that confirms a checkpoint."""
        self._requests.hear_line()

    def terminate(self) -> None:
        # Where all that were asked have ended, their files or last lines may
        # still confirm the checkpoint.
        if not self._requests.is_settling:
            self._requests.cancel()
        self._starter.is_terminating = True
        living = self._starter.living()
        # The ranks first: helpers that lose their parent's protection too early make it fail.
        for one in living:
            send(one.pid, signal.SIGTERM)
        if not living:
            self._terminate_rest()
        self._proof.look_soon()

    def _terminate_rest(self) -> None:
        for one in self._process_tree.members():
            send(one.pid, signal.SIGTERM)

    def kill(self) -> None:
        # A copy from memory to the disk may take longer than the grace. The release waits for it in
        # any case, and it needs no process: so it can still confirm the checkpoint.
        if not self._requests.is_securing:
            self._requests.cancel()
        # Spares that are just becoming ranks must not be replaced by cold starts.
        self._starter.is_terminating = True
        self._proof.kill()

    def forward(self, signum: int) -> None:
        """Pass on a signal that was meant for the training."""
        for one in self._starter.living():
            send(one.pid, signum)

    def close(self) -> None:
        """Leave nothing open; the job's processes are gone by then."""
        self._environment.close()
        self._store.close()

    def _end_start(self) -> None:
        self._requests.cancel()
        self._hooks.on_gone()

    def _has_unread_lines(self) -> bool:
        """
        Whether the last lines of a training that ended by itself are still to be read.

        They say how far it came. No process is left by then, so that only a slow reader, a slow file or an
        output without a reader delays the release, and not for long.
        """
        if self._read_until is None or self._loop.time() > self._read_until:
            return False
        return not self._hooks.output.is_read()
