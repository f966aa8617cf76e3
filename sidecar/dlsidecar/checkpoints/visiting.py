"""
One look of the ledger_thread that a start waits for, and for no longer than it may.
"""

from __future__ import annotations

import asyncio
from typing import Callable

from dlsidecar.checkpoints.memory.cache import Prepared
from dlsidecar.observing.file_threads import FileThread

RETRY_SECONDS = 0.01


class Visit:
    """A look that is heard of once: what it found, or None where it took too long."""

    def __init__(
        self,
        ledger_thread: FileThread,
        look: Callable[[Callable[[], bool]], Prepared],
        hear: Callable[[Prepared | None], None],
    ) -> None:
        """``look`` is given whether it is still wanted: a late one must not touch the files of the training."""
        self._ledger_thread = ledger_thread
        self._look = look
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, patience_seconds: float) -> None:
        self._send(self._loop.time() + patience_seconds)

    def cancel(self) -> None:
        """Hear of it no more."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _send(self, limit: float) -> None:
        """Send the ledger_thread; while he is out for an earlier start, try again."""
        left = max(limit - self._loop.time(), 0.0)
        # The ledger_thread asks in its thread whether the look is still wanted; the event loop changes
        # that once, from yes to no.
        is_sent = self._ledger_thread.send(
            lambda: self._look(lambda: not self._is_over), lambda found, _: self._end(found)
        )
        if is_sent or not left:
            # Also with no time left the answer comes in a later turn, and
            # never from within begin().
            self._timer = self._loop.call_later(left, self._end, None)
        else:
            self._timer = self._loop.call_later(RETRY_SECONDS, self._send, limit)

    def _end(self, found: Prepared | None) -> None:
        if not self._is_over:
            # Over before `hear`, which starts the training: a ledger_thread that is still
            # out is not wanted any more.
            self.cancel()
            self._hear(found)
