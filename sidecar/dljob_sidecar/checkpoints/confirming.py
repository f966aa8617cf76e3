"""
Confirm by its files that a checkpoint is complete.

:mod:`dljob_sidecar.checkpoints.inspecting` reads the files in a file thread, because they may lie on a
server that does not answer. This module judges the result. A checkpoint is complete when no part is
missing, no process of the job has one of its files open for writing, and either a sign of its
framework shows completion or the files have not changed for long enough. That time follows from the
shape of the job's last checkpoint (:mod:`dljob_sidecar.checkpoints.recognizing.shapes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Callable

from dljob_sidecar.checkpoints.checkpoint_files import MOST_FILES, Mark, find_written
from dljob_sidecar.checkpoints.inspecting import Candidate, Inspector, Look
from dljob_sidecar.checkpoints.recognizing.shapes import (
    LEAST_SHARE,
    UNKNOWN_SECONDS,
    Shape,
    look_again,
    shape_of,
)
from dljob_sidecar.checkpoints.recognizing.signs import find_unit, is_noise, normalise
from dljob_sidecar.checkpoints.resting import find_resting, propose_files
from dljob_sidecar.observing.file_threads import FileThread, rest_after
from dljob_wire.checkpoints import Checkpoint

TOO_LARGE = "CheckpointPathTooLarge"
SILENT = "CheckpointPathDoesNotAnswer"
INCOMPLETE = "CheckpointIncomplete"

REST = "and all files have to rest for"
AGAIN_SECONDS = 0.1
"""The time without changes after which files of the last checkpoint's shape count as complete."""
PROVEN_SECONDS = 0.02
"""The same time if the format of each file proves that the file is complete."""
LONGEST_DELAY_SECONDS = 0.5
"""A later result means that the machine was suspended, and the writer of the files with it."""


@dataclass(frozen=True)
class Watch:
    """The settings and callbacks of a watch on the checkpoint path."""

    members: Callable[[], Iterable[int]]
    """The process ids of the job."""
    file_thread: FileThread | None = None
    """None if the job does not confirm by files."""
    world: int = 1
    """The number of processes of the whole job."""
    known: Shape | None = None
    """The shape of the last checkpoint."""
    confirmed: str | None = None
    """The confirmed checkpoint, if no start has inspected it since."""
    confirmed_ns: int = 0
    """The time at which its first file was written."""
    is_apart: bool = False
    """True if the first process of the job, the usual writer, is in another container."""
    restless: frozenset[str] = frozenset()
    """The names without numbers of files that never rest, and so belong to no checkpoint."""
    distrust: str = ""
    """The reason why confirmations of this job do not count, or the empty string."""
    on_problem: Callable[[str, str], None] = lambda _name, _message: None
    on_relief: Callable[[str], None] = lambda _name: None
    on_confirmed: Callable[[str, Mapping[str, Mark]], None] = lambda _unit, _files: None
    """Called with the confirmed checkpoint and its files."""
    secure: Callable[[str, Mapping[str, Mark], Callable[[str], None]], None] | None = None
    """Copies a checkpoint from memory to disk, where it counts, and reports a failure."""
    hint: str = ""
    """A hint for the report of an incomplete checkpoint."""


