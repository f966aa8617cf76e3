"""
Plays one approach: a controller of its own, with real SideCars and processes, in a folder of its own.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dljob.control.scheduling import Options
from dljob.control.sidecars.dialing import DialSettings
from dljob.control.situation.ports import Entry
from dljob.control.situation.rules import USUAL_RULES, Rules
from dljob.core.model import JobId, Node, Phase
from dljob.local.pods.pod_states import PodTimes
from dljob.local.running import Running
from dljob.local.setup import Setup
from dljob_lab.demonstrating.journal import Journal
from dljob_lab.demonstrating.script import Script
from dljob_lab.reproducing.sidecar.case import Approach

DIALING = DialSettings(progress_seconds=0.25)
"""Progress arrives more often than usual, because a person watches."""

POLL_SECONDS = 0.25


class Failed(Exception):
    """A demonstration did not come to its end: what went wrong, in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an approach is played."""

    folder: Path
    node: Node
    virtual_gpus: bool

    def set_up(self, options: Options, **more: Any) -> Setup:
        """Set up a controller that knows nothing of other places."""
        return Setup(
            state=self.folder / "state",
            nodes=lambda: (self.node,),
            virtual_gpus=self.virtual_gpus,
            options=options,
            dialing=DIALING,
            poll_seconds=POLL_SECONDS,
            **more,
        )


class Stage:
    """One approach. To be made on the event loop."""

    def __init__(
        self, approach: Approach, script: Script, *, place: Place, journal: Journal
    ) -> None:
        self.approach = approach
        self.script = script
        self.place = place
        self._journal = journal
        self._decided: dict[JobId, int] = {}
        self._began_at: float | None = None
        setup = place.set_up(
            Options(
                policy=approach.policy,
                mechanism=approach.mechanism,
                costs=script.costs,
                rules=_rules(script.pod_times, len(place.node.gpus)),
            ),
            pod_times=script.pod_times,
            profiles=script.profiles,
            listener=lambda key, state, at: journal.note_state(
                approach.name, key, state=state, at=at
            ),
        )
        self.running = Running(setup)

    @property
    def name(self) -> str:
        """Its name."""
        return self.approach.name

    @property
    def entries(self) -> dict[JobId, Entry]:
        """The jobs as they were last seen, with how far they are."""
        # Also called by the thread that draws the picture. Scenes and lists
        # of jobs are replaced and never changed, so that it sees one instant.
        scene = self.running.controller.scene
        return dict(scene.entries if scene is not None else self.running.registry.entries)

    def shown(self, at: float) -> float:
        """Return how many seconds after the first submission this is, in what is shown."""
        return (at - self._began_at) * self.script.factor if self._began_at is not None else 0.0

    async def play(self, watch: Callable[[], None] = lambda: None) -> None:
        """Submit the jobs in their time, and return when all have ended."""
        # The verb has handlers for signals, and cancels this coroutine.
        control = asyncio.create_task(self.running.run(hears_signals=False))
        story = asyncio.create_task(together(self._submit(), self._follow(watch)))
        try:
            # For both, because the story would wait an hour
            # for news of a controller that has failed.
            await asyncio.wait({control, story}, return_when=asyncio.FIRST_COMPLETED)
            if control.done():
                control.result()
                raise Failed(f"the controller of {self.name} ended too early")
            await story
        finally:
            story.cancel()
            control.cancel()
            # To its end: `end` kills SideCars, and a controller that lives would start them again.
            await asyncio.wait({control})

    async def end(self) -> None:
        """Leave nothing running."""
        try:
            await self.running.clear()
        finally:
            await self.running.close()
            self.running.folders.remove()

    async def _submit(self) -> None:
        for act in self.script.acts:
            if self._began_at is not None:
                await asyncio.sleep(max(0.0, self._began_at + act.at - time.time()))
            now = time.time()
            self._began_at = self._began_at if self._began_at is not None else now
            self.running.registry.submit(act.document, now)
            self._journal.note_submission(self.name, act.job)
            self.running.controller.wake()

    async def _follow(self, watch: Callable[[], None]) -> None:
        changes, version = self.running.registry.changes, 0
        while not self._is_over():
            await changes.wait(version, 3600.0)
            # Read without an await before the jobs are: a
            # change in between would be lost until the next.
            version = changes.version
            self._note_decisions()
            watch()

    def _note_decisions(self) -> None:
        for job, entry in self.running.registry.entries.items():
            if entry.status.generation != self._decided.get(job, 0):
                self._decided[job] = entry.status.generation
                self._journal.note_decision(self.name, job, status=entry.status)

    def _is_over(self) -> bool:
        entries = self.running.registry.entries
        for job, entry in entries.items():
            if entry.status.phase is Phase.FAILED:
                raise Failed(f"{job} failed in {self.name}: {entry.status.message}")
        return len(entries) == len(self.script.acts) and all(
            entry.status.is_final for entry in entries.values()
        )


def _rules(times: PodTimes, gpus: int) -> Rules:
    """
    Take it as usual that pods take as long as they are made to.

    Otherwise each of them would be reported: as not started, and as silent while it ends.
    """
    longest_s = times.start + gpus * times.start_per_gpu + times.end
    return replace(USUAL_RULES, quiet_seconds=USUAL_RULES.quiet_seconds + longest_s)


async def together(*activities: Coroutine[Any, Any, Any]) -> None:
    """Do all of these at once; what goes wrong with one of them ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            for activity in activities:
                group.create_task(activity)
    except ExceptionGroup as several:
        # The first error itself and not the group, because callers catch Failed and Stuck.
        raise several.exceptions[0] from None
