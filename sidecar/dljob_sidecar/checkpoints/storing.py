"""
The checkpoints of a job over its starts: inspected before each, and recorded after each.

The ledger thread does the work in :mod:`dljob_sidecar.checkpoints.vetting`,
:mod:`dljob_sidecar.checkpoints.ledger` and :mod:`dljob_sidecar.checkpoints.memory.writing_out`. A file
system that does not answer delays a start by a few seconds; writing out memory delays a start as
long as a request would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Callable

from dljob_sidecar.checkpoints.confirming import SILENT, Watch
from dljob_sidecar.checkpoints.ledger import Ledger, write_ledger
from dljob_sidecar.checkpoints.memory.cache import MemoryCache, Prepared
from dljob_sidecar.checkpoints.memory.writing_out import Writer
from dljob_sidecar.checkpoints.resting import learn
from dljob_sidecar.checkpoints.vetting import (
    NOT_TRUSTED,
    UNREADABLE,
    Verdict,
    note_confirmed,
    vet,
)
from dljob_sidecar.observing.file_threads import FileThread
from dljob_wire.checkpoints import Checkpoint, Confirmation
from dljob_wire.messages import Run

FOLDER = "DLJOB_CHECKPOINT_DIR"
"""The variable with the folder for the training's checkpoints."""
NOT_IN_MEMORY = "CheckpointsNotInMemory"
HINT = f" (with checkpoint.memory, the training has to write to ${FOLDER}, which dljob.training.folder() returns)"

RETRY_SECONDS = 0.01


