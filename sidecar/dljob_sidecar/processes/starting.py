"""
Starts the ranks of a run, warm if a spare interpreter is ready, and detects when all run.

A start is complete when each process runs the user's program. A spare that ends earlier is replaced
by a cold start, so a rank never has two processes.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Mapping
from typing import Callable

from dljob_sidecar.behaviour.events import Event, Started, StartFailed
from dljob_sidecar.linux.kernel import send
from dljob_sidecar.linux.spawning import CannotStart, Ended, Reaper, start
from dljob_sidecar.observing.rank_outputs import Outputs
from dljob_sidecar.processes import ranks
from dljob_sidecar.processes.rank_environment import RankEnvironment
from dljob_sidecar.processes.ranks import RankProcess
from dljob_sidecar.remedies import make_problem
from dljob_sidecar.warm.warming import SparePool
from dljob_wire.messages import Problem, Run
from dljob_wire.training import Training

log = logging.getLogger(__name__)


class RankStarter:
    """Starts the ranks of one attempt after the other."""

    def __init__(
        self,
        training: Training,
        environment: RankEnvironment,
        *,
        outputs: Outputs,
        reaper: Reaper,
        spare_pool: SparePool,
        tell: Callable[[Event], None],
        on_end: Callable[[RankProcess, Ended], None],
        look_soon: Callable[[], None],
    ) -> None:
        """Call ``on_end`` for each end after the program ran, ``look_soon`` for other ends."""
        self._training = training
        self.environment = environment
        self._outputs = outputs
        self._reaper = reaper
        self._spare_pool = spare_pool
        self._tell = tell
        self._on_end = on_end
        self._look_soon = look_soon
        self.on_enter: Callable[[RankProcess], None] = lambda _: None
        """Called before a process of a new start."""
        self.on_refusal: Callable[[str], None] = lambda _: None
        """Called if a process that joins the others cannot be started."""
        self.attempt = 0
        self.rank_processes: list[RankProcess] = []
        """All processes of the attempt, also those that left, or that come, in a live change."""
        self._has_reported = False
        """True after this start was reported as complete or failed."""
        self.is_terminating = False
        """True if this attempt is to end, so no further rank starts."""

    def begin(self, attempt: int) -> None:
        """Forget the ranks of the previous attempt."""
        self.attempt = attempt
        self.rank_processes = []
        self._has_reported = False
        self.is_terminating = False

    def living(self) -> list[RankProcess]:
        return [one for one in self.rank_processes if one.is_living]

    @property
    def members(self) -> list[RankProcess]:
        """The processes of the present run in the order of their ranks."""
        members = (one for one in self.rank_processes if one.is_member)
        return sorted(members, key=lambda one: one.rank)

    def start(self, run: Run, names: Mapping[str, str]) -> bool:
        """Start all ranks of a run in this container; ``names`` are the names of its GPUs."""
        self.environment.begin_start(run)
        framework = self._training.framework.value
        for rank in ranks.lay_out(run, framework=framework, names=names):
            rank_process = RankProcess(rank, is_alone=run.world_size == 1)
            self.rank_processes.append(rank_process)
            self.on_enter(rank_process)
            if not self._start_one(rank_process):
                return False
        self._spare_pool.want(run.processes)
        self._see_started()
        return True

    def start_more(self, rank_processes: list[RankProcess]) -> None:
        """Start processes that join the others, until one cannot be started."""
        for one in rank_processes:
            self.rank_processes.append(one)
            if not self._start_one(one):
                return

    def fail(self, problem: Problem) -> None:
        """Report that this start, or that of processes that join it, has failed."""
        if self._has_reported:
            self.on_refusal(problem.message)
            return
        self._has_reported = True
        self._tell(StartFailed(self.attempt, problem))
        self._look_soon()

    def _start_one(self, rank_process: RankProcess) -> bool:
        """Start a process, warm if possible and else cold; return True on success."""
        attempt = self.attempt

        def hear(fault: str) -> None:
            self._hear_warm(rank_process, attempt, fault=fault)

        pid = self._spare_pool.take(
            self.environment.of(rank_process), hear, rank=rank_process.signature
        )
        if pid is None:
            return self._start_cold(rank_process)
        rank_process.output = self._spare_pool.output_of(pid)
        rank_process.pid, rank_process.warm = pid, True
        self._watch(rank_process, pid)
        return True

    def _start_cold(self, rank_process: RankProcess) -> bool:
        try:
            output = self._outputs.open(is_alone=rank_process.signature is None)
        except OSError as error:
            self.fail(make_problem("CannotStart", f"no pipe for its output: {error.strerror}"))
            return False
        rank_process.output = output
        output.sign(rank_process.signature)
        out, err = output.descriptors
        try:
            pid = start(
                self._training.command,
                env=self.environment.of(rank_process),
                stdout=out,
                stderr=err,
                pass_fds=self._outputs.passed,
            )
        except CannotStart as error:
            self.fail(make_problem(error.reason, str(error)))
            return False
        finally:
            output.let_go()
        rank_process.pid, rank_process.warm, rank_process.is_running = pid, False, True
        self._watch(rank_process, pid)
        return True

    def _watch(self, rank_process: RankProcess, pid: int) -> None:
        attempt = self.attempt
        self._reaper.watch(
            pid, lambda ended: self._hear_end(rank_process, attempt, pid=pid, ended=ended)
        )

    def _hear_warm(self, rank_process: RankProcess, attempt: int, *, fault: str) -> None:
        """Handle the answer of a spare; on a fault, replace the spare by a cold start."""
        # A rank without a process has id 0, and killing 0 would kill the SideCar's own process
        # group.
        if (
            attempt != self.attempt
            or rank_process.is_running
            or rank_process.ended
            or not rank_process.pid
        ):
            return
        if fault:
            log.warning("rank %d starts cold: its spare interpreter: %s", rank_process.rank, fault)
            # The cold process starts when the spare has ended, so there are never two.
            send(rank_process.pid, signal.SIGKILL)
            return
        rank_process.is_running = True
        self._see_started()

    def _hear_end(self, rank_process: RankProcess, attempt: int, *, pid: int, ended: Ended) -> None:
        # Ignore the late end of an earlier attempt's process or of a replaced spare.
        if attempt != self.attempt or rank_process.pid != pid:
            return
        # The answer may still be in the pipe.
        self._spare_pool.read_answer(pid)
        if rank_process.is_running:
            rank_process.ended = ended
            self._on_end(rank_process, ended)
            return
        # Replace a spare that ended before it became the program.
        rank_process.pid, rank_process.warm = 0, False
        if not self.is_terminating and self._start_cold(rank_process):
            self._see_started()
        self._look_soon()

    def _see_started(self) -> None:
        ready = all(one.is_running for one in self.rank_processes)
        if ready and not self._has_reported and not self.is_terminating:
            self._has_reported = True
            self._tell(Started(self.attempt))
