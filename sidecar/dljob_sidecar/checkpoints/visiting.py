"""One inspection on the ledger thread that a start waits for, with a time limit."""

from __future__ import annotations

import asyncio
from typing import Callable

from dljob_sidecar.checkpoints.memory.cache import Prepared
from dljob_sidecar.observing.file_threads import FileThread

RETRY_SECONDS = 0.01


class Visit:
    """An inspection that calls back once: with its result, or with None after the time limit."""

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
