"""
Deaths of controllers at system calls that the kernel stops them at, before and after each is done.

The world is that of ``make chaos``: jobs come, trainings and SideCars are killed, files are locked.
The next controller goes on from every half-written state, and no law is broken.
"""

import shutil
import tempfile
from pathlib import Path

from dlcore.model import Mechanism
from tests.attack.counts import Count, Size, say
from tests.attack.tracing import is_possible
from tests.chaos.worlds import Trouble, in_trouble

KILLS = {Size.SHORT: 8, Size.FULL: 400}
WORLDS = {
    Size.SHORT: (Mechanism.IN_PLACE,),
    Size.FULL: (Mechanism.IN_PLACE, Mechanism.RECREATE),
}


def run(size: Size) -> Count:
    """Kill controllers in each world; all is broken of a world in which a law is."""
    count = Count(skipped=is_possible())
    if not count.skipped:
        for number, mechanism in enumerate(WORLDS[size]):
            _kill_in(count, size, mechanism, seed=11 + number)
    return count


def _kill_in(count: Count, size: Size, mechanism: Mechanism, *, seed: int) -> None:
    root = Path(tempfile.mkdtemp(prefix="dljob-attack-"))
    is_short = size is Size.SHORT
    trouble = Trouble(
        seed=seed,
        kills=-(-KILLS[size] // len(WORLDS[size])),
        jobs=2 if is_short else 6,
        mechanism=mechanism,
        least_seconds=2.0 if is_short else 10.0,
        most_seconds=4.0 if is_short else 30.0,
        limit_seconds=240.0 if is_short else 3600.0,
        controllers="tests.attack.traced",
    )
    with in_trouble(root, trouble) as world:
        try:
            world.run()
            world.verify()
        except (AssertionError, TimeoutError) as error:
            count.broken.append(f"{mechanism.value}: {error}")
    deaths = world.story.deaths
    count.tried += deaths.total()
    say(f"{mechanism.value}: {deaths.total()} deaths at {len(deaths)} kinds of calls")
    for kind, times in deaths.most_common(None if size is Size.FULL else 0):
        say(f"{times:5d}  {kind}")
    if not count.broken:
        # The folder is kept after a failure, because its files show the cause.
        shutil.rmtree(root)