class Visit:
    """An inspection on the ledger thread that calls back once: with its result, or with None after the time limit."""

    def __init__(
        self,
        ledger_thread: FileThread,
        look: Callable[[Callable[[], bool]], Prepared],
        hear: Callable[[Prepared | None], None],
    ) -> None:
        """``look`` can check that it is still wanted before it changes files."""
        self._ledger_thread = ledger_thread
        self._look = look
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, patience_seconds: float) -> None:
        self._send(self._loop.time() + patience_seconds)

    def cancel(self) -> None:
        """Drop the result."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _send(self, limit: float) -> None:
        """Start the inspection; retry while the ledger thread is busy for an earlier start."""
        left = max(limit - self._loop.time(), 0.0)
        # The ledger thread checks whether the inspection is wanted; the event loop changes that
        # only once.
        is_sent = self._ledger_thread.send(
            lambda: self._look(lambda: not self._is_over), lambda found, _: self._end(found)
        )
        if is_sent or not left:
            # Even without time left, the answer comes in a later turn and never from within
            # begin().
            self._timer = self._loop.call_later(left, self._end, None)
        else:
            self._timer = self._loop.call_later(RETRY_SECONDS, self._send, limit)

    def _end(self, found: Prepared | None) -> None:
        if not self._is_over:
            # Cancel before `hear` starts the training, because a running inspection is no longer
            # wanted.
            self.cancel()
            self._hear(found)


class CheckpointStore:
    """Keeps the known facts about the checkpoints under a job's path."""

    def __init__(
        self,
        saving: Checkpoint,
        read_free: Callable[[], int],
        *,
        on_problem: Callable[[str, str], None],
        on_relief: Callable[[str], None],
    ) -> None:
        """``read_free`` returns the free memory for checkpoints; -1 if unknown."""
        self._saving = saving
        self._on_problem, self._on_relief = on_problem, on_relief
        self._file_thread = (
            FileThread("checkpoint") if saving.confirm is Confirmation.FILE else None
        )
        # One thread, so notes after a stop are written before the next start reads them.
        self._ledger_thread = FileThread("ledger") if saving.path else None
        self._memory = MemoryCache(saving, read_free) if saving.memory_path else None
        self._writer: Writer | None = None
        if self._memory is not None and self._ledger_thread is not None:
            self._writer = Writer(
                self._memory,
                self._ledger_thread,
                patience_seconds=saving.timeout_seconds,
                on_problem=on_problem,
                on_relief=on_relief,
            )
        self._is_in_memory = False
        self._verdict = Verdict()
        self._leads = self._is_alone = False
        self._world = 1
        self._visit: Visit | None = None
        self._stop_learning: Callable[[], object] = lambda: None

    @property
    def saving(self) -> Checkpoint:
        """The saving of the latest start, with the folder in memory if that is used."""
        in_memory = replace(self._saving, path=self._saving.memory_path)
        return in_memory if self._is_in_memory else self._saving

    @property
    def saves_alone(self) -> bool:
        """True if no process in another container saves a part of the checkpoint."""
        return self._is_alone or not self._saving.to_all

    @property
    def variables(self) -> dict[str, str]:
        return {FOLDER: self._saving.memory_path} if self._is_in_memory else {}

    @property
    def resume(self) -> str:
        """The latest complete checkpoint at the last start."""
        return self._verdict.resume

    # --- before a start ---------------------------------------------------------------------

    def vet(self, run: Run, hear: Callable[[], None]) -> None:
        """Inspect the checkpoints, and call back when the training may start."""
        self._leads, self._world = run.rank_offset == 0, run.world_size
        self._is_alone = run.processes == run.world_size
        self._is_in_memory = False
        self._end_work()
        if self._ledger_thread is None:
            hear()
        else:
            self._visit = Visit(self._ledger_thread, self._prepare, partial(self._hear, hear))
            patience = self._saving.timeout_seconds if self._memory is not None else 0.0
            self._visit.begin(max(FileThread.patience_seconds, patience))

    def _prepare(self, wanted: Callable[[], bool]) -> Prepared:
        """Inspect the checkpoints on the ledger thread."""
        if self._memory is None or not self._leads:
            return Prepared(vet(self._saving, leads=self._leads, wanted=wanted))
        return self._memory.prepare(is_alone=self._is_alone, wanted=wanted)

    def _hear(self, go_on: Callable[[], None], prepared: Prepared | None) -> None:
        if prepared is None:
            self._verdict = Verdict(self._verdict.ledger)
            self._on_problem(SILENT, f"{self._saving.path} does not answer, and was not looked at")
        else:
            self._take(prepared)
        go_on()

    def _take(self, prepared: Prepared) -> None:
        verdict = self._verdict = prepared.verdict
        self._is_in_memory = prepared.is_in_memory
        self._on_relief(SILENT)
        messages = {
            UNREADABLE: verdict.unreadable,
            NOT_TRUSTED: verdict.distrust,
            NOT_IN_MEMORY: prepared.fault,
        }
        for name, message in messages.items():
            if message:
                self._on_problem(name, message)
            else:
                self._on_relief(name)

    # --- while it runs ----------------------------------------------------------------------

    def make_watch(self, members: Callable[[], Iterable[int]]) -> Watch:
        self._stop_learning()
        return Watch(
            members=members,
            file_thread=self._file_thread,
            world=self._world,
            known=self._verdict.ledger.shape,
            confirmed=self._verdict.ledger.pending,
            confirmed_ns=self._verdict.ledger.since_ns,
            is_apart=not self._leads,
            restless=self._verdict.ledger.restless,
            distrust=self._verdict.distrust,
            on_problem=self._on_problem,
            on_relief=self._on_relief,
            on_confirmed=lambda unit, files: self._note(
                note_confirmed(self._verdict.ledger, unit, files=files, world=self._world)
            ),
            secure=self._writer.secure if self._writer and self._is_in_memory else None,
            hint=HINT if self._is_in_memory else "",
        )

    def begin_start(self, members: Callable[[], Iterable[int]]) -> None:
        """Begin to write out, because processes may save themselves without a request."""
        if self._writer is not None and self._is_in_memory:
            self._writer.begin(members)

    def write_the_rest(self) -> bool:
        """Write out what the ended processes left in memory; return True while that continues."""
        return self._writer is not None and self._writer.write_the_rest()

    def learn(self) -> None:
        """Learn which files never rest, if all files are one checkpoint and the training goes on."""

        def note_restless(names: frozenset[str]) -> None:
            ledger = self._verdict.ledger
            if not names <= ledger.restless:
                self._note(replace(ledger, restless=ledger.restless | names))

        shape, thread = self._verdict.ledger.shape, self._file_thread
        if self._verdict.ledger.pending == "" and shape is not None and thread is not None:
            learning = learn(self.saving.path, shape, thread=thread, hear=note_restless)
            self._stop_learning = asyncio.get_running_loop().create_task(learning).cancel

    def note_failure(self) -> None:
        """Record that a start failed before its first step."""
        ledger = self._verdict.ledger
        self._note(replace(ledger, fruitless=ledger.fruitless + 1))

    def _note(self, ledger: Ledger) -> None:
        # A trial also confirms, and the next request comes without an inspection.
        self._verdict = replace(self._verdict, ledger=ledger)
        if self._leads and self._ledger_thread is not None:
            self._ledger_thread.post(partial(write_ledger, self._saving, ledger))

    def _end_work(self) -> None:
        self._stop_learning()
        if self._writer is not None:
            self._writer.stop()
        if self._visit is not None:
            self._visit.cancel()

    def close(self) -> None:
        self._end_work()
        if self._memory is not None:
            self._memory.close()
        for file_thread in (self._file_thread, self._ledger_thread):
            if file_thread is not None:
                file_thread.close()
