"""
The laws of the machine in every order of events, on every way through it.

One test goes every way, with at most two ranks. Another walks at random, which is longer and has more
of everything. The controller declares rising, repeated, stale and contradictory targets, and now and
then is replaced by a new leader. The processes fail to start, crash, end well, hang in their
checkpoint, ignore SIGTERM and leave others behind. News comes late; and on a walk it even arrives
again after it was overtaken, which no supervisor does.
"""

import random
from collections.abc import Iterator
from functools import partial

import pytest

from dljob_sidecar.behaviour.table import TABLE, Trigger
from dljob_wire.messages import Phase
from tests.sidecar.matrices import IMPOSSIBLE, PAIRS, POSSIBLE, Pair
from tests.sidecar.worlds import ALWAYS, ONCE_DECLARED, Move, World, explore

WALKS, STEPS = 200, 60
ENDS: tuple[Move, ...] = (
    World.the_container_is_told_to_end,
    *(each for each in ALWAYS if isinstance(each, partial) and each.keywords.get("leave")),
)
"""Little can happen after these."""


def find_more_moves(world: World) -> Iterator[Move]:
    """Return what the ways through all moves leave out, because they would never end."""
    if world.accepted:
        yield partial(World.a_newer_run_is_declared, processes=3, rise=2)
    for rank in world.running:
        yield partial(World.a_rank_ends, rank=rank, exit_code=None, signal=11)
    if world.running:
        yield World.another_is_left_behind
    if world.has_leftover:
        yield World.what_was_left_behind_ends
    for event in world.overtaken()[-2:]:
        yield partial(World.overtaken_news_arrives, event=event)


def draw(world: World, chance: random.Random) -> Move:
    """Draw the next move; often it is what is bound to happen, which else has no time to."""
    if world.accepted and chance.random() < 0.4:
        return World.settle
    declared = [*ALWAYS, *(ONCE_DECLARED if world.accepted else ())]
    others = [each for each in (*world.moves(), *find_more_moves(world)) if each not in declared]
    if others and chance.random() < 0.6:
        return chance.choice(others)
    lasting = [each for each in declared if each not in ENDS]
    return chance.choice(ENDS if chance.random() < 0.05 else lasting)


def walk(world: World, chance: random.Random) -> None:
    for _ in range(STEPS):
        draw(world, chance)(world)
        world.check()
    world.check_goal()


WAYS = [(True, False, True), (False, False, False), (True, True, True)]
"""Whether the job saves itself, whether its leader does so elsewhere, whether it tries that."""


@pytest.mark.parametrize(("saves", "follows", "tries"), WAYS)
def test_the_laws_hold_whatever_comes(saves, follows, tries):
    heard: set[Pair] = set()
    for number in range(WALKS):
        world = World(saves=saves, follows=follows, tries=tries)
        walk(world, random.Random(number))
        heard.update(world.heard)
    assert heard <= POSSIBLE
    # Walks that miss most of what can come would show little.
    assert not tries or follows or len(heard) > 0.8 * len(POSSIBLE)


# --- every way there is -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("saves", "follows", "tries"), WAYS[::2])
def test_the_laws_hold_on_every_way_there_is(saves, follows, tries):
    heard = set(explore(saves=saves, follows=follows, tries=tries).heard)
    # A pair can occur unless a reason excludes it, and only a job that saves itself and goes on
    # shows them all.
    assert heard <= POSSIBLE
    assert not tries or follows or heard == POSSIBLE


def test_what_cannot_come_has_one_reason():
    assert sum(len(pairs) for pairs in IMPOSSIBLE.values()) == len(PAIRS - POSSIBLE)


def test_the_table_names_what_can_come_and_one_thing_more():
    named = {(phase, trigger.value) for phase, rows in TABLE.items() for trigger in rows}
    words = {trigger.value for trigger in Trigger}
    assert {pair for pair in POSSIBLE if pair[1] in words} <= named
    # Should a supervisor ever tell of the last end first, the SideCar would else wait for ever.
    assert named - POSSIBLE == {(Phase.STARTING, Trigger.ALL_ENDED.value)}
