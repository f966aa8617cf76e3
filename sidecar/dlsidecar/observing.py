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
from collections.abc import Callable
from pathlib import Path

from dlsidecar import gpus, progress
from dlsidecar.contract import Changed
from dlsidecar.settings import Settings
from dlwire.messages import MOST_PROBLEMS, Gpu, Post, Problem, Progress, Warmth

log = logging.getLogger(__name__)

LONGEST_LINE = 65536

REMEDIES = {
    "GPUsNotVisible": "give the container the runtime class nvidia and NVIDIA_VISIBLE_DEVICES=all",
    "ExpressionTooSlow": "avoid repetitions inside repetitions in the expression",
    "ExpressionInvalid": "correct the expression; it is one of Python's `re`",
    "DiskFull": "make room where the output is written",
    "ProgressFileUnreadable": "let the training write a regular file that its user may read",
    "ProgressNotUnderstood": 'write one JSON object a line, such as {"iteration": 5}',
    "NoWarmStart": "remove warmStart from the job, or mend what is said",
    "TrainingStalled": "look at the training's log",
}


class Observer:
    """Collects the facts; each question is answered from what was last seen."""

    def __init__(self, settings: Settings, *, changed: Changed, gauge: gpus.Gauge) -> None:
        training = settings.training
        self._settings = settings
        self._changed = changed
        self._gauge = gauge
        self._loop = asyncio.get_running_loop()
        self._clock = time.monotonic
        self._meter = progress.Meter(stall_seconds=training.stall_seconds)
        self._problems: dict[str, Problem] = {}
        self._gpus: tuple[Gpu, ...] = ()
        self._unread = b""
        self._told: tuple[object, ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self.held: Callable[[], tuple[str, ...]] = tuple
        self.warmth: Callable[[], Warmth] = Warmth
        if gauge.missing:
            log.info("no figures of GPUs: %s", gauge.missing)

    # --- Facts ------------------------------------------------------------------------------

    def progress(self) -> Progress:
        return self._meter.progress(self._clock())

    def gpus(self) -> tuple[Gpu, ...]:
        return self._gpus

    def problems(self) -> tuple[Problem, ...]:
        return tuple(self._problems.values())[:MOST_PROBLEMS]

    def post(self, post: Post) -> None:
        is_first = self._meter.observations == 0
        self._meter.observe(self._clock(), post)
        if is_first:
            self._changed()

    # --- what comes in ----------------------------------------------------------------------

    def begin_start(self) -> None:
        """A new start of the training: its speed is measured anew."""
        self._meter.begin(self._clock())

    def end_start(self) -> None:
        self._meter.end()
        self.solve("TrainingStalled")

    def take_groups(self, groups: dict[str, str]) -> None:
        """Take what the regular expression found in a line of the log."""
        self.post(progress.parse_groups(groups))

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
        problem = Problem(name, message[:2048], REMEDIES.get(name, ""))
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

    def look(self) -> None:
        """Look at everything that does not come by itself."""
        present = self._gauge.read()
        self._gpus = gpus.mark_strangers(present, self.held())
        self._see_gpus(present)
        now = self.progress()
        if now.stalled:
            self.complain(
                "TrainingStalled",
                f"nothing has moved for {self._settings.training.stall_seconds:g} s "
                f"(iteration {now.iteration})",
            )
        else:
            self.solve("TrainingStalled")
        told = (now.iteration, now.epoch, now.metrics, now.stalled, self.warmth().ready)
        strangers = [one.uuid for one in self._gpus if one.busy_unassigned]
        errors = [(one.xid_errors, one.ecc_errors) for one in self._gpus]
        if self._told != (told, strangers, errors):
            self._told = (told, strangers, errors)
            self._loop.call_soon(self._changed)

    def _see_gpus(self, present: list[Gpu]) -> None:
        if not self._settings.expected_gpus:
            return
        if present or (self._gauge.missing and any(Path("/dev").glob("nvidia[0-9]*"))):
            self.solve("GPUsNotVisible")
        else:
            why = self._gauge.missing or "NVML counts none"
            self.complain("GPUsNotVisible", f"no GPU is to be seen in this container: {why}")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._gauge.close()
