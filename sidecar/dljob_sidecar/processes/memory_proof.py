"""Asks the GPUs of a start whether their memory is back at its value before the start."""

from __future__ import annotations

import asyncio
from typing import Callable, Protocol

from dljob_sidecar.behaviour.events import Event, Lingering
from dljob_sidecar.observing.gpus.gpu_thread import GpuThread, Reading
from dljob_sidecar.processes.releasing import Release
from dljob_sidecar.remedies import make_problem


class Hear(Protocol):
    """The callback with the answer of the GPUs to a release."""

    def __call__(self, *, is_confirmed: bool) -> None: ...


class MemoryProof:
    """Queries the GPUs until they confirm, or until the limit for shared machines has passed."""

    def __init__(
        self,
        gpu_thread: GpuThread,
        *,
        release_seconds: float,
        tell: Callable[[Event], None],
        on_released_in_use: Callable[[str], None],
    ) -> None:
        self._gpu_thread = gpu_thread
        self._release_seconds = release_seconds
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._attempt = 0
        self.release = Release({})
        """The GPUs of the present start, as they were before it."""
        self._empty_since: float | None = None
        self._lingering: frozenset[str] = frozenset()
        """The GPUs that were reported as the only obstacle to the release."""
        self._on_released_in_use = on_released_in_use

    def begin(self, attempt: int) -> None:
        """Expect a start, before its GPUs are measured."""
        self._attempt = attempt
        self.release, self._lingering = Release({}), frozenset()
        self._empty_since = None

    def end(self) -> None:
        """Ignore later answers, because the release was reported."""
        self._attempt = 0

    def ask(self, hear: Hear) -> None:
        """Call ``hear`` with True if the release may be reported; no process may be left."""
        attempt = self._attempt

        def read(reading: Reading) -> None:
            # The answer comes from a thread, when this attempt may be over.
            if attempt == self._attempt:
                hear(is_confirmed=self._confirms(reading))

        self._gpu_thread.ask(read)

    def _confirms(self, reading: Reading) -> bool:
        # A GPU that does not answer proves nothing.
        unreleased = self.release.find_unreleased(reading or ())
        if not unreleased:
            return True
        why = "; ".join(unreleased.values())
        # Start counting at the first refusal. A silent driver counts as a refusal.
        now = self._loop.time()
        self._empty_since = now if self._empty_since is None else self._empty_since
        if 0 < self._release_seconds <= now - self._empty_since:
            self._on_released_in_use(
                f"no process of the job was left for {self._release_seconds:g} s, so that its GPUs"
                f" are released although {why}"
            )
            return True
        # Report once that these GPUs, and no process, block the release.
        if self._lingering != unreleased.keys():
            self._lingering = frozenset(unreleased)
            message = f"no process of the job is left, but {why}"
            limit = self._release_seconds
            message += f"; releaseSeconds releases them after {limit:g} s" if limit else ""
            self._tell(Lingering(self._attempt, make_problem("GPUMemoryNotReleased", message)))
        return False
