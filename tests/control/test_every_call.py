"""
A controller is killed or held at every single call of a small story.

Nothing else goes wrong, so that only the controllers can lose anything. One job starts, one grows
over two containers, one makes room, one is suspended and one is cancelled.
"""

from collections.abc import Callable

import pytest

from dljob.core import policies
from dljob.core.model import Checkpoint, JobId, Mechanism, Training
from tests.builders import make_job
from tests.control.governing import Government, Reign
from tests.control.played import Temper, World
from tests.control.stories import has_ended
from tests.control.training import Trainings

SECONDS = 150.0


class Episode:
    """The small story, with one incident."""

    def __init__(self, mechanism: Mechanism, policy: str) -> None:
        # Some pods are warm within the controller's patience, others are not.
        temper = Temper(warm_seconds=(1.0, 8.0))
        self.world = World(f"every call/{mechanism}", {"n0": 3, "n1": 2}, temper)
        self.government = Government(self.world, policies.make(policy), mechanism)
        self.trainings = Trainings(self.world)

    def close(self) -> None:
        self.government.close()

    def begin(self) -> Reign:
        self.trainings.begin()
        self._submit("grows", 300, 1, 3, 4, 5)
        self.world.after(25.0, lambda: self._submit("waits", 60, 2))
        self.world.after(60.0, lambda: self._change("waits", suspend=True))
        self.world.after(80.0, lambda: self._change("waits", suspend=False))
        self.world.after(90.0, lambda: self._submit("leaves", 400, 1, 2))
        self.world.after(115.0, lambda: self._cancel("leaves"))
        return self.government.begin()

    def _submit(self, name: str, iterations: int, *options: int) -> None:
        training, saved = Training(iterations=iterations, batch_size=8), Checkpoint(shared=True)
        self.world.submit(make_job(name, options=options, training=training, checkpoint=saved))
        self.government.wake()

    def _change(self, name: str, **changes: object) -> None:
        self.world.change(JobId(name), **changes)
        self.government.wake()

    def _cancel(self, name: str) -> None:
        if JobId(name) in self.world.entries:
            self.world.cancel(JobId(name))
            self.government.wake()

    def end(self) -> None:
        world = self.world
        world.run(SECONDS)
        self.government.calm_down()
        world.run(1500.0, until=self._is_over)
        assert self._is_over(), [entry.status for entry in world.entries.values()]
        assert JobId("leaves") not in world.entries
        assert not world.witness.living
        lost = {job: lost for job, lost in world.witness.lost_iterations.items() if job != "leaves"}
        assert lost == {}

    def _is_over(self) -> bool:
        return all(has_ended(self.world, entry) for entry in self.world.entries.values())


def play(
    mechanism: Mechanism, doom: Callable[[Episode, Reign], None], *, policy: str = "foresight"
) -> Reign:
    """Play the story with this incident; return its first controller."""
    episode = Episode(mechanism, policy)
    try:
        reign = episode.begin()
        doom(episode, reign)
        episode.end()
    finally:
        episode.close()
    return reign


Doom = Callable[[Episode, Reign], None]
Incident = Callable[[int, float], Doom]


def kill_at(call: int, pause: float) -> Doom:
    """Kill the controller at this call; another one begins after a pause."""

    def doom(episode: Episode, reign: Reign) -> None:
        reign.leash.kill_at = call
        episode.government.when_over(reign, pause, episode.government.begin)

    return doom


def hold_at(call: int, pause: float) -> Doom:
    """Hold the controller while another one takes over; it goes on after a pause."""

    def doom(episode: Episode, reign: Reign) -> None:
        def succeed() -> None:
            episode.government.begin()
            episode.world.after(pause, lambda: episode.government.go_on(reign))

        reign.leash.hold_at = call
        episode.government.when_over(reign, 0.2, succeed)

    return doom


def count_calls(mechanism: Mechanism) -> int:
    return play(mechanism, lambda *_: None).leash.calls


INCIDENTS: dict[str, tuple[Incident, float]] = {
    "killed": (kill_at, 0.01),
    "killed, and no leader for a while": (kill_at, 9.0),
    "held back for an instant": (hold_at, 0.05),
    "held back for long": (hold_at, 20.0),
}
each_incident = pytest.mark.parametrize(
    ("incident", "pause"), INCIDENTS.values(), ids=list(INCIDENTS)
)
each_mechanism = pytest.mark.parametrize("mechanism", Mechanism)

SAMPLE = range(5, 315, 10)
"""Each incident has its own of these calls."""


@pytest.mark.parametrize("turn", range(8))
def test_every_tenth_call(turn: int):
    """Together these tests interrupt the story at every tenth call."""
    incident, pause = list(INCIDENTS.values())[turn % 4]
    mechanism = list(Mechanism)[turn // 4]
    for call in SAMPLE[turn::8]:
        policy = ("foresight", "adaptive")[call // 80 % 2]
        play(mechanism, incident(call, pause), policy=policy)


@pytest.mark.slow
@pytest.mark.parametrize("policy", policies.NAMES)
def test_controller_may_die_under_every_policy(policy):
    for call in (40, 160):
        play(Mechanism.IN_PLACE, kill_at(call, 0.01), policy=policy)


@pytest.mark.slow
@each_mechanism
def test_story_has_as_many_calls_as_the_sample(mechanism):
    assert count_calls(mechanism) >= SAMPLE[-1]


@pytest.mark.slow
@each_mechanism
@each_incident
def test_many_calls(mechanism, incident, pause):
    for call in range(1, 1 + count_calls(mechanism), 16):
        play(mechanism, incident(call, pause))


@pytest.mark.long
@each_mechanism
@each_incident
def test_every_call(mechanism, incident, pause):
    for call in range(1, 1 + count_calls(mechanism)):
        play(mechanism, incident(call, pause))
