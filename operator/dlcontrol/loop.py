"""
The one loop: wait, observe, judge, decide, record, apply.

Nothing else decides. Whoever learns something (a user has written, a SideCar has news, a timer is
over) wakes the loop, and the loop looks at everything anew. What it finds is recorded before
anything is done about it, and what is done is said to SideCars as declarations; so it can be
killed at any instant, and the next one goes on from what is recorded and what is held.

A decision is made when what decisions depend on has changed, or when the policy or the period asks
for one; between decisions the loop only carries on with what was decided.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from dlcontrol import coordinating, judging, observing
from dlcontrol.applying import Dialer, Hands
from dlcontrol.judging import News, Rules, Verdict
from dlcontrol.pacing import Pace
from dlcontrol.platforms import Entry, Observation, Platform, PodKey
from dlcontrol.records import Condition, ConditionType, Status
from dlcontrol.scene import Scene, Seat
from dlcore import cycle
from dlcore.checking import BrokenLaw
from dlcore.contract import Policy
from dlcore.model import JobId, Mechanism, NodeName, Snapshot
from dlcore.planning import Plan
from dlcore.profiles import Costs, JobType, Profile

log = logging.getLogger(__name__)


class Memory(Protocol):
    """What outlives a job: profiles and the history. Never waits, whatever becomes of the store."""

    def profiles(self) -> Mapping[JobType, Profile]:
        """All that is known of types of jobs; another object whenever something was learnt."""

    def forecasts(self) -> Mapping[JobId, float]:
        """How many iterations jobs with a target are expected to need."""

    def look(self, scene: Scene) -> None:
        """Learn from what the SideCars say."""

    def note(self, plan: Plan, snapshot: Snapshot, statuses: Mapping[JobId, Status]) -> None:
        """Keep a decision for the history."""

    def note_news(self, job: JobId, news: News, now: float) -> None:
        """Keep what happened to a job for the history."""


class Gauge(Protocol):
    """Whoever counts and times, for the metrics."""

    def cycle(self, seconds: float, *, decided: bool) -> None:
        """A cycle of the loop took so long."""

    def show(self, scene: Scene) -> None:
        """The world is like this now."""

    def broken_law(self, error: BrokenLaw) -> None:
        """A plan was refused."""


@dataclass(slots=True)
class _Aside:
    """Why a job is set aside, until its spec is another one."""

    spec_generation: int
    message: str


@dataclass(slots=True)
class _Decided:
    """What the last decision was made from, and when the next is due."""

    basis: object = None
    at: float = 0.0
    wake_at: float | None = None
    policy_state: object = None


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a controller is told at its start."""

    policy: Policy
    mechanism: Mechanism = Mechanism.IN_PLACE
    costs: Costs = Costs()
    rules: Rules = Rules()
    pace: Pace = Pace()
    seed: int = 0


