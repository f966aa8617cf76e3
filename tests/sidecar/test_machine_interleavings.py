"""
The laws of the machine in every order of events.

One test explores every path with at most two ranks; another takes longer random walks with more events.
Targets rise, repeat, are stale or contradictory, and leaders change. Processes fail to start, crash, end
well, hang in their checkpoint, ignore SIGTERM and leave others. News is late, and on a walk repeated.
"""

import random
from collections.abc import Iterator
from functools import partial

import pytest

from dljob_sidecar.behaviour.table import TABLE, Trigger
from dljob_wire.messages import Phase
from tests.sidecar.matrices import IMPOSSIBLE, LIVE_PAIRS, PAIRS, POSSIBLE, Pair
from tests.sidecar.worlds import ALWAYS, ONCE_DECLARED, Move, World, explore

WALKS, STEPS = 200, 60
ELSEWHERE = {(Phase.STARTING, Trigger.STARTED_TO_JOIN.value)}
"""A pair that needs a second container."""
ENDS: tuple[Move, ...] = (
    World.the_container_is_interrupted,
    *(each for each in ALWAYS if isinstance(each, partial) and each.keywords.get("leave")),
)
"""Moves after which little can happen."""


def find_more_moves(world: World) -> Iterator[Move]:
    """Return moves that an exploration leaves out, because it would never end."""
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


def draw(world: World, chance: random.Random, calm: float) -> Move:
    """Draw the next move, an inevitable one at the rate ``calm``."""
    if world.accepted and chance.random() < calm:
        return World.settle
    declared = [*ALWAYS, *(ONCE_DECLARED if world.accepted else ())]
    others = [each for each in (*world.moves(), *find_more_moves(world)) if each not in declared]
    if others and chance.random() < 0.6:
        return chance.choice(others)
    lasting = [each for each in declared if each not in ENDS]
    # A live change is short, and an end in the middle of it would hardly be drawn.
    rate = 0.3 if world.machine.phase is Phase.CHANGING else 0.05
    return chance.choice(ENDS if chance.random() < rate else lasting)


def walk(world: World, chance: random.Random, *, calm: float = 0.4) -> None:
    for _ in range(STEPS):
        draw(world, chance, calm)(world)
        world.check()
    world.check_goal()


WAYS = [
    (True, False, True, True),
    (False, False, False, True),
    (True, False, True, False),
    (True, True, True, False),
]
"""Whether the job saves itself, follows a leader elsewhere, tries its checkpoint, and changes live."""


@pytest.mark.parametrize(("saves", "follows", "tries", "lives"), WAYS)
def test_laws_hold_on_random_walks(saves, follows, tries, lives):
    heard: set[Pair] = set()
    for number in range(WALKS):
        world = World(saves=saves, follows=follows, tries=tries, lives=lives)
        walk(world, random.Random(number))
        heard.update(world.heard)
    assert heard <= POSSIBLE, heard - POSSIBLE
    # Walks must cover most of the possible pairs.
    assert not (tries and lives) or len(heard) > 0.8 * len(POSSIBLE)


@pytest.mark.slow
@pytest.mark.parametrize(("saves", "follows", "tries", "lives"), WAYS[2:])
def test_laws_hold_on_every_path(saves, follows, tries, lives):
    heard = set(explore(saves=saves, follows=follows, tries=tries).heard)
    # Only a job that saves itself and continues shows all possible pairs.
    assert not lives
    assert heard <= POSSIBLE - LIVE_PAIRS
    assert follows or heard == POSSIBLE - LIVE_PAIRS


@pytest.mark.slow
def test_laws_hold_on_many_walks_with_live_changes():
    """Live changes have too many states for an exploration."""
    heard: set[Pair] = set()
    for number in range(4000):
        saves = number % 3 > 0
        world = World(saves=saves, tries=saves and number % 2 > 0, lives=True)
        # Without calm new declarations come before the processes have registered.
        walk(world, random.Random(f"live {number}"), calm=(0.4, 0.6, 0.7, 0.8)[number % 4])
        heard.update(world.heard)
    assert heard >= POSSIBLE - ELSEWHERE, POSSIBLE - ELSEWHERE - heard


def test_each_impossible_pair_has_one_reason():
    assert sum(len(pairs) for pairs in IMPOSSIBLE.values()) == len(PAIRS - POSSIBLE)


def test_table_covers_every_possible_pair():
    named = {(phase, trigger.value) for phase, rows in TABLE.items() for trigger in rows}
    words = {trigger.value for trigger in Trigger}
    assert {pair for pair in POSSIBLE if pair[1] in words} <= named
    # If a supervisor reported the last end first, the SideCar would otherwise wait for ever.
    assert named - POSSIBLE == {(Phase.STARTING, Trigger.ALL_ENDED.value)}
