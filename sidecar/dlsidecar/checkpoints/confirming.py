"""
Seeing from its files that a checkpoint is complete.

:mod:`dlsidecar.checkpoints.inspecting` looks, from a scout's thread, since the files may lie on a server that
does not answer. Here is decided what follows from a look: a checkpoint is complete when nothing is
lacking in it, no process of the job has a file of it open for writing, and either a sign of its
framework says so or nothing has changed for long enough. How long that is follows from what the
job's last checkpoint looked like (:mod:`dlsidecar.checkpoints.shapes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Callable

from dlsidecar.checkpoints.checkpoint_files import MOST_FILES, Mark, find_written
from dlsidecar.checkpoints.inspecting import Candidate, Inspector, Look
from dlsidecar.checkpoints.shapes import (
    LEAST_SHARE,
    UNKNOWN_SECONDS,
    Shape,
    shape_of,
)
from dlsidecar.checkpoints.signs import find_unit, is_noise
from dlsidecar.observing.file_threads import Scout, rest_after
from dlsidecar.settings import Saving

TOO_LARGE = "CheckpointPathTooLarge"
SILENT = "CheckpointPathDoesNotAnswer"
INCOMPLETE = "CheckpointIncomplete"

AGAIN_SECONDS = 0.1
"""How long nothing may change in files that look like all of the last checkpoint."""
PROVEN_SECONDS = 0.02
"""The same where the format of each of them shows that it is whole."""


@dataclass(frozen=True)
class Watch:
    """Who sees what becomes of the path of the checkpoints, and who hears of it."""

    members: Callable[[], Iterable[int]]
    """The processes of the job."""
    scout: Scout | None = None
    """None where no file confirms."""
    world: int = 1
    """How many processes the whole job has."""
    known: Shape | None = None
    """How the last checkpoint looked."""
    distrust: str = ""
    """Why no confirmation of this job counts; empty where it does."""
    on_problem: Callable[[str, str], None] = lambda _name, _message: None
    on_relief: Callable[[str], None] = lambda _name: None
    on_confirmed: Callable[[str, Mapping[str, Mark]], None] = lambda _unit, _files: None
    """Hears which checkpoint it was, and of which files."""


class FileWatch:
    """Waits for a new checkpoint under a path."""

    quick_seconds = 0.002
    """How often to look at first, when the end may be near."""
    quick_for_seconds = 5.0
    period_seconds = 0.1
    doubt_seconds = 2.0
    """For how long a file that seems older than the request does not count."""

    def __init__(
        self,
        saving: Saving,
        watch: Watch,
        *,
        ready: Callable[[], int],
        confirmed: Callable[[], None],
    ) -> None:
        """
        ``ready`` is called when it is known what was there before. It asks for the checkpoint, and returns
        since when a change of a file can be the answer, by :func:`dlsidecar.checkpoints.checkpoint_files.stamp_ns`.
        """
        self._saving = saving
        self._watch = watch
        self._ready = ready
        self._confirmed = confirmed
        self._inspector = Inspector(saving)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._begun: float | None = None
        self._written_before: set[str] = set()
        self._files: Mapping[str, Mark] = {}
        self._still_since = 0.0
        self._lack = ""
        self._complete = saving.complete
        self._end: Callable[[str], None] | None = None
        """Hears of the last look, once no process is left that could write."""
        self._ended_well = True
        self._is_over = False
        self._asked_ns: int | None = None
        """When the request was sent, until the first look after it."""

    def begin(self) -> None:
        # What is there has to be known before anything is asked for.
        self._look()

    def look_a_last_time(self, hear: Callable[[str], None], *, ended_well: bool) -> None:
        """Say what is lacking now that all have ended: what is there is what there will be."""
        self._end, self._ended_well = hear, ended_well
        self._look()

    def cancel(self) -> None:
        """Look no more; what was waited for in vain is told."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_over and self._begun is not None and self._lack:
            where = f"{self._saving.path} (complete: {self._complete.value})"
            message = f"no checkpoint became complete under {where}: {self._lack}"
            self._watch.on_problem(INCOMPLETE, message)
        self._is_over = True

    # --- looking ----------------------------------------------------------------------------

    def _look(self) -> None:
        """Have a look taken; while the last one is out, try again."""
        scout = self._watch.scout
        assert scout is not None
        is_last = self._end is not None
        look = self._choose_look(is_last=is_last)
        if not scout.send(look, partial(self._see, is_last=is_last)) and scout.is_lost:
            seconds = scout.patience_seconds
            self._watch.on_problem(
                SILENT, f"{self._saving.path} has not answered for {seconds:g} s"
            )
        self._rest(0.0)

    def _choose_look(self, *, is_last: bool) -> Callable[[], Look]:
        inspector, asked_ns = self._inspector, self._asked_ns
        waited = self._loop.time() - self._begun if self._begun is not None else 0.0
        if is_last or waited > self.doubt_seconds:
            return inspector.look_trusting_no_clock
        if asked_ns is not None:
            return partial(inspector.look_after_request, asked_ns)
        return inspector.look

    def _rest(self, took_seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = self._loop.time()
        is_quick = self._begun is None or now - self._begun < self.quick_for_seconds
        least = self.quick_seconds if is_quick else self.period_seconds
        self._timer = self._loop.call_later(rest_after(took_seconds, at_least=least), self._look)

    def _see(self, look: Look, took_seconds: float, *, is_last: bool) -> None:
        if self._is_over:
            return
        self._judge_path(look)
        self._complete = look.complete
        if is_last:
            self._finish(look)
            return
        if self._end is not None:
            # It was taken before the last of them had ended.
            self._look()
            return
        if self._begun is None:
            self._begun = self._loop.time()
            self._written_before = find_written(look.snapshot.root, self._watch.members())
            self._asked_ns = self._ready()
        else:
            self._asked_ns = None
            found, self._lack = self._choose(look)
            if found is not None:
                self._confirm(found)
                self._confirmed()
        if not self._is_over:
            self._rest(took_seconds)

    def _judge_path(self, look: Look) -> None:
        """Tell whether the path can be watched."""
        self._watch.on_relief(SILENT)
        if look.snapshot.is_whole:
            self._watch.on_relief(TOO_LARGE)
        else:
            path = self._saving.path
            message = f"{path} holds more than {MOST_FILES} files: a new one may not be noticed"
            self._watch.on_problem(TOO_LARGE, message)

    # --- judging ----------------------------------------------------------------------------

    def _choose(self, look: Look) -> tuple[Candidate | None, str]:
        """Return the checkpoint that is complete; else what is in the way, in words."""
        if look.lack:
            return None, look.lack
        newest = look.candidates[-1]
        if newest.files != self._files:
            self._files, self._still_since = newest.files, self._loop.time()
        lacks = [one.lack for one in look.candidates if one.lack]
        lack = lacks[0] if lacks else self._find_lack(look, newest)
        if not lack:
            return newest, ""
        # One that was begun and completed since the request is what was asked for.
        fresh = (
            one
            for one in look.candidates
            if one.is_fresh and one.is_sealed and not one.lack and not self._find_lack(look, one)
        )
        return next(fresh, None), lack

    def _find_lack(self, look: Look, one: Candidate) -> str:
        lack = self._find_too_small(look, one)
        still = self._loop.time() - self._still_since
        needed = self._needed_seconds(one)
        if not lack and still < needed:
            lack = f"its files changed {still:.1f} s ago, and have to rest for {needed:g} s"
        return lack or self._find_writer(look, one)

    def _find_too_small(self, look: Look, one: Candidate) -> str:
        """Where no sign or format shows it, a full disk and the last checkpoint's size do."""
        if one.is_sealed or one.is_proven:
            return ""
        if look.shortage:
            return look.shortage
        known = self._watch.known
        if known is not None and one.size < known.size * LEAST_SHARE:
            return f"it holds {one.size} bytes, and the one before held {known.size}"
        return ""

    def _needed_seconds(self, one: Candidate) -> float:
        if one.is_sealed:
            return 0.0
        if self._saving.settle_seconds is not None:
            return self._saving.settle_seconds
        known = self._watch.known
        if known is None:
            return UNKNOWN_SECONDS
        if not self._is_like_known(one):
            return known.settle_seconds
        return PROVEN_SECONDS if one.is_proven else AGAIN_SECONDS

    def _is_like_known(self, one: Candidate) -> bool:
        known = self._watch.known
        return known is not None and self._shape_of(one).is_like(known)

    def _is_whole_beside(self, one: Candidate) -> bool:
        known = self._watch.known
        return known is not None and self._shape_of(one).is_whole_beside(known)

    def _shape_of(self, one: Candidate) -> Shape:
        return shape_of(one.files, one.unit, self._watch.world)

    def _find_writer(self, look: Look, one: Candidate) -> str:
        """Say that a file is being written: one of it, or one that was opened since the request."""
        written = find_written(look.snapshot.root, self._watch.members())
        opened = set() if one.is_sealed else written - self._written_before
        patterns = (self._saving.files,) if self._saving.files else ()
        counted = {
            name
            for name in opened
            if find_unit(name, patterns) is not None and not is_noise(name, patterns)
        }
        busy = sorted(counted | (written & one.files.keys()))
        return f"{busy[0]} is open for writing" if busy else ""

    # --- ending -----------------------------------------------------------------------------

    def _finish(self, look: Look) -> None:
        assert self._end is not None
        found, self._lack = self._choose_last(look)
        if found is not None:
            self._confirm(found)
        self._end(self._lack)

    def _choose_last(self, look: Look) -> tuple[Candidate | None, str]:
        """No process writes any more; one that was killed, or failed, may not have finished."""
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
