"""
Facts that the state machine does not hold: progress, GPUs, spares and problems.

:class:`Observer` is the :class:`~dljob_sidecar.contract.Facts` of the agent. It combines the output, a
progress file and the training's own reports, and polls the GPUs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dljob_sidecar.contract import Changed
from dljob_sidecar.diagnosing import stacks
from dljob_sidecar.observing import progress
from dljob_sidecar.observing.gpus import nvml as gpus
from dljob_sidecar.observing.gpus.gpu_thread import GpuThread, Reading
from dljob_sidecar.observing.problems import Problems
from dljob_sidecar.observing.shortages import ShortageWatch
from dljob_sidecar.settings import Settings
from dljob_wire.messages import MOST_PROBLEMS, Gpu, Post, Problem, Process, Progress, Warmth

log = logging.getLogger(__name__)

LONGEST_LINE = 65536
FIRST_STEP_SECONDS = 120.0
"""A start without a report counts as training after this time, because some trainings report rarely."""
OF_ONE_START = (
    "ExpressionGivenUp",
    "ExpressionTooSlow",
    "HelperCannotStart",
    "OutOfMemory",
    "ProgressNotMatched",
    "ProgressNotUnderstood",
)
"""Problems that a new start clears; the start reports them again if they persist."""

BETWEEN_SECONDS = 1.0
"""The time between two samples of a process, which show whether it computes."""


class Hang:
    """The report about a training that hangs: once, until the training moves again."""

    def __init__(
        self,
        *,
        processes: Callable[[], Sequence[Process]],
        complain: Callable[[str, str], None],
        solve: Callable[[str], None],
    ) -> None:
        self._processes = processes
        self._complain = complain
        self._solve = solve
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._told = ""
        """The progress of the training at the report."""

    def update(self, idle_seconds: float, limit: float, *, what: str) -> None:
        """Report a hang once the limit is passed; ``what`` describes the progress."""
        if not 0 < limit <= idle_seconds:
            self.end()
        elif what != self._told:
            # The training may have moved and stopped again since the last poll.
            self.end()
            # Record it at once, because the observer may poll again before the report is made.
            self._told = what
            living = [one for one in self._processes() if one.pid and one.is_running]
            before = {one.pid: stacks.sample(one.pid) for one in living}
            # Only this loop collects the processes, so each id is still valid when the signal is
            # sent.
            asked = sum(stacks.request(one.pid) for one in living)
            message = f"nothing has moved for {idle_seconds:.0f} s ({what})"

            def report() -> None:
                said = (
                    (
                        one.rank,
                        stacks.describe(
                            before[one.pid], stacks.sample(one.pid), seconds=BETWEEN_SECONDS
                        ),
                    )
                    for one in living
                )
                where = f"; {asked} of {len(living)} ranks wrote their stacks into the log"
                self._complain("TrainingHangs", f"{message}: {stacks.group(said)}{where}")

            self._timer = self._loop.call_later(BETWEEN_SECONDS, report)

    def end(self) -> None:
        """End the report: the training moves, or no process runs."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._told:
            self._told = ""
            self._solve("TrainingHangs")


class ProgressFile:
    """Reads progress from blocks that the training appends to a file."""

    def __init__(
        self, path: str, post: Callable[[Post], None], *, complain: Callable[[str, str], None]
    ) -> None:
        self._path = path
        self._post = post
        self._complain = complain
        self._unread = b""

    def take(self, block: bytes) -> None:
        *lines, rest = (self._unread + block).split(b"\n")
        self._unread = rest[:LONGEST_LINE]
        for line in filter(None, lines):
            self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        try:
            self._post(progress.parse_line(line))
        except progress.NotProgress as error:
            self._complain("ProgressNotUnderstood", f"{self._path}: {error}")

    def skip(self) -> None:
        self._unread = b""


