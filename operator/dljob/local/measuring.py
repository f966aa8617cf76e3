"""
A controller with one job, which gets the number of GPUs that the caller sets.

``dljob profiles measure`` and the measurements of the cost of a change of GPUs use it. Only the policy differs from
``dljob up``: the controller learns from this job as from any other.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Self

from dljob.control.situation.ports import Entry, PodKey
from dljob.core.checking import Law
from dljob.core.contract import Decision, Share, View
from dljob.core.model import Cause, CauseCode, JobId, Phase
from dljob.local.running import Running
from dljob.local.setup import Setup
from dljob_wire.messages import State

ASK_EVERY_S = 0.05
LOOK_EVERY_S = 0.1
"""The longest time between two checks of a condition. A report of a SideCar causes one at once."""


class StuckError(Exception):
    """The job did not reach the expected state: the reason, in a sentence."""


class GivenGpus:
    """Gives every job the number of GPUs that the caller has set."""

    name: ClassVar[str] = "given-gpus"
    paper: ClassVar[str] = "SideCar (Wang et al.), III.B (offline profiling)"
    needs: ClassVar[str] = "nothing"
    breaks: ClassVar[frozenset[Law]] = frozenset()

    def __init__(self) -> None:
        self.gpus = 0

    def allocate(self, view: View) -> Decision:
        cause = Cause(CauseCode.EXPLORING)
        states = (*view.running, *view.pending) if self.gpus else ()
        shares = {state.id: Share(self.gpus, cause) for state in states}
        # The loop does not notice that the caller sets `gpus`.
        return Decision(shares=shares, wake_at=view.now + ASK_EVERY_S)


class Bench:
    """An asynchronous context, which ends its job and removes its files."""

    def __init__(self, setup: Setup) -> None:
        self._given = GivenGpus()
        self._news = asyncio.Event()
        self._listener = setup.listener
        self.running = Running(
            replace(setup, options=replace(setup.options, policy=self._given), listener=self._hear)
        )
        self._control: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        # The verbs' own handlers (dljob.cli.inputs.ending) cancel the block in this context, and `__aexit__` ends the pods.
        # The handlers of the server would end the controller alone.
        self._control = asyncio.create_task(self.running.run(hears_signals=False))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._control is not None
        self._control.cancel()
        # `wait` raises nothing: the pods have to end also after an error of the controller, and after the controller,
        # which would start them again.
        await asyncio.wait({self._control})
        try:
            await self.running.clear()
        finally:
            await self.running.close()
            self.running.folders.remove()

    def put(self, document: dict[str, Any], gpus: int) -> JobId:
        self._given.gpus = gpus
        entry = self.running.registry.submit(document, self.running.clock())
        self.running.controller.wake()
        return entry.job.id

    async def have(self, job: JobId, gpus: int, *, patience_s: float) -> None:
        """Give a job ``gpus`` GPUs, and return when its processes run on them."""
        self._given.gpus = gpus
        self.running.controller.wake()

        def runs() -> bool:
            status = self.entry(job).status
            placement = status.placement
            return (
                placement is not None and placement.gpus == gpus and status.phase is Phase.RUNNING
            )

        await self.until(job, runs, f"run on {gpus} GPUs", patience_s)

    async def train(self, job: JobId, iterations: int, patience_s: float) -> None:
        """Return after ``iterations`` more iterations."""
        wanted = self.progress(job) + iterations
        await self.until(job, lambda: self.progress(job) >= wanted, "train", patience_s)

    async def until(
        self, job: JobId, happened: Callable[[], bool], what: str, patience_s: float
    ) -> None:
        """Return when the condition holds; raises :class:`StuckError` if it does not in time, or cannot."""
        began = time.monotonic()
        while not happened():
            status = self.entry(job).status
            if status.is_final:
                raise StuckError(f"{job} ended before it did {what}: {status.message}")
            if time.monotonic() - began > patience_s:
                raise StuckError(f"{job} did not {what} in {patience_s:g} s: {status.message}")
            assert self._control is not None
            if self._control.done():
                self._control.result()
            await self._hear_news()

    async def take_down(self, job: JobId, patience_s: float) -> None:
        """Cancel the job, and return when its pods have ended."""
        self.running.registry.cancel(job)
        self.running.controller.wake()
        began = time.monotonic()
        while job in self.running.registry.entries and self.entry(job).status.pods:
            if time.monotonic() - began > patience_s:
                raise StuckError(f"{job} did not end in {patience_s:g} s")
            await self._hear_news()

    async def _hear_news(self) -> None:
        """Return at the next report of a SideCar, or after LOOK_EVERY_S."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY_S):
                await self._news.wait()
        # Before the caller checks its condition, so that a report during the check is not lost.
        self._news.clear()

    def progress(self, job: JobId) -> int:
        """The iteration of the job, by its SideCars."""
        placement = self.entry(job).status.placement
        states = [
            self.running.sidecars.contact(PodKey(job, node)).state
            for node in (placement.nodes if placement is not None else ())
        ]
        return max((state.progress.iteration for state in states if state is not None), default=0)

    def entry(self, job: JobId) -> Entry:
        return self.running.registry.entries[job]

    def _hear(self, key: PodKey, state: State, at: float) -> None:
        self._news.set()
        if self._listener is not None:
            self._listener(key, state, at)