class Controller:
    """One for as long as it leads."""

    def __init__(
        self,
        platform: Platform,
        dialer: Dialer,
        memory: Memory,
        gauge: Gauge,
        options: Options,
        *,
        epoch: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._platform = platform
        self._dialer = dialer
        self._memory = memory
        self._gauge = gauge
        self._options = options
        self._epoch = epoch
        self._clock = clock
        self._hands = Hands(platform, dialer, epoch)
        self._woken = asyncio.Event()
        self._burst = False
        self._aside: dict[JobId, _Aside] = {}
        self._last = _Decided()
        self._next_look = 0.0
        self.scene: Scene | None = None
        """What was seen and decided last, for whoever shows it."""

    def wake(self, *, burst: bool = False) -> None:
        """Look at once; with ``burst`` others are expected to follow, and are waited for."""
        self._burst = self._burst or burst
        self._woken.set()

    async def run(self) -> None:
        """Do this until cancelled, or until somebody else leads."""
        while True:
            await self.cycle()
            await self._wait()

    async def _wait(self) -> None:
        pause = max(0.0, self._next_look - self._clock())
        try:
            await asyncio.wait_for(self._woken.wait(), pause)
        except TimeoutError:
            return
        until = self._clock() + self._options.pace.longest_settle_seconds
        while self._burst and self._clock() < until:
            self._burst = False
            await asyncio.sleep(self._options.pace.settle_seconds)
        self._woken.clear()

    async def cycle(self) -> None:
        """Look at everything once, and do what is to be done."""
        began = time.perf_counter()
        self._woken.clear()
        scene = self._see(await self._platform.observe())
        self._memory.look(scene)

        verdicts = judging.judge(scene, self._options.rules)
        statuses = {job: verdict.status for job, verdict in verdicts.items()}
        scene = _with(scene, statuses)

        decided = self._is_due(scene)
        if decided:
            more = self._decide(scene)
            statuses |= more
            scene = _with(scene, more)
            self._last.basis = self._basis(scene)

        commands = coordinating.next_commands(scene)
        bookings = self._hands.bookings(commands, scene)
        statuses |= bookings
        scene = _with(scene, bookings)

        if statuses:
            await self._platform.record(statuses)
        await self._hands.carry_out(commands, scene)
        await self._tell(verdicts)
        self.scene = scene
        self._next_look = self._plan_next_look(scene)
        self._gauge.cycle(time.perf_counter() - began, decided=decided)
        self._gauge.show(scene)

    # --- seeing

    def _see(self, observation: Observation) -> Scene:
        self._hands.follow(
            {key: pod.address for key, pod in observation.pods.items() if pod.address is not None}
        )
        return Scene(
            now=self._clock(),
            epoch=self._epoch,
            entries=observation.entries,
            seats=self._seats(observation),
            nodes={node.name: node for node in observation.nodes},
            mechanism=self._options.mechanism,
            warm_seconds=self._options.pace.warm_seconds,
            lost_seconds=self._options.rules.lost_seconds,
            begun=self._hands.begun,
        )

    def _seats(self, observation: Observation) -> dict[JobId, dict[NodeName, Seat]]:
        seats: dict[JobId, dict[NodeName, Seat]] = {}
        for job, entry in observation.entries.items():
            for booking in entry.status.pods:
                key = PodKey(job, booking.node)
                seats.setdefault(job, {})[booking.node] = Seat(
                    key,
                    booking,
                    observation.pods[key],
                    self._dialer.contact(key),
                    fresh=self._hands.is_fresh(job, booking),
                )
        return seats

    # --- deciding

    def _is_due(self, scene: Scene) -> bool:
        last = self._last
        if scene.now >= last.at + self._options.pace.period_seconds:
            return True
        if last.wake_at is not None and scene.now >= last.wake_at:
            return True
        return self._basis(scene) != last.basis

    def _basis(self, scene: Scene) -> object:
        """What a decision depends on, but for progress."""
        jobs = tuple(
            (job, entry.spec_generation, entry.status.phase, entry.status.generation)
            for job, entry in scene.entries.items()
            if observing.is_schedulable(entry, scene.now)
        )
        return jobs, tuple(scene.nodes.values())

    def _decide(self, scene: Scene) -> dict[JobId, Status]:
        """Ask the policy. A job about which no sound plan can be made is set aside, alone."""
        self._readmit(scene)
        self._last.at = scene.now
        aside: dict[JobId, Status] = {}
        for _ in range(len(scene.entries) + 1):
            snapshot = self._snapshot(scene)
            try:
                plan = cycle.schedule(snapshot, self._options.policy)
            except BrokenLaw as error:
                log.exception("a plan was refused, and its job is set aside")
                self._gauge.broken_law(error)
                if error.job not in scene.entries or error.job in self._aside:
                    break
                aside[error.job] = self._set_aside(scene.entries[error.job], error, scene.now)
                scene = _with(scene, aside)
            else:
                return aside | self._accept(plan, snapshot, scene)
        return aside

    def _accept(self, plan: Plan, snapshot: Snapshot, scene: Scene) -> dict[JobId, Status]:
        self._last.wake_at = plan.wake_at
        self._last.policy_state = plan.policy_state
        statuses = observing.statuses_of(plan, snapshot, scene.entries)
        self._memory.note(plan, snapshot, statuses)
        return statuses

    def _snapshot(self, scene: Scene) -> Snapshot:
        return observing.take_snapshot(
            scene,
            profiles=self._memory.profiles(),
            costs=self._options.costs,
            set_aside=self._aside,
            forecasts=self._memory.forecasts(),
            seed=self._options.seed,
            policy_state=self._last.policy_state,
        )

    def _set_aside(self, entry: Entry, error: BrokenLaw, now: float) -> Status:
        message = (
            f"no sound decision can be made about it ({error}); change its spec, or report this"
        )
        self._aside[entry.job.id] = _Aside(entry.spec_generation, message)
        condition = Condition(
            ConditionType.SET_ASIDE, status=True, reason="BrokenLaw", message=message
        )
        return replace(entry.status, message=message).with_condition(condition, now)

    def _readmit(self, scene: Scene) -> None:
        """Try jobs again whose spec has changed since they were set aside."""
        for job, aside in list(self._aside.items()):
            entry = scene.entries.get(job)
            if entry is None or entry.spec_generation != aside.spec_generation:
                del self._aside[job]

    # --- afterwards

    async def _tell(self, verdicts: Mapping[JobId, Verdict]) -> None:
        for job, verdict in verdicts.items():
            for news in verdict.news:
                self._memory.note_news(job, news, self._clock())
                await self._platform.tell(job, news.reason, news.message, warning=news.warning)

    def _plan_next_look(self, scene: Scene) -> float:
        times = [scene.now + self._options.pace.look_seconds]
        if self._last.wake_at is not None:
            times.append(self._last.wake_at)
        times += [
            entry.status.retry_at
            for entry in scene.entries.values()
            if entry.status.retry_at > scene.now
        ]
        return min(times)


def _with(scene: Scene, statuses: Mapping[JobId, Status]) -> Scene:
    """Show the scene with these statuses in it."""
    if not statuses:
        return scene
    entries = dict(scene.entries)
    seats = dict(scene.seats)
    for job, status in statuses.items():
        entries[job] = replace(entries[job], status=status)
        booked = set(status.pods)
        if job in seats:
            seats[job] = {n: seat for n, seat in seats[job].items() if seat.booking in booked}
    return replace(scene, entries=entries, seats=seats)