class Observer:
    """Collects the facts; each query returns the latest known value."""

    unmatched_seconds = 300.0
    """The time without a match after which the progress expression may be wrong. It is longer than most first starts,
    because imports and data sets that load also write lines."""

    def __init__(
        self,
        settings: Settings,
        *,
        changed: Changed,
        gpu_thread: GpuThread,
        processes: Callable[[], Sequence[Process]] = tuple,
        held: Callable[[], tuple[str, ...]] = tuple,
        warmth: Callable[[], Warmth] = Warmth,
    ) -> None:
        training = settings.training
        self._training = training
        self._changed = changed
        self._gpu_thread = gpu_thread
        self._loop = asyncio.get_running_loop()
        self._clock = time.monotonic
        self._meter = progress.Meter(stall_seconds=training.progress.stall_seconds)
        self._epochs = progress.Epochs(training.iterations_per_epoch)
        self.reported = Problems(changed)
        self._gpus: tuple[Gpu, ...] = ()
        self._shortages = ShortageWatch(self.reported, log_file=training.log_file)
        self.file = ProgressFile(training.progress.file, self.post, complain=self.reported.complain)
        self._unmatched = ""
        """The last line of this start that the progress expression did not match."""
        self._told: dict[str, object] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._hang = Hang(
            processes=processes,
            complain=self.reported.complain,
            solve=self.reported.solve,
        )
        self._held, self._warmth = held, warmth

    # --- Facts ------------------------------------------------------------------------------

    def progress(self) -> Progress:
        return self._meter.progress(self._clock())

    def has_work(self) -> bool | None:
        """
        Return False if this start took no step, and None if it may have taken one without a report.

        The reports of earlier starts show that a step would have been reported.
        """
        progress = self.progress()
        if progress.begun or progress.idle_seconds >= FIRST_STEP_SECONDS:
            return True
        return False if self._meter.has_reported else None

    def gpus(self) -> tuple[Gpu, ...]:
        return self._gpus

    def problems(self) -> tuple[Problem, ...]:
        return self.reported.all()[:MOST_PROBLEMS]

    def post(self, post: Post) -> None:
        is_first = not self._meter.has_observed
        self._meter.observe(self._clock(), self._in_iterations(post))
        if is_first:
            # The first report shows how long the start took; later reports can wait.
            self._changed()

    # --- what comes in ----------------------------------------------------------------------

    def begin_start(self) -> None:
        for name in OF_ONE_START:
            self.reported.solve(name)
        self._unmatched = ""
        self._meter.begin(self._clock())

    def measure_anew(self) -> None:
        """Forget the speed of the former members; the training itself goes on."""
        self._meter.measure_anew(self._clock())

    def end_start(self) -> None:
        if self._unmatched:
            # No more output follows, so the progress will stay unknown.
            self._complain_of_unmatched()
        self._meter.end()
        self._hang.end()
        self.reported.solve("TrainingStalled")
        # A shortage may be the reason why the training ended.
        self._shortages.update()

    def take_groups(self, groups: dict[str, str], *, is_late: bool = False) -> None:
        """Take the groups of a matched line; a late line belongs to the previous start."""
        post = progress.parse_groups(groups)
        if is_late:
            self._meter.recall(self._in_iterations(post))
        else:
            self._unmatched = ""
            self.reported.solve("ProgressNotMatched")
            self.post(post)

    def _in_iterations(self, post: Post) -> Post:
        post = progress.in_iterations(post, self._training.progress.samples_per_iteration or 0)
        return self._epochs.in_iterations(post)

    def take_unmatched(self, line: str, *, is_late: bool) -> None:
        if not is_late:
            self._unmatched = line

    def _complain_of_unmatched(self) -> None:
        name = "ProgressNotMatched"
        message = (
            f"progress.log has matched no line of the output; the last line is {self._unmatched!r}"
        )
        # Do not log the problem again only because the last line differs.
        self.reported.complain_again(name, message)

    # --- looking now and then ---------------------------------------------------------------

    def begin(self) -> None:
        # Set the timer first, so an exception in the poll does not end the polling.
        self._timer = self._loop.call_later(self._training.poll_seconds, self.begin)
        self.poll()
        self._gpu_thread.ask(self.see_gpus)

    def poll(self) -> None:
        now = self.progress()
        if now.stalled:
            self.reported.complain(
                "TrainingStalled",
                f"nothing has moved for {self._training.progress.stall_seconds:g} s "
                f"(iteration {now.iteration})",
            )
        else:
            self.reported.solve("TrainingStalled")
        if self._unmatched and now.idle_seconds > self.unmatched_seconds:
            self._complain_of_unmatched()
        pauses = self._meter.pauses
        what = f"iteration {now.iteration}; the longest pause before was {pauses.longest:.1f} s"
        limit = pauses.limit(self._training.progress.stall_seconds)
        self._hang.update(now.idle_seconds, limit, what=what)
        self._tell("progress", (now.iteration, now.epoch, now.metrics, now.stalled))
        self._tell("spares", self._warmth().ready)
        self._shortages.update()

    def _tell(self, what: str, news: object) -> None:
        if self._told.get(what) != news:
            self._told[what] = news
            self._loop.call_soon(self._changed)

    def see_gpus(self, reading: Reading) -> None:
        """Take a reading of NVML, including readings that another part requested."""
        if reading is None:
            seconds = self._gpu_thread.patience_seconds
            self.reported.complain("GPUsDoNotAnswer", f"NVML has not answered for {seconds:g} s")
            return
        self.reported.solve("GPUsDoNotAnswer")
        self._gpus = self._gpu_thread.bases.mark_strangers(reading, self._held())
        strangers = [one.uuid for one in self._gpus if one.busy_unassigned]
        faults = [(one.xid_errors, one.ecc_errors, one.lost_because) for one in self._gpus]
        self._tell("gpus", (strangers, faults))
        _report_gpus(
            self.reported,
            reading,
            gpu_thread=self._gpu_thread,
            expected=self._training.expects_gpus,
        )

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._shortages.close()


def _report_gpus(
    problems: Problems, reading: Sequence[Gpu], *, gpu_thread: GpuThread, expected: bool
) -> None:
    """Report vanished GPUs, and a missing GPU where one is expected."""
    lost = gpus.find_lost(reading, [str(one.index) for one in reading])
    if lost:
        problems.complain("GPUsVanished", "; ".join(lost))
    else:
        problems.solve("GPUsVanished")
    if not expected:
        return
    if reading or (gpu_thread.missing and any(Path("/dev").glob("nvidia[0-9]*"))):
        problems.solve("GPUsNotVisible")
    else:
        why = gpu_thread.missing or "NVML counts none"
        problems.complain("GPUsNotVisible", f"no GPU is to be seen in this container: {why}")
