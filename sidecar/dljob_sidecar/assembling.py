"""
Puts the parts together that handle processes, output, GPUs and progress.

``dljob_sidecar.agent`` calls it once. It returns the supervisor and the facts of
:mod:`dljob_sidecar.contract`, and a way to end them all.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from dljob_sidecar.checkpoints.requests import LastOutput
from dljob_sidecar.contract import Changed, Report
from dljob_sidecar.diagnosing import stacks
from dljob_sidecar.diagnosing.tracebacks import LastWords, Tracebacks
from dljob_sidecar.linux import kernel, spawning
from dljob_sidecar.linux.family import MARK, ProcessTree
from dljob_sidecar.observing.expressions import Matcher
from dljob_sidecar.observing.facts import Observer
from dljob_sidecar.observing.gpus import nvml as gpus
from dljob_sidecar.observing.gpus.gpu_thread import GpuThread, Reading
from dljob_sidecar.observing.matching import CONFIRMED, UNMATCHED
from dljob_sidecar.observing.outputs import OutputForwarder
from dljob_sidecar.observing.rank_outputs import Outputs
from dljob_sidecar.observing.tailing import Tail
from dljob_sidecar.processes.supervising import Hooks, Processes
from dljob_sidecar.serving.admitting import Admission
from dljob_sidecar.settings import Settings
from dljob_sidecar.warm.budgets import Budget, read_free_bytes
from dljob_sidecar.warm.warming import SparePool
from dljob_wire.checkpoints import Complete, Confirmation
from dljob_wire.messages import Gpu, Post, Problem, Process, Progress, Warmth
from dljob_wire.training import Split, Training, is_at_end

LAST_WORDS_SECONDS = 5.0
LAST_WORDS_STEP_SECONDS = 0.02
ASK_AGAIN_SECONDS = 1.0
"""The pause before the driver is asked again for the number of GPUs."""
RELEASED_IN_USE_SECONDS = 60.0
"""How long a release of GPUs in use is reported, so the controller sees it despite a new start."""


MODULES = Path(__file__).parent / "importable"
"""The folder with only the package ``dljob``, also inside the SideCar's archive."""


def offer(environment: Mapping[str, str], training: Training) -> dict[str, str]:
    """Add the variables of :mod:`dljob.training`, without replacing the user's."""
    saving = training.checkpoint
    offered = {
        "DLJOB_CHECKPOINT_DIR": saving.path,
        "DLJOB_CHECKPOINT_SIGNAL": saving.signal,
        "DLJOB_CHECKPOINT_MARKER": saving.marker_file if saving.complete is Complete.MARKER else "",
        "DLJOB_PROGRESS_FILE": training.progress.file,
    }
    given = {name: value for name, value in offered.items() if value}
    # Append the folder, so the user's own entries take precedence.
    path = ":".join(filter(None, (environment.get("PYTHONPATH"), str(MODULES))))
    return {**given, **environment, "PYTHONPATH": path}


class LogCannotOpen(Exception):
    """The output file of the training cannot be opened."""


