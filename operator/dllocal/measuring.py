"""
A job on a bench: one controller with one job, which has as many GPUs as one says.

For the paper's offline profiling (``dljob profiles measure``), and wherever it is measured what a
change of GPUs costs. All is as it is in ``dljob up`` but for the policy, which does as it is told;
what is learnt is what the controller learns of any job.
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
from dllocal.running import Running, Setup
from dlwire.messages import State

ASK_EVERY_S = 0.05
LOOK_EVERY_S = 0.1
"""Whatever is waited for is looked at so often at least, and whenever a SideCar says something."""


class Stuck(Exception):
    """The job on the bench does not do what is waited for: why, in a sentence."""


class Told:
    """Gives every job the number of GPUs that it is told to."""

    name: ClassVar[str] = "told"
    paper: ClassVar[str] = "SideCar (Wang et al.), III.B (offline profiling)"
    needs: ClassVar[str] = "nothing"
    breaks: ClassVar[frozenset[Law]] = frozenset()

    def __init__(self) -> None:
        self.gpus = 0

    def allocate(self, view: View) -> Decision:
        """Give so many to all."""
        cause = Cause(CauseCode.EXPLORING)
        states = (*view.running, *view.pending) if self.gpus else ()
        shares = {state.id: Share(self.gpus, cause) for state in states}
        return Decision(shares=shares, wake_at=view.now + ASK_EVERY_S)


class Bench:
    """An asynchronous context: what is on the bench is taken down at its end."""

    def __init__(self, setup: Setup) -> None:
        self._told = Told()
        self._news = asyncio.Event()
        self._listener = setup.listener
        self.running = Running(
            replace(
                setup,
                options=replace(setup.options, policy=self._told),
                listener=self._hear,
            )
        )
        self._control: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._control = asyncio.create_task(self.running.run(hears_signals=False))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._control is not None
        self._control.cancel()
        await asyncio.wait({self._control})
        try:
            await self.running.clear()
        finally:
            await self.running.close()
            self.running.folders.remove()

    def put(self, document: dict[str, Any], gpus: int) -> JobId:
        """Let this job have so many GPUs."""
        self._told.gpus = gpus
        entry = self.running.registry.submit(document, self.running.clock())
        self.running.controller.wake()
        return entry.job.id

    async def have(self, job: JobId, gpus: int, patience_s: float) -> None:
        """Let it have so many, and return when its processes run on them."""
        self._told.gpus = gpus
        self.running.controller.wake()

        def runs() -> bool:
            status = self.entry(job).status
            placement = status.placement
            return (
                placement is not None and placement.gpus == gpus and status.phase is Phase.RUNNING
            )

        await self.until(job, runs, f"run on {gpus} GPUs", patience_s)

    async def train(self, job: JobId, iterations: int, patience_s: float) -> None:
        """Return when it has trained so many iterations more."""
        wanted = self.progress(job) + iterations
        await self.until(job, lambda: self.progress(job) >= wanted, "train", patience_s)

    async def until(
        self, job: JobId, happened: Callable[[], bool], what: str, patience_s: float
    ) -> None:
        """Return when this has happened; raises :class:`Stuck` if it does not, or cannot any more."""
        began = time.monotonic()
        while not happened():
            status = self.entry(job).status
            if status.is_final:
                raise Stuck(f"{job} ended before it did {what}: {status.message}")
            if time.monotonic() - began > patience_s:
                raise Stuck(f"{job} did not {what} in {patience_s:g} s: {status.message}")
            assert self._control is not None
            if self._control.done():
                self._control.result()
            await self._hear_news()

    async def take_down(self, job: JobId, patience_s: float) -> None:
        """Cancel the job, and return when nothing of it is left."""
        self.running.registry.cancel(job)
        self.running.controller.wake()
        began = time.monotonic()
        while job in self.running.registry.entries and self.entry(job).status.pods:
            if time.monotonic() - began > patience_s:
                raise Stuck(f"{job} did not end in {patience_s:g} s")
            await self._hear_news()

    async def _hear_news(self) -> None:
        """Return when something was said, or some time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY_S):
                await self._news.wait()
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