class FileWatch:
    """Waits for a new checkpoint under a path."""

    quick_seconds = 0.002
    """The first polling interval, while the checkpoint may be about to complete."""
    quick_for_seconds = 5.0
    period_seconds = 0.1
    doubt_seconds = 2.0
    """The time for which a file that seems older than the request does not count."""

    def __init__(
        self,
        saving: Checkpoint,
        watch: Watch,
        *,
        ready: Callable[[], int | None],
        confirmed: Callable[[], None],
    ) -> None:
        """
        Call ``ready`` when the existing files are known. ``ready`` requests the checkpoint and
        returns the earliest time stamp of a file that can be the answer, or None to be called
        again after the next inspection.
        """
        self._saving = saving
        self._watch = watch
        self._ready = ready
        self._confirmed = confirmed
        self._inspector = Inspector(saving, watch.restless)
        self._known = watch.known if watch.confirmed is None else None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        """The time of the next inspection."""
        self._begun: float | None = None
        """The time of the request."""
        self._written_before: set[str] | None = None
        """None before the first inspection."""
        self._files: Mapping[str, Mark] = {}
        self._still_since = 0.0
        """The time of the last change of these files."""
        self._looked_at = 0.0
        """The start time of the judged inspection, which may miss later changes."""
        self._lack = ""
        self._complete = saving.complete
        self._end: Callable[[str], None] | None = None
        """Called with the last result after all processes that could write have ended."""
        self._ended_well = True
        self._is_over = False
        self.is_securing = False
        """True while a complete checkpoint is being copied to the disk."""
        self._asked_ns: int | None = None
        """The time of the request, until the first inspection after it."""

    def begin(self) -> None:
        # Record the existing files before the training is asked to save.
        self._look()

    def inspect_finally(self, hear: Callable[[str], None], *, ended_well: bool) -> None:
        """Report what is missing after all processes have ended and no file will change."""
        self._end, self._ended_well = hear, ended_well
        if not self.is_securing:
            self._look()

    def has_answer(self, *, within_seconds: float) -> bool:
        """Return True if a checkpoint like the confirmed one was written soon and rests, and others move."""
        known, world = self._watch.known, self._watch.world
        # A next checkpoint may show that this one is complete, and several ranks save together.
        is_apart = bool(self._saving.files) or (self._saving.to_all and world > 1)
        if self._begun is None or known is None or REST not in self._lack or is_apart:
            return False
        rested = {name: s for name, s in find_resting(self._files).items() if name in known.names}
        part = {name: mark for name, mark in self._files.items() if normalise(name) in rested}
        took = self._loop.time() - self._begun - min(rested.values(), default=0.0)
        return took <= within_seconds and shape_of(part, "", world=world).is_whole_beside(known)

    def cancel(self) -> None:
        """Stop looking, and report what was still missing."""
        # A running inspection cannot be cancelled; its result is ignored.
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_over and self._begun is not None and self._lack:
            where = f"{self._saving.path} (complete: {self._complete.value})"
            message = f"no checkpoint became complete under {where}: {self._lack}{self._watch.hint}"
            self._watch.on_problem(INCOMPLETE, message)
        self._is_over = True

    # --- looking ----------------------------------------------------------------------------

    def _look(self) -> None:
        """Inspect the files; retry later while an inspection is under way."""
        if self.is_securing:
            return
        file_thread = self._watch.file_thread
        assert file_thread is not None
        is_last = self._end is not None
        # No lock is needed: only the file thread changes the inspector, and one inspection runs at
        # a time.
        look = self._choose_look(is_last=is_last)
        if not file_thread.send(look, partial(self._see, is_last=is_last)) and file_thread.is_lost:
            seconds = file_thread.patience_seconds
            self._watch.on_problem(
                SILENT, f"{self._saving.path} has not answered for {seconds:g} s"
            )
        # Always set the timer: only the timer retries if the file thread was busy or the look
        # raised.
        self._rest(0.0)

    def _choose_look(self, *, is_last: bool) -> Callable[[], Look]:
        inspector, asked_ns = self._inspector, self._asked_ns
        waited = self._loop.time() - self._begun if self._begun is not None else 0.0
        if is_last or waited > self.doubt_seconds:
            return inspector.inspect_without_clock
        if asked_ns is not None:
            return partial(inspector.inspect_after_request, asked_ns)
        return inspector.inspect

    def _rest(self, took_seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = self._loop.time()
        is_quick = self._written_before is None
        if self._begun is not None:
            is_quick = now - self._begun < self.quick_for_seconds
        least = self.quick_seconds if is_quick else self.period_seconds
        self._due_at = now + rest_after(took_seconds, at_least=least)

        def look() -> None:
            self._forgive_pause()
            self._look()

        self._timer = self._loop.call_at(self._due_at, look)

    def _forgive_pause(self) -> None:
        """Do not count a pause of the machine as time in which the files were unchanged."""
        late = self._loop.time() - self._due_at
        self._still_since += max(0.0, late - LONGEST_DELAY_SECONDS)

    def _see(self, look: Look, took_seconds: float, *, is_last: bool) -> None:
        if self._is_over:
            return
        # The next timer may be late as well, and this inspection may postpone it.
        self._forgive_pause()
        self._looked_at = self._loop.time() - took_seconds
        self._judge_path(look)
        self._complete = look.complete
        if is_last:
            self._finish(look)
            return
        if self._end is not None:
            # The inspection began before the last process had ended.
            self._look()
            return
        if self._begun is None:
            self._ask(look)
        else:
            self._asked_ns = None
            found, self._lack = self._choose(look)
            if found is not None:
                self._secure(found, partial(self._go_on, found, took_seconds))
                return
        # _ready() may have failed the request and ended this watch, which a new timer would
        # outlive.
        if not self._is_over:
            self._rest(took_seconds)

    def _ask(self, look: Look) -> None:
        if self._written_before is None:
            # Update the shape from the checkpoint that this start confirmed, unless that is gone.
            known, unit = self._watch.known, self._watch.confirmed
            if known is not None and unit is not None:
                files = look.before.get(unit, {})
                self._known = look_again(known, files, unit=unit, since_ns=self._watch.confirmed_ns)
        self._written_before = find_written(look.snapshot.root, self._watch.members())
        self._asked_ns = self._ready()
        if self._asked_ns is not None:
            self._begun = self._loop.time()

    def _secure(self, one: Candidate, hear: Callable[[str], None]) -> None:
        """Copy the checkpoint to disk, if it is not written there."""
        if self._watch.secure is None:
            hear("")
            return
        self.is_securing = True

        def go_on(fault: str) -> None:
            self.is_securing = False
            if not self._is_over:
                hear(fault)

        self._watch.secure(one.unit, one.files, go_on)

    def _go_on(self, one: Candidate, took_seconds: float, fault: str) -> None:
        self._lack = fault
        if not fault:
            self._confirm(one)
            self._confirmed()
        # The last inspection waited for the copy.
        elif self._end is not None:
            self._look()
        if not self._is_over:
            self._rest(took_seconds)

    def _judge_path(self, look: Look) -> None:
        """Report a path that does not answer or holds too many files."""
        self._watch.on_relief(SILENT)
        if look.snapshot.is_whole:
            self._watch.on_relief(TOO_LARGE)
        else:
            path = self._saving.path
            message = f"{path} holds more than {MOST_FILES} files: a new one may not be noticed"
            self._watch.on_problem(TOO_LARGE, message)

    # --- judging ----------------------------------------------------------------------------

    def _choose(self, look: Look) -> tuple[Candidate | None, str]:
        """Return the complete checkpoint, or else the obstacle in words."""
        if look.lack:
            return None, look.lack
        newest = look.candidates[-1]
        if newest.files != self._files:
            self._files, self._still_since = newest.files, self._loop.time()
        lacks = [one.lack for one in look.candidates if one.lack]
        lack = lacks[0] if lacks else self._find_lack(look, newest)
        if not lack:
            return newest, ""
        # Only a checkpoint that began and completed after the request answers the request.
        fresh = (
            one
            for one in look.candidates
            if one.is_fresh and one.is_sealed and not one.lack and not self._find_lack(look, one)
        )
        return next(fresh, None), lack

    def _find_lack(self, look: Look, one: Candidate) -> str:
        lack = self._find_too_small(look, one)
        still = max(0.0, self._looked_at - self._still_since)
        needed = self._needed_seconds(one)
        if not lack and still < needed:
            moving = max(one.files, key=lambda name: one.files[name].written_ns)
            advice = propose_files(one.files, moving) if not self._saving.files else ""
            lack = f"{moving} changed {still:.1f} s ago, {REST} {needed:g} s{advice}"
        return lack or self._find_writer(look, one)

    def _find_too_small(self, look: Look, one: Candidate) -> str:
        """Detect a truncated checkpoint by a full disk or by the size of the last checkpoint."""
        if one.is_sealed or one.is_proven:
            return ""
        if look.shortage:
            return look.shortage
        known = self._known
        if known is not None and one.size < known.size * LEAST_SHARE:
            return f"it holds {one.size} bytes, and the one before held {known.size}"
        return ""

    def _needed_seconds(self, one: Candidate) -> float:
        if one.is_sealed:
            return 0.0
        if self._saving.settle_seconds is not None:
            return self._saving.settle_seconds
        known = self._known
        if known is None:
            return UNKNOWN_SECONDS
        # Require all files: files that a process in another container has open are invisible here.
        is_like = (
            self._is_whole_beside(one)
            if self._watch.is_apart
            else self._shape_of(one).is_like(known)
        )
        if not is_like:
            return known.settle_seconds
        return PROVEN_SECONDS if one.is_proven else AGAIN_SECONDS

    def _is_whole_beside(self, one: Candidate) -> bool:
        known = self._known
        return known is not None and self._shape_of(one).is_whole_beside(known)

    def _shape_of(self, one: Candidate) -> Shape:
        return shape_of(one.files, one.unit, world=self._watch.world)

    def _find_writer(self, look: Look, one: Candidate) -> str:
        """Return a file being written, of the checkpoint or opened since the request."""
        written = find_written(look.snapshot.root, self._watch.members())
        opened = set() if one.is_sealed else written - (self._written_before or set())
        patterns = (self._saving.files,) if self._saving.files else ()
        counted = {
            name
            for name in opened
            if find_unit(name, patterns) is not None and not is_noise(name, patterns)
            if normalise(name) not in self._watch.restless
        }
        busy = sorted(counted | (written & one.files.keys()))
        return f"{busy[0]} is open for writing" if busy else ""

    # --- ending -----------------------------------------------------------------------------

    def _finish(self, look: Look) -> None:
        assert self._end is not None
        end = self._end
        found, self._lack = self._choose_last(look)
        if found is None:
            end(self._lack)
            return

        def hear(fault: str) -> None:
            self._lack = fault
            if not fault:
                self._confirm(found)
            end(fault)

        self._secure(found, hear)

    def _choose_last(self, look: Look) -> tuple[Candidate | None, str]:
        """Choose after all processes have ended; a killed one may not have finished."""
        lacks = [look.lack] if look.lack else []
        for one in reversed(look.candidates if not look.lack else ()):
            lack = one.lack or self._find_too_small(look, one)
            if not lack and not (self._ended_well or one.is_sealed or self._is_whole_beside(one)):
                lack = "its writer did not end well, and nothing shows that it is whole"
            if not lack:
                return one, ""
            lacks.append(lack)
        return None, lacks[0]

    def _confirm(self, one: Candidate) -> None:
        self._watch.on_relief(INCOMPLETE)
        self._watch.on_confirmed(one.unit, one.files)
