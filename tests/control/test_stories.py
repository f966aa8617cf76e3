"""
Stories of a played world in which the laws of DESIGN are held by a witness that sees processes.

A story that breaks a law can be replayed by its name: the seed determines all of it.
"""

import pytest

from dlcore import policies
from dlcore.contract import Policy
from dlcore.model import Mechanism
from tests.control.stories import Plot, Story
from tests.core.test_policies_laws import Dice

NAMES = ("foresight", "dice", "adaptive", "optimus", "kube-default", "srtf", "max-min")
each_mechanism = pytest.mark.parametrize("mechanism", Mechanism)


def tell(name: str, mechanism: Mechanism, seed: int) -> None:
    policy: Policy = Dice() if name == "dice" else policies.make(name)
    story = Story(Plot(policy, mechanism), f"{name}/{mechanism}/{seed}")
    try:
        story.tell()
        assert story.end() == []
    finally:
        story.close()


@each_mechanism
@pytest.mark.parametrize("name", NAMES[:2])
def test_the_laws_hold(name: str, mechanism: Mechanism):
    tell(name, mechanism, 0)


@pytest.mark.slow
@each_mechanism
@pytest.mark.parametrize("name", NAMES)
def test_the_laws_hold_in_many_stories(name: str, mechanism: Mechanism):
    for seed in range(5):
        tell(name, mechanism, seed)


@pytest.mark.long
@each_mechanism
@pytest.mark.parametrize("name", NAMES)
def test_the_laws_hold_in_hundreds_of_stories(name: str, mechanism: Mechanism):
    for seed in range(5, 250):
        tell(name, mechanism, seed)


def test_the_same_seed_is_the_same_story():
    logs = []
    for _ in range(2):
        story = Story(Plot(policies.make("adaptive"), seconds=60.0), "again")
        story.tell()
        story.close()
        logs.append(list(story.world.log))
    assert logs[0] == logs[1]
    assert len(logs[0]) > 20
