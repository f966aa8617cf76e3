"""
Stories of a played world; a witness that sees the processes holds the laws of DESIGN.

A story that breaks a law can be replayed: its seed determines all of it.
"""

import pytest

from dljob.core.contract import Policy
from dljob.core.model import Mechanism
from dljob.sim import policies
from tests.control.stories import Plot, Story
from tests.core.test_policies_laws import Dice

NAMES = ("foresight", "dice", "adaptive", "optimus", "kube-default", "srtf", "max-min")
EVALUATIONS = (0.0, 2.0, 5.0, 12.0)
each_mechanism = pytest.mark.parametrize("mechanism", Mechanism)


def tell(
    name: str, mechanism: Mechanism, seed: int, *, evaluations: tuple[float, ...] = ()
) -> None:
    policy: Policy = Dice() if name == "dice" else policies.make(name)
    plot = Plot(policy, mechanism, evaluations=evaluations)
    story = Story(plot, f"{name}/{mechanism}/{seed}")
    try:
        story.tell()
        assert story.end() == []
    finally:
        story.close()


@each_mechanism
@pytest.mark.parametrize("name", NAMES[:2])
def test_laws_hold(name: str, mechanism: Mechanism):
    tell(name, mechanism, 0)


@each_mechanism
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(5), marks=pytest.mark.slow),
        pytest.param(range(5, 250), marks=pytest.mark.long),
    ],
)
def test_laws_hold_in_many_stories(name: str, mechanism: Mechanism, seeds: range):
    for seed in seeds:
        tell(name, mechanism, seed)


def tell_of_ends(seed: int) -> None:
    """Tell a story in which users change jobs that are about to end."""
    name = NAMES[seed % len(NAMES)]
    mechanism = [*Mechanism][seed // len(NAMES) % len(Mechanism)]
    tell(name, mechanism, seed, evaluations=EVALUATIONS)


@pytest.mark.parametrize(
    "seed", [*range(14), 107, 307, 495, 622]
)  # The last four broke a law once.
def test_job_that_ends_in_a_change_is_done_once(seed: int):
    tell_of_ends(seed)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("hundred", range(10))
def test_jobs_are_done_once_in_a_thousand_stories(hundred: int):
    for seed in range(100 * hundred, 100 * hundred + 100):
        tell_of_ends(seed)


def test_seed_determines_the_story():
    logs = []
    for _ in range(2):
        story = Story(Plot(policies.make("adaptive"), seconds=60.0), "again")
        story.tell()
        story.close()
        logs.append(list(story.world.log))
    assert logs[0] == logs[1]
    assert len(logs[0]) > 20
