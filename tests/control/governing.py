"""Controllers in a played world: begun, woken, killed, held back, and followed by the next one."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from dljob.control.learning.learned_state import LearnedState
from dljob.control.loop import Controller
from dljob.control.pacing import Pace
from dljob.control.scheduling import Options
from dljob.control.situation.ports import Fenced, PodKey
from dljob.control.situation.rules import News, Rules
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Status
from dljob.core import policies
from dljob.core.checking import BrokenLaw
from dljob.core.contract import Policy
from dljob.core.measuring import Resumption, SpeedSamples
from dljob.core.model import JobId, Mechanism, Phase, Snapshot
from dljob.core.planning import Plan
from dljob.core.predicting.learning_curves import Forecast
from dljob.core.profiles import JobType, Profile
from dljob.store.notebook import Notebook
from dljob_wire.messages import State
from tests.builders import make_job, make_profile
from tests.control.played import Killed, Leash, PlayedPlatform, World
from tests.control.played_network import PlayedDialer
from tests.control.store.memory import MemoryStore

RULES = Rules(
    retry_seconds=5.0,
    longest_retry_seconds=40.0,
    keep_seconds=10.0,
    lost_seconds=20.0,
    initialize_seconds=60.0,
    steady_seconds=30.0,
)
PACE = Pace(period_seconds=15.0, warm_seconds=5.0, look_seconds=2.0)


ADAPTIVE = policies.make("adaptive")


class PlayedMemory:
    """Knows one type of job, and keeps the plans and observations that it receives."""

    def __init__(self) -> None:
        profile = make_profile()
        self.known = {profile.type: profile}
        self.plans: list[Plan] = []
        self.news: list[tuple[JobId, News]] = []
        self.policy_states: dict[str, object] = {}

    def profiles(self) -> Mapping[JobType, Profile]:
        return self.known

    def forecasts(self) -> Mapping[JobId, Forecast]:
        return {}

    def resumptions(self) -> Mapping[JobId, Resumption]:
        return {}

    def update(self, scene: Scene) -> None:
        pass

    def note(self, plan: Plan, snapshot: Snapshot, statuses: Mapping[JobId, Status]) -> None:
        self.plans.append(plan)

    def keep_policy_state(self, policy: str, state: object) -> None:
        self.policy_states[policy] = state

    def policy_state(self, policy: str) -> object:
        return self.policy_states.get(policy)

    def note_news(self, job: JobId, news: News, now: float) -> None:
        self.news.append((job, news))

    def note_cost(self, job: JobId, generation: int, seconds: float, how: str) -> None:
        pass


class PlayedMetrics:
    """Counts."""

    def __init__(self) -> None:
        self.cycles = 0
        self.decisions = 0
        self.broken: list[BrokenLaw] = []
        self.paused: list[float] = []
        self.waits: list[tuple[JobId, str, float]] = []

    def cycle(self, seconds: float, *, decided: bool) -> None:
        self.cycles += 1
        self.decisions += decided

    def show(self, scene: Scene) -> None:
        pass

    def broken_law(self, error: BrokenLaw) -> None:
        self.broken.append(error)

    def reshaped(self, seconds: float, mechanism: str) -> None:
        self.paused.append(seconds)

    def waited(self, job: JobId, *, seconds: float, outcome: str) -> None:
        self.waits.append((job, outcome, seconds))


@dataclass(eq=False)
class Reign:
    """One controller, from its beginning to its end."""

    epoch: int
    leash: Leash
    controller: Controller
    platform: PlayedPlatform
    dialer: PlayedDialer
    task: asyncio.Task[None] | None = None
    is_woken: bool = False
    is_over: bool = False
    next_at: float = 0.0


class Government:
    """All controllers of a world, one of which leads."""

    def __init__(
        self,
        world: World,
        policy: Policy,
        mechanism: Mechanism = Mechanism.IN_PLACE,
        *,
        rules: Rules = RULES,
        pace: Pace = PACE,
        impatience: float = 0.0,
        learns: bool = False,
    ) -> None:
        self.world = world
        self.impatience = impatience
        """How often news interrupts the wait for the next decision while one is carried out."""
        self.options = Options(policy=policy, mechanism=mechanism, rules=rules, pace=pace)
        self.memory: Any = PlayedMemory()
        self.notebook: Notebook | None = None
        """With ``learns``: the product's own learned state, on a store in memory."""
        if learns:
            self.notebook = Notebook(MemoryStore()).open(wait_seconds=60.0)
        self.metrics = PlayedMetrics()
        self.reigns: list[Reign] = []
        self._loop = asyncio.new_event_loop()

    def close(self) -> None:
        for reign in self.reigns:
            reign.leash.is_dead = True
            self._release(reign)
            reign.dialer.close()
        if self.notebook is not None:
            self.notebook.close(0.0)
        self._loop.close()

    @property
    def leader(self) -> Reign:
        return self.reigns[-1]

    @property
    def scene(self) -> Scene:
        scene = self.leader.controller.scene
        assert scene is not None
        return scene

    # --- beginnings and ends

    def begin(self, run: float = 0.0) -> Reign:
        """Let a new controller lead, even if earlier ones still run; then run the world."""
        world = self.world
        world.epoch += 1
        leash = Leash()
        platform = PlayedPlatform(world, world.epoch, leash)
        reign: Reign

        def wake() -> None:
            self._wake(reign)

        memory = self.memory
        if self.notebook is not None:
            memory = self.memory = LearnedState(self.notebook, SpeedSamples(), epoch=world.epoch)

        def learn(key: PodKey, state: State) -> None:
            entry = world.entries.get(key.job)
            if isinstance(memory, LearnedState) and entry is not None and not leash.is_dead:
                memory.hear(entry, key, state, world.now)

        dialer = PlayedDialer(world, world.epoch, leash, wake, learn)
        controller = Controller(
            platform,
            dialer,
            learning=memory,
            metrics=self.metrics,
            options=self.options,
            epoch=world.epoch,
            clock=lambda: world.now,
        )
        reign = Reign(world.epoch, leash, controller, platform, dialer)
        self.reigns.append(reign)
        world.note(f"[{reign.epoch}] begins")
        self._wake(reign)
        if run:
            world.run(run)
        return reign

    def succeed(self, run: float = 0.0) -> Reign:
        """Kill the leader; another controller begins."""
        self.kill(self.leader)
        return self.begin(run)

    def kill(self, reign: Reign) -> None:
        reign.leash.is_dead = True
        self.world.note(f"[{reign.epoch}] is killed")
        self._release(reign)
        self._end(reign)

    def _end(self, reign: Reign) -> None:
        reign.is_over = True
        reign.dialer.close()

    def _release(self, reign: Reign) -> None:
        """Let a held controller go on."""
        if reign.leash.held is not None and not reign.leash.held.done():
            reign.leash.hold_at = None
            reign.leash.held.set_result(None)
            self._pump(reign)

    def go_on(self, reign: Reign) -> None:
        self.world.note(f"[{reign.epoch}] goes on")
        self._release(reign)

    def calm_down(self) -> None:
        """Kill and hold no more controllers, and let one lead."""
        for reign in self.reigns:
            reign.leash.kill_at = reign.leash.hold_at = None
            self.go_on(reign)
        if self.leader.is_over:
            self.begin()

    def when_over(self, reign: Reign, seconds: float, act: Callable[[], object]) -> None:
        """Act some seconds after a controller has ended or was held."""

        def update() -> None:
            if reign.is_over or reign.leash.held is not None:
                self.world.after(seconds, act)
            else:
                self.world.after(0.01, update)

        update()

    # --- cycles

    def wake(self) -> None:
        if self.reigns:
            self._wake(self.leader)

    def _wake(self, reign: Reign) -> None:
        if not reign.is_woken and not reign.is_over:
            reign.is_woken = True
            self.world.later(0.0, 0.05, lambda: self._look(reign))

    def _look(self, reign: Reign) -> None:
        reign.is_woken = False
        if reign.is_over or reign.task is not None:
            return
        reign.task = self._loop.create_task(reign.controller.cycle())
        if self.impatience and self.world.chance.random() < self.impatience:
            # The news comes after the first look, and cuts the batch short even if the last one was, too.
            reign.controller.effects._batch_size.is_long = True
            self._loop.call_soon(partial(reign.controller.wake, urgent=True))
        self._pump(reign)

    def _pump(self, reign: Reign) -> None:
        """Let the controller run until its cycle is done or it is held."""
        task = reign.task
        while task is not None and not task.done() and not self._is_held(reign):
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
        if task is not None and task.done():
            reign.task = None
            self._see_end_of(reign, task)

    def _is_held(self, reign: Reign) -> bool:
        return reign.leash.held is not None and not reign.leash.held.done()

    def _see_end_of(self, reign: Reign, task: asyncio.Task[None]) -> None:
        error = task.exception()
        if isinstance(error, Killed | Fenced):
            self.world.note(f"[{reign.epoch}] ends: {type(error).__name__} {error}")
            self._end(reign)
            return
        if error is not None:
            raise error
        wanted = max(self.world.now + 0.05, reign.controller._next_cycle)
        reign.next_at = wanted
        self.world.after(wanted - self.world.now, lambda: self._look_again(reign, wanted))

    def _look_again(self, reign: Reign, wanted: float) -> None:
        if reign.next_at == wanted:
            self._wake(reign)


# --- helpers for tests of one small world ---------------------------------------------------


@contextmanager
def governed(nodes: Mapping[str, int] = {"n0": 4}, policy: Policy = ADAPTIVE) -> Iterator[Any]:
    """A small world without misfortunes; the test begins its controllers."""
    government = Government(World("governed", nodes), policy)
    try:
        yield government
    finally:
        government.close()


def submit(government: Government, name: str, **job: Any) -> JobId:
    made = make_job(name, **{"options": (1,)} | job)
    government.world.submit(made, iterations=10_000)
    government.wake()
    return made.id


def status(government: Government, job: JobId) -> Any:
    return government.world.entries[job].status


def has_begun(government: Government, *jobs: JobId) -> bool:
    return all(status(government, job).phase is Phase.RUNNING for job in jobs)


def told(government: Government, job: JobId) -> list[tuple[str, str]]:
    return [
        (reason, text)
        for reign in government.reigns
        for name, reason, text in reign.platform.told
        if name == job
    ]
