"""
What is known beyond the machine: progress, GPUs, spares and problems.

:class:`Observer` is the :class:`~dlsidecar.contract.Facts` of the agent. It brings together what
comes from the output, from a progress file and from the training itself, and looks at the GPUs
now and then.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from dlsidecar.contract import Changed
from dlsidecar.diagnosing.hanging import Hang
from dlsidecar.observing import gpus, progress
from dlsidecar.observing.file_threads import Scout
from dlsidecar.observing.gpu_thread import Gauges, Reading
from dlsidecar.observing.shortages import MemoryLimit, PidLimit, find_full_disk
from dlsidecar.remedies import make_problem
from dlsidecar.settings import Settings
from dlwire.messages import MOST_PROBLEMS, Gpu, Post, Problem, Process, Progress, Warmth

log = logging.getLogger(__name__)

LONGEST_LINE = 65536
OF_ONE_START = (
    "ExpressionGivenUp",
    "ExpressionTooSlow",
    "HelperCannotStart",
    "OutOfMemory",
    "ProgressNotMatched",
    "ProgressNotUnderstood",
)
"""What is forgiven with a new start: it is tried again, and told again if need be."""


class Observer:
    """Collects the facts; each question is answered from what was last seen."""

    unmatched_seconds = 30.0
    """After so long without a line that matches, the expression for the progress may be wrong."""

    def __init__(self, settings: Settings, *, changed: Changed, gauges: Gauges) -> None:
        training = settings.training
        self._settings = settings
        self._changed = changed
        self._gauges = gauges
        self._loop = asyncio.get_running_loop()
        self._clock = time.monotonic
        self._meter = progress.Meter(stall_seconds=training.stall_seconds)
        self._problems: dict[str, Problem] = {}
        self._gpus: tuple[Gpu, ...] = ()
        self._pids = PidLimit()
        self._memory = MemoryLimit()
        self._scout = Scout("disk") if training.log_file else None
        self._short: set[str] = set()
        """What was found to have run out at the last look."""
        self._unread = b""
        self._unmatched = ""
        """The last line on which the expression for the progress was tried in vain in this start."""
        self._told: dict[str, object] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.processes: Callable[[], Sequence[Process]] = tuple
        self._hang = Hang(
            processes=lambda: tuple(self.processes()), complain=self.complain, solve=self.solve
        )
        self.held: Callable[[], tuple[str, ...]] = tuple
        self.warmth: Callable[[], Warmth] = Warmth

    # --- Facts ------------------------------------------------------------------------------

    def progress(self) -> Progress:
        return self._meter.progress(self._clock())

    def gpus(self) -> tuple[Gpu, ...]:
        return self._gpus

    def problems(self) -> tuple[Problem, ...]:
        return tuple(self._problems.values())[:MOST_PROBLEMS]

    def post(self, post: Post) -> None:
        post = self._counted(post)
        is_first = not self._meter.has_observed
        self._meter.observe(self._clock(), post)
        if is_first:
            # From this it is known how long the start took; all further ones can wait.
            self._changed()

    def _counted(self, post: Post) -> Post:
        return progress.in_iterations(post, self._settings.training.samples_per_iteration)

    # --- what comes in ----------------------------------------------------------------------

    def begin_start(self) -> None:
        """A new start of the training: its speed is measured anew."""
        for name in OF_ONE_START:
            self.solve(name)
        self._unmatched = ""
        self._meter.begin(self._clock())

    def end_start(self) -> None:
        if self._unmatched:
            # Nothing more will be printed: how far it came will never be known.
            self._complain_of_unmatched()
        self._meter.end()
        self._hang.end()
        self.solve("TrainingStalled")
        # It may be why the training ended.
        self._see_shortages()

    def take_groups(self, groups: dict[str, str], *, is_late: bool = False) -> None:
        """Take what the regular expression found in a line; a late one is of the start before."""
        post = progress.parse_groups(groups)
        if is_late:
            self._meter.recall(self._counted(post))
        else:
            self._unmatched = ""
            self.solve("ProgressNotMatched")
            self.post(post)

    def take_unmatched(self, line: str, *, is_late: bool) -> None:
        """Take a line in which the expression found nothing, and which no other one followed yet."""
        if not is_late:
            self._unmatched = line

    def _complain_of_unmatched(self) -> None:
        name = "ProgressNotMatched"
        message = (
            f"progress.log has matched no line of the output; the last line is {self._unmatched!r}"
        )
        if name in self._problems:
            # Another last line is no news, and would fill the log.
            self._problems[name] = make_problem(name, message)
        else:
            self.complain(name, message)

    def take_file(self, block: bytes) -> None:
        """Take what was appended to the progress file."""
        *lines, rest = (self._unread + block).split(b"\n")
        self._unread = rest[:LONGEST_LINE]
        for line in filter(None, lines):
            self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        try:
            self.post(progress.parse_line(line))
        except progress.NotProgress as error:
            path = self._settings.training.progress_file
            self.complain("ProgressNotUnderstood", f"{path}: {error}")

    def skip_file(self) -> None:
        self._unread = b""

    def complain(self, name: str, message: str) -> None:
        """Report a problem; the same one is logged once."""
        problem = make_problem(name, message)
        if self._problems.get(name) != problem:
            log.warning("%s: %s", name, message)
            self._problems[name] = problem
            self._loop.call_soon(self._changed)

    def solve(self, name: str) -> None:
        if self._problems.pop(name, None) is not None:
            self._loop.call_soon(self._changed)

    # --- looking now and then ---------------------------------------------------------------

    def begin(self) -> None:
        self._timer = self._loop.call_later(self._settings.poll_seconds, self.begin)
        self.look()
        self._gauges.ask(self.see_gpus)

    def look(self) -> None:
        """Look at everything that does not come by itself."""
        now = self.progress()
        if now.stalled:
            self.complain(
                "TrainingStalled",
                f"nothing has moved for {self._settings.training.stall_seconds:g} s "
                f"(iteration {now.iteration})",
            )
        else:
            self.solve("TrainingStalled")
        if self._unmatched and now.idle_seconds > self.unmatched_seconds:
            self._complain_of_unmatched()
        self._look_for_hang(now)
        self._tell("progress", (now.iteration, now.epoch, now.metrics, now.stalled))
        self._tell("spares", self.warmth().ready)
        self._see_shortages()

    def _look_for_hang(self, now: Progress) -> None:
        pauses = self._meter.pauses
        what = f"iteration {now.iteration}; the longest pause before was {pauses.longest:.1f} s"
        limit = pauses.limit(self._settings.training.stall_seconds)
        self._hang.look(now.idle_seconds, limit, what)

    def _tell(self, what: str, news: object) -> None:
        """Say that there is something new, if there is."""
        if self._told.get(what) != news:
            self._told[what] = news
            self._loop.call_soon(self._changed)

    def _see_shortages(self) -> None:
        self._see_shortage("TooManyProcesses", self._pids.find_shortage())
        if killed := self._memory.find_shortage():
            # Of that start it stays true.
            self.complain("OutOfMemory", killed)
        if self._scout is not None:
            path = self._settings.training.log_file
            self._scout.send(partial(find_full_disk, path), self._see_disk)

    def _see_disk(self, message: str, _: float) -> None:
        self._see_shortage("DiskFull", message)

    def _see_shortage(self, name: str, message: str) -> None:
        if message:
            self._short.add(name)
            self.complain(name, message)
        elif name in self._short:
            self._short.remove(name)
            self.solve(name)

    def see_gpus(self, reading: Reading) -> None:
        """Take what NVML has told, also where another part has asked."""
        if reading is None:
            seconds = self._gauges.patience_seconds
            self.complain("GPUsDoNotAnswer", f"NVML has not answered for {seconds:g} s")
            return
        self.solve("GPUsDoNotAnswer")
        self._gpus = self._gauges.bases.mark_strangers(reading, self.held())
        strangers = [one.uuid for one in self._gpus if one.busy_unassigned]
        faults = [(one.xid_errors, one.ecc_errors, one.lost_because) for one in self._gpus]
        self._tell("gpus", (strangers, faults))
        lost = gpus.find_lost(reading, [str(one.index) for one in reading])
        if lost:
            self.complain("GPUsVanished", "; ".join(lost))
        else:
            self.solve("GPUsVanished")
        if not self._settings.expected_gpus:
            return
        if reading or (self._gauges.missing and any(Path("/dev").glob("nvidia[0-9]*"))):
            self.solve("GPUsNotVisible")
        else:
            why = self._gauges.missing or "NVML counts none"
            self.complain("GPUsNotVisible", f"no GPU is to be seen in this container: {why}")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._scout is not None:
            self._scout.close()
