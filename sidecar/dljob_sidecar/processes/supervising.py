"""
Starts the training processes, and ends them with proof that none is left.

``dljob_sidecar.agent`` calls this module with the decisions of the machine; see
:class:`dljob_sidecar.contract.Supervisor` for the guarantees. A stop takes these steps: a checkpoint,
SIGTERM to the ranks (and to the processes that they leave behind, as soon as the ranks have ended),
and SIGKILL to everything that :mod:`dljob_sidecar.linux.family` finds, repeated until
:mod:`dljob_sidecar.processes.release_proof` has proven that no process is left.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Callable

from dljob_sidecar.behaviour.events import (
    CheckpointDone,
    CheckpointFailed,
    Event,
    RankEnded,
    Unstepped,
)
from dljob_sidecar.checkpoints import requests
from dljob_sidecar.checkpoints.requests import LastOutput
from dljob_sidecar.checkpoints.storing import CheckpointStore
from dljob_sidecar.contract import Report
from dljob_sidecar.linux.family import MARK, ProcessTree
from dljob_sidecar.linux.kernel import send
from dljob_sidecar.linux.spawning import Ended, Reaper
from dljob_sidecar.observing.rank_outputs import Outputs
from dljob_sidecar.processes.departing import Departure
from dljob_sidecar.processes.live_board import Boards
from dljob_sidecar.processes.live_changes import LiveChanges
from dljob_sidecar.processes.rank_environment import RankEnvironment
from dljob_sidecar.processes.ranks import RankProcess
from dljob_sidecar.processes.release_proof import MemoryProof, ReleaseProof
from dljob_sidecar.processes.starting import RankStarter
from dljob_sidecar.remedies import make_problem
from dljob_sidecar.serving.admitting import Admission, Answer
from dljob_sidecar.warm.budgets import read_free_bytes
from dljob_sidecar.warm.warming import SparePool
from dljob_wire.messages import Problem, Process, Run, Target
from dljob_wire.training import Training

log = logging.getLogger(__name__)

EARLY_SECONDS = 300.0
"""A start that fails this early, before its first step, may lack a readable checkpoint."""
LAST_LINES_SECONDS = 1.0
"""The longest time that the release waits for the last lines of a training that ended by itself."""


class CheckpointRequests:
    """Asks the ranks of the present attempt to save themselves; only the latest request counts."""

    def __init__(
        self,
        store: CheckpointStore,
        starter: RankStarter,
        *,
        outputs: Outputs,
        reaper: Reaper,
        report: Report,
        list_members: Callable[[], list[int]],
    ) -> None:
        self._store = store
        self._starter = starter
        self._outputs = outputs
        self._reaper = reaper
        self._report = report
        self._list_members = list_members
        self._request: requests.Request | None = None

    def ask(self, *, is_trial: bool, is_blamed: bool, output: requests.LastOutput) -> None:
        """Cancel the previous request, and ask again; report problems only if it ``is_blamed``."""
        attempt = self._starter.attempt
        self.give_up()

        def hear(fault: str) -> None:
            # Ignore the answer to a previous request or of a previous attempt.
            if attempt != self._starter.attempt or request.is_given_up:
                return
            if self._request is request:
                # Clear the request, so a later end does not count as its answer.
                self._request = None
            if not fault:
                if request.is_trial:
                    self._store.learn()
                self._report(CheckpointDone(attempt))
            else:
                self._report(CheckpointFailed(attempt, make_problem("CheckpointFailed", fault)))

        ranks, environment = self._starter.members, self._starter.environment
        watch = self._store.make_watch(self._list_members)
        request = self._request = requests.Request(
            self._store.saving,
            ranks,
            environment=environment.of(ranks[0]) if ranks else environment.given,
            outputs=self._outputs.common,
            reaper=self._reaper,
            watch=watch if is_blamed else replace(watch, on_problem=lambda *_: None),
            output=output,
            report=hear,
        )
        request.is_trial = is_trial

    def give_up(self) -> None:
        if self._request is not None:
            self._request.is_given_up = True
        self.cancel()

    def cancel(self) -> None:
        if self._request is not None:
            self._request.cancel()
            self._request = None

    def hear_end(self) -> None:
        """Handle the end of a rank, which may be its answer."""
        if self._request is not None:
            self._request.hear_end()

    def hear_line(self) -> None:
        """Handle a log line that matches the expression of a checkpoint confirmation."""
        if self._request is not None:
            self._request.hear_line()

    @property
    def is_settling(self) -> bool:
        return self._request is not None and self._request.is_settling

    @property
    def is_securing(self) -> bool:
        return self._request is not None and self._request.is_securing

    @property
    def wants_end(self) -> bool:
        return self._request is not None and not self._request.is_trial


@dataclass(frozen=True)
class Hooks:
    """The callbacks of a supervisor to the other parts."""

    report: Report = lambda _event: None
    on_begin: Callable[[], None] = lambda: None
    """Called before the ranks of an attempt are started."""
    on_gone: Callable[[], None] = lambda: None
    on_failure: Callable[[], None] = lambda: None
    """Called when the first process of a start fails by itself, before the others are ended."""
    has_stepped: Callable[[], bool] = lambda: True
    """Called when a process has ended: True if this start of the training took a step."""
    has_work: Callable[[], bool | None] = lambda: True
    """Returns False if this start took no step, and None if it may have taken one without a report."""
    output: LastOutput = LastOutput()
    on_problem: Callable[[str, str], None] = lambda _name, _message: None
    """Called with each problem of the checkpoints."""
    on_relief: Callable[[str], None] = lambda _name: None
    """Called with the name of such a problem when it is over."""
    on_changed: Callable[[], None] = lambda: None
    """Called when the members of the training have changed live."""
    on_released_in_use: Callable[[str], None] = lambda _why: None
    """Called with the reason when GPUs are released while their memory is in use."""


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
        """Until when unread output delays the end of a start; None if it ended otherwise."""
        self._memory = MemoryProof(
            admission.gpu_thread,
            release_seconds=training.release_seconds,
            tell=self._tell,
            on_released_in_use=hooks.on_released_in_use,
        )

        def end_start() -> None:
            self._requests.cancel()
            self._live.end_start()
            hooks.on_gone()

        self._proof = ReleaseProof(
            reaper=reaper,
            process_tree=process_tree,
            memory=self._memory,
            tell=self._tell,
            ranks_live=lambda: bool(self._starter.living()),
            # While a checkpoint is copied to disk, the limit of the store applies.
            is_settling=lambda: self._requests.is_settling and not self._requests.is_securing,
            is_output_pending=lambda: self._has_unread_lines() or self._store.write_the_rest(),
            on_gone=end_start,
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
        self._live = LiveChanges(
            training,
            self._starter,
            boards=Boards(environment.get(MARK, "")),
            admission=admission,
            memory=self._memory,
            make_departure=functools.partial(
                Departure,
                reaper=reaper,
                process_tree=process_tree,
                gpu_thread=admission.gpu_thread,
            ),
            tell=self._tell,
            on_changed=self._hear_changed,
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
        # A process that could not be started has no process id.
        return tuple(one.describe() for one in self._starter.members if one.pid)

    @property
    def held(self) -> tuple[str, ...]:
        """The GPUs that living processes of the job may use."""
        held = (gpu for one in self._starter.living() for gpu in (*one.gpus, *one.own_gpus))
        return tuple(dict.fromkeys(held))

    # --- starting ---------------------------------------------------------------------------

    def start(self, run: Run, attempt: int, *, joins: bool = False) -> None:
        # From here on, events of the previous attempt (ends, answers of spares, confirmations) are
        # recognised by its number and dropped.
        self._starter.begin(attempt)
        self._proof.begin(attempt)
        self._read_until = None
        self._started_at = self._loop.time()

        def hear(answer: Answer) -> None:
            if isinstance(answer, Problem):
                self._starter.fail(answer)
            else:
                self._memory.release = answer.release
                # Vet first, because the training must not find a torn checkpoint.
                self._store.vet(
                    run, lambda: self._start_ranks(run, answer.names, attempt, joins=joins)
                )

        self._admission.ask(run, hear, is_wanted=lambda: self._may_start(attempt))

    def _start_ranks(
        self, run: Run, names: Mapping[str, str], attempt: int, *, joins: bool
    ) -> None:
        """Start the ranks; an exception, such as too few descriptors, fails the start."""
        # Threads inspect the GPUs and the checkpoint folder; the attempt may end meanwhile.
        if not self._may_start(attempt):
            return
        # Report exceptions here: after an answer from a thread, the agent is not the caller.
        # Without a report, the machine would wait for the start forever.
        try:
            self._hooks.on_begin()
            self._live.begin_start(run, joins=joins)
            if self._starter.start(run, names):
                self._live.follow()
                self._store.begin_start(self._list_members)
        except Exception as error:
            log.exception("the ranks could not be started")
            self._starter.fail(make_problem("CannotStart", f"{type(error).__name__}: {error}"))

    def _may_start(self, attempt: int) -> bool:
        is_latest = attempt == self._starter.attempt
        return is_latest and self._proof.is_due and not self._starter.is_terminating

    @property
    def ended(self) -> tuple[int, int]:
        """The attempt, and the number of its processes that have ended."""
        return self._starter.attempt, sum(
            one.ended is not None for one in self._starter.rank_processes
        )

    def prepare(self, processes: int) -> None:
        self._spare_pool.prepare(processes)

    def _list_members(self) -> list[int]:
        return [one.pid for one in self._process_tree.members()]

    def _tell(self, event: Event) -> None:
        # The order is kept: the memory proof and the release proof also report here, so Gone
        # follows each end.
        self._loop.call_soon(self._hooks.report, event)

    # --- live changes -----------------------------------------------------------------------

    def change(self, run: Run, target: Target) -> None:
        # Otherwise *Gone* has just been reported, and is the last event of an attempt.
        if self._proof.is_due:
            self._live.change(run, target)

    def try_live(self, run: Run, number: int) -> None:
        if self._proof.is_due:
            self._live.try_live(run, number)

    def withdraw(self) -> None:
        self._live.withdraw()

    def _hear_changed(self, run: Run) -> None:
        self._spare_pool.want(run.processes)
        self._hooks.on_changed()

    # --- hearing ----------------------------------------------------------------------------

    def _hear_end(self, rank_process: RankProcess, ended: Ended) -> None:
        attempt = self._starter.attempt
        end = RankEnded(attempt, rank_process.rank, ended.code, ended.signal, time.time())
        if self._live.hear_end(rank_process, ended, end):
            return
        # An exit with 0 may be the end of the job even if it was asked for; the count decides.
        if self._ends_by_itself or ended.code == 0:
            self._read_until = self._loop.time() + LAST_LINES_SECONDS
        self._see_failure(ended)
        self._tell(end)
        self._requests.hear_end()
        if not self._starter.living():
            if self._starter.is_terminating:
                self._terminate_rest()
            self._proof.look_soon()

    @property
    def _ends_by_itself(self) -> bool:
        """True if the SideCar has not asked for an end, by a signal or by a checkpoint before it."""
        return not self._starter.is_terminating and not self._requests.wants_end

    def _see_failure(self, ended: Ended) -> None:
        """
        Record that a start failed by itself, on the first end that shows it.

        An early failure may mean that the training could not read its checkpoint.
        """
        is_own = self._ends_by_itself and ended.code != 0
        if is_own:
            self._hooks.on_failure()
        is_first = sum(one.ended is not None for one in self._starter.rank_processes) == 1
        is_early = self._loop.time() - self._started_at < EARLY_SECONDS
        if is_first and is_own and is_early and not self._hooks.has_stepped():
            self._store.note_failure()

    def hear_child(self) -> None:
        """Scan at once after a child was collected, if scanning is under way."""
        self._proof.hear_child()

    # --- stopping ---------------------------------------------------------------------------

    def checkpoint(self, *, is_trial: bool = False) -> None:
        if not self._proof.is_due:
            # *Gone* has just been reported, and is the last event of an attempt.
            return
        attempt, has_work = self._starter.attempt, self._hooks.has_work()
        if not has_work:
            self._tell(Unstepped(attempt))
        if has_work is False and self._store.saves_alone:
            problem = make_problem("CheckpointFailed", "the training has not taken a step yet")
            self._tell(CheckpointFailed(attempt, problem))
        else:
            is_blamed = bool(has_work)
            self._requests.ask(is_trial=is_trial, is_blamed=is_blamed, output=self._hooks.output)

    def give_up_checkpoint(self) -> None:
        self._requests.give_up()

    def hear_confirmation(self) -> None:
        """Handle a log line that matches the expression of a checkpoint confirmation."""
        self._requests.hear_line()

    def terminate(self) -> None:
        # After all ranks have ended, their files or last lines may still confirm the checkpoint.
        if not self._requests.is_settling:
            self._requests.cancel()
        self._live.cancel()
        self._starter.is_terminating = True
        living = self._starter.living()
        # End the ranks first: helpers that end before their parent would make it fail.
        for one in living:
            send(one.pid, signal.SIGTERM)
        if not living:
            self._terminate_rest()
        self._proof.look_soon()

    def _terminate_rest(self) -> None:
        for one in self._process_tree.members():
            send(one.pid, signal.SIGTERM)

    def kill(self) -> None:
        # A copy from memory to disk may take longer than the grace period. The release waits for
        # the copy, which needs no process, so the copy can still confirm the checkpoint.
        if not self._requests.is_securing:
            self._requests.cancel()
        self._live.cancel()
        # Spares that are just becoming ranks must not be replaced by cold starts.
        self._starter.is_terminating = True
        self._proof.kill()

    def forward(self, signum: int) -> None:
        """Forward a signal to the training processes."""
        for one in self._starter.living():
            send(one.pid, signum)

    def close(self) -> None:
        """Close all resources; the job's processes must have ended."""
        self._live.end_start()
        self._environment.close()
        self._store.close()

    def _has_unread_lines(self) -> bool:
        """
        Return True if the last lines of a training that ended by itself, or well, are still unread.

        The last lines show the final progress. No process is left, so only a slow reader, a slow
        file or an output without a reader delays the release, for a limited time.
        """
        if self._read_until is None or self._loop.time() > self._read_until:
            return False
        return not self._hooks.output.is_read()