class Assembly:
    """All parts below the agent; implements :class:`~dljob_sidecar.contract.Facts`."""

    def __init__(
        self,
        settings: Settings,
        *,
        report: Report,
        changed: Changed,
        environment: Mapping[str, str],
        mark: str,
        passed: Sequence[int] = (),
        gpu_thread: GpuThread | None = None,
    ) -> None:
        """
        Take over the children of this process, and with them SIGCHLD.

        ``mark`` names the job and this start of its container; ``environment`` is that of the
        training, and ``passed`` are descriptors that it inherits. Raises :class:`LogCannotOpen`.
        """
        training = settings.training
        self._environment = environment
        environment = {
            **offer(environment, training),
            MARK: mark,
            stacks.VARIABLE: str(int(stacks.SIGNAL)),
        }
        kernel.become_subreaper()
        self._loop = asyncio.get_running_loop()
        self._gpu_thread = gpu_thread or GpuThread()
        self._reaper = spawning.Reaper()
        self._observer = Observer(
            settings,
            changed=changed,
            gpu_thread=self._gpu_thread,
            processes=self.processes,
            held=self._held,
            warmth=self.warmth,
        )
        complain = self._observer.reported.complain
        self._matcher = Matcher(
            reaper=self._reaper,
            on_match=self._take_match,
            on_problem=complain,
            progress=training.progress.log,
            confirm=training.checkpoint.confirm_log
            if training.checkpoint.confirm is Confirmation.LOG
            else "",
        )
        self._tracebacks = Tracebacks()
        self._forwarders: list[OutputForwarder] = []
        self._tails: list[Tail] = []
        self._outputs = Outputs(
            self._open_outputs(training.log_file),
            by_rank=training.processes is Split.PER_GPU,
            passed=passed,
            on_problem=complain,
            on_relief=self._observer.reported.solve,
        )
        if training.progress.file:
            self._follow_progress(training.progress.file)
        self._spare_pool = self._build_spare_pool(training, environment, on_change=changed)
        self.supervisor = self._build_supervisor(
            training, report=report, environment=environment, mark=mark
        )
        self._split = training.processes
        self._most_spares = training.most_spares
        self._asking: asyncio.TimerHandle | None = None

    def _build_spare_pool(
        self, training: Training, environment: Mapping[str, str], *, on_change: Changed
    ) -> SparePool:
        spare_pool = SparePool(
            command=training.command,
            preload=training.preload,
            environment=environment,
            outputs=self._outputs,
            reaper=self._reaper,
            on_problem=self._observer.reported.complain,
            on_relief=self._observer.reported.solve,
            on_change=on_change,
        )
        reserved = training.checkpoint.memory_bytes
        spare_pool.budget = Budget(
            training.spare_memory_bytes, functools.partial(read_free_bytes, reserved)
        )
        return spare_pool

    def _build_supervisor(
        self, training: Training, *, report: Report, environment: Mapping[str, str], mark: str
    ) -> Processes:
        has_progress = bool(training.progress.log or training.progress.file)
        return Processes(
            training,
            environment=environment,
            outputs=self._outputs,
            reaper=self._reaper,
            process_tree=ProcessTree(mark=mark, spared=self._spared),
            spare_pool=self._spare_pool,
            admission=Admission(self._gpu_thread, training.gpu_ids, show=self._observer.see_gpus),
            hooks=Hooks(
                report=report,
                on_begin=self._begin_start,
                on_changed=self._observer.measure_anew,
                on_gone=self._observer.end_start,
                on_failure=self._hear_failure,
                has_stepped=lambda: not has_progress or self._observer.progress().begun,
                # Without a source of progress it is unknown whether the first start will ever report.
                has_work=lambda: (
                    self._observer.has_work()
                    if has_progress
                    else self._observer.has_work() is not False
                ),
                output=LastOutput(
                    self._read_output,
                    is_counted=training.iterations > 0,
                    shows_all_done=lambda: is_at_end(
                        self._observer.progress().iteration, training.iterations
                    ),
                ),
                on_problem=self._observer.reported.complain,
                on_relief=self._observer.reported.solve,
                on_released_in_use=self._report_released_in_use,
            ),
        )

    def begin(self) -> None:
        """Begin to observe and to make spares."""
        # Install the handler before the first child starts, or an early end would go unnoticed.
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self._matcher.begin()
        for tail in self._tails:
            tail.begin()
        self._observer.begin()
        # Request one spare at once, because the driver's first answer may take seconds.
        self._spare_pool.expect(1, is_known=self._split is not Split.PER_GPU)
        if self._split is Split.PER_GPU:
            self._gpu_thread.ask(self._want_spares)

    def _want_spares(self, reading: Reading) -> None:
        # At most one process runs per visible GPU; a container may see all GPUs of the machine.
        visible = len(reading or ()) or gpus.count_named(self._environment) or 1
        most = min(visible, self._most_spares or visible)
        self._spare_pool.expect(most, is_known=reading is not None)
        if reading is None:
            self._asking = self._loop.call_later(ASK_AGAIN_SECONDS, self._ask_again)

    def _ask_again(self) -> None:
        self._gpu_thread.ask(self._want_spares)

    async def finish_output(self) -> None:
        """Give a slow reader of the output some time to read the last lines of the training."""
        # List the forwarders in each turn, because a forwarder closes itself when its processes
        # end.
        left = LAST_WORDS_SECONDS
        while left > 0 and not all(forwarder.is_empty for forwarder in self._all_forwarders()):
            await asyncio.sleep(LAST_WORDS_STEP_SECONDS)
            left -= LAST_WORDS_STEP_SECONDS

    def close(self) -> None:
        """End all helpers; the job's processes must have ended."""
        self._loop.remove_signal_handler(signal.SIGCHLD)
        if self._asking is not None:
            self._asking.cancel()
        self.supervisor.close()
        self._observer.close()
        self._gpu_thread.close()
        self._matcher.stop()
        self._spare_pool.close()
        for tail in self._tails:
            tail.close()
        # Close the forwarders of the ranks first; the common ones pass on their last lines.
        self._outputs.close()
        if self._forwarders:
            for forwarder in self._forwarders:
                forwarder.close()
        else:
            os.close(self._outputs.common[0])
        self._reaper.reap()

    # --- Facts ------------------------------------------------------------------------------

    def processes(self) -> tuple[Process, ...]:
        return self.supervisor.describe()

    def progress(self) -> Progress:
        return self._observer.progress()

    def gpus(self) -> tuple[Gpu, ...]:
        return self._observer.gpus()

    def problems(self) -> tuple[Problem, ...]:
        return self._observer.problems()

    def last_words(self) -> LastWords:
        return self._tracebacks.last_words()

    def post(self, post: Post) -> None:
        self._observer.post(post)

    def warmth(self) -> Warmth:
        return Warmth(
            wanted=self._spare_pool.awaited,
            ready=self._spare_pool.ready,
            memory_bytes=self._spare_pool.memory_bytes(),
            limit_bytes=self._spare_pool.limit_bytes,
        )

    # --- between the parts ------------------------------------------------------------------

    def _open_outputs(self, log_file: str) -> tuple[int, int]:
        """Return the output and the error output of the training."""
        complain = self._observer.reported.complain
        if not log_file:
            solve = self._observer.reported.solve
            self._forwarders = [
                OutputForwarder(
                    sink,
                    copy=functools.partial(self._hear_output, stream=stream),
                    on_problem=complain,
                    on_relief=solve,
                )
                for stream, sink in enumerate((1, 2))
            ]
            return self._forwarders[0].inlet, self._forwarders[1].inlet
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            output = os.open(log_file, flags, 0o644)
        except OSError as error:
            raise LogCannotOpen(str(error)) from error
        self._tails.append(
            Tail(
                log_file,
                show=self._hear_output,
                skip=self._matcher.skip,
                on_problem=functools.partial(complain, "LogUnreadable"),
                on_relief=functools.partial(self._observer.reported.solve, "LogUnreadable"),
            )
        )
        return output, output

    def _hear_output(self, block: bytes, stream: int = 0) -> None:
        self._matcher.feed(block, stream)
        self._tracebacks.feed(block, self._loop.time(), stream=stream)

    def _hear_failure(self) -> None:
        """Read the output up to the failure, before the output of the processes that fail next."""
        for forwarder in self._all_forwarders():
            forwarder.read_now()
        for tail in self._tails:
            tail.read_now()
        self._tracebacks.fail(self._loop.time())

    def _report_released_in_use(self, why: str) -> None:
        name = "GPUReleasedInUse"
        self._observer.reported.complain(name, why)
        self._loop.call_later(RELEASED_IN_USE_SECONDS, self._observer.reported.solve, name)

    def _follow_progress(self, path: str) -> None:
        observer = self._observer
        self._tails.append(
            Tail(
                path,
                show=observer.file.take,
                skip=observer.file.skip,
                on_problem=functools.partial(observer.reported.complain, "ProgressFileUnreadable"),
                on_relief=functools.partial(observer.reported.solve, "ProgressFileUnreadable"),
            )
        )

    def _take_match(self, found: dict[str, str], is_late: bool) -> None:  # noqa: FBT001 - as it is called back
        if UNMATCHED in found:
            self._observer.take_unmatched(found[UNMATCHED], is_late=is_late)
        elif CONFIRMED not in found:
            self._observer.take_groups(found, is_late=is_late)
        # A line from before this start confirms nothing for this start.
        elif not is_late:
            self.supervisor.hear_confirmation()

    def _read_output(self) -> bool:
        """Read without a pause; return True if all output of the ended processes was read."""
        forwarders = self._all_forwarders()
        for forwarder in forwarders:
            forwarder.wake()
        # Read after an end, because an earlier read may lack the last lines. Use a list, because
        # all() would stop at the first tail that is behind.
        are_shown = [tail.catch_up(self.supervisor.ended) for tail in self._tails]
        return (
            all(are_shown)
            and self._matcher.is_idle
            and all(forwarder.is_empty for forwarder in forwarders)
        )

    def _all_forwarders(self) -> tuple[OutputForwarder, ...]:
        """Return the forwarders of the ranks before the forwarders that they write to."""
        return (*self._outputs.forwarders, *self._forwarders)

    def _begin_start(self) -> None:
        # The last output of the previous start must not count as output of this one.
        for forwarder in self._all_forwarders():
            forwarder.read_now()
        for tail in self._tails:
            tail.read_now()
        self._tracebacks.begin()
        self._observer.begin_start()
        self._matcher.begin()

    def _held(self) -> tuple[str, ...]:
        return self.supervisor.held

    def _spared(self) -> list[int]:
        helper = self._matcher.pid
        return [*self._spare_pool.pids(), *([] if helper is None else [helper])]

    def _reap(self) -> None:
        self._reaper.reap()
        self.supervisor.hear_child()
