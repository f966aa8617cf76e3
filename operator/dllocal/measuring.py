"""
A job on a bench: one controller with one job, which has as many GPUs as the caller says.

It is for the paper's offline profiling (``dljob profiles measure``), and for all measurements of the
cost of a change of GPUs. Everything is as in ``dljob up`` but for the policy, which follows the caller;
the controller learns from this job as from any other.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Self

from dlcontrol.situation.ports import Entry, PodKey
from dlcore.checking import Law
from dlcore.contract import Decision, Share, View
from dlcore.model import Cause, CauseCode, JobId, Phase
from dllocal.running import Running
from dllocal.setup import Setup
from dlwire.messages import State

ASK_EVERY_S = 0.05
LOOK_EVERY_S = 0.1
"""The longest time between two checks of a condition; news of a SideCar leads to a check at
once."""


class StuckError(Exception):
    """The job on the bench does not do what is waited for: why, in a sentence."""


class GivenGpus:
    """Gives every job the number of GPUs that the caller has set."""

    name: ClassVar[str] = "told"
    paper: ClassVar[str] = "SideCar (Wang et al.), III.B (offline profiling)"
    needs: ClassVar[str] = "nothing"
    breaks: ClassVar[frozenset[Law]] = frozenset()

    def __init__(self) -> None:
        self.gpus = 0

    def allocate(self, view: View) -> Decision:
        """Give that number to all."""
        cause = Cause(CauseCode.EXPLORING)
        states = (*view.running, *view.pending) if self.gpus else ()
        shares = {state.id: Share(self.gpus, cause) for state in states}
        # The loop does not see that the caller sets `gpus`, so it has to ask again soon.
        return Decision(shares=shares, wake_at=view.now + ASK_EVERY_S)


class Bench:
    """An asynchronous context: what is on the bench is taken down at its end."""

    def __init__(self, setup: Setup) -> None:
        self._given = GivenGpus()
        self._news = asyncio.Event()
        self._listener = setup.listener
        self.running = Running(
            replace(
                setup,
                options=replace(setup.options, policy=self._given),
                listener=self._hear,
            )
        )
        self._control: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        # The verbs have handlers of their own (dlctl.inputs.ending),
        # which cancel the block in this context, and `__aexit__` ends
        # the pods. Those of the server would end the controller alone.
        self._control = asyncio.create_task(self.running.run(hears_signals=False))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._control is not None
        self._control.cancel()
        # `wait` raises nothing: also after an error of the controller its pods have to
        # be ended. They are ended after it, because a controller starts again what dies.
        await asyncio.wait({self._control})
        try:
            await self.running.clear()
        finally:
            await self.running.close()
            self.running.folders.remove()

    def put(self, document: dict[str, Any], gpus: int) -> JobId:
        """Submit this job with ``gpus`` GPUs."""
        self._given.gpus = gpus
        entry = self.running.registry.submit(document, self.running.clock())
        self.running.controller.wake()
        return entry.job.id

    async def have(self, job: JobId, gpus: int, patience_s: float) -> None:
        """Give it ``gpus`` GPUs, and return when its processes run on them."""
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
        """Return when it has trained ``iterations`` more iterations."""
        wanted = self.progress(job) + iterations
        await self.until(job, lambda: self.progress(job) >= wanted, "train", patience_s)

    async def until(
        self, job: JobId, happened: Callable[[], bool], what: str, patience_s: float
    ) -> None:
        """Return when this has happened; raises :class:`StuckError` if it does not, or cannot any more."""
        began = time.monotonic()
        while not happened():
            status = self.entry(job).status
            if status.is_final:
                raise StuckError(f"{job} ended before it did {what}: {status.message}")
            if time.monotonic() - began > patience_s:
                raise StuckError(f"{job} did not {what} in {patience_s:g} s: {status.message}")
            assert self._control is not None
            # A controller that has failed brings no news; its error ends the wait.
            if self._control.done():
                self._control.result()
            await self._hear_news()

    async def take_down(self, job: JobId, patience_s: float) -> None:
        """Cancel the job, and return when nothing of it is left."""
        self.running.registry.cancel(job)
        self.running.controller.wake()
        began = time.monotonic()
        # The loop forgets the job as soon as nothing of it is left, so that its entry may be gone.
        while job in self.running.registry.entries and self.entry(job).status.pods:
            if time.monotonic() - began > patience_s:
                raise StuckError(f"{job} did not end in {patience_s:g} s")
            await self._hear_news()

    async def _hear_news(self) -> None:
        """Return when something was said, or some time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY_S):
                await self._news.wait()
        # Cleared before the caller looks, so that news during its look is not lost. Where
        # two wait, one may clear the news of the other, which then looks after LOOK_EVERY_S.
        self._news.clear()

    def progress(self, job: JobId) -> int:
        """How far the job is, as its SideCars say."""
        placement = self.entry(job).status.placement
        states = [
            self.running.sidecars.contact(PodKey(job, node)).state
            for node in (placement.nodes if placement is not None else ())
        ]
        return max((state.progress.iteration for state in states if state is not None), default=0)

    def entry(self, job: JobId) -> Entry:
        """How the job is now."""
        return self.running.registry.entries[job]

    def _hear(self, key: PodKey, state: State, at: float) -> None:
        self._news.set()
        if self._listener is not None:
            self._listener(key, state, at)
