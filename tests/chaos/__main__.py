"""The long chaos test of ``make chaos``: at least 300 deaths at all kinds of points, and a histogram."""

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from dljob.core.model import Mechanism
from tests.chaos.testimony import count_changes, read_all
from tests.chaos.worlds import Trouble, in_trouble

WORLDS = (
    (Mechanism.IN_PLACE, True),
    (Mechanism.RECREATE, True),
    (Mechanism.IN_PLACE, False),
    (Mechanism.RECREATE, False),
)
"""The mechanism, and whether SideCars have namespaces."""

KILLS_A_FREEZE = 25
"""Of so many controllers that die, one lives long enough to remove a SideCar."""


def main() -> int:
    options = argparse.ArgumentParser(prog="tests.chaos")
    options.add_argument("--kills", type=int, default=320)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--hostile", type=int, default=2, help="hostile jobs at a time")
    options.add_argument("--minutes", type=float, default=60.0)
    options.add_argument("--least", type=float, default=15.0, help="seconds of a short training")
    options.add_argument("--world", type=int, choices=range(len(WORLDS)))
    given = options.parse_args()
    numbers = range(len(WORLDS)) if given.world is None else [given.world]
    deaths: Counter[str] = Counter()
    for number in numbers:
        mechanism, has_namespaces = WORLDS[number]
        kills = -(-given.kills // len(numbers))
        deaths += _run(
            Trouble(
                seed=given.seed + number,
                kills=kills,
                freezes=-(-kills // KILLS_A_FREEZE),
                mechanism=mechanism,
                has_namespaces=has_namespaces,
                hostile=given.hostile,
                least_seconds=given.least,
                most_seconds=3 * given.least,
                limit_seconds=60 * given.minutes / len(numbers),
            )
        )
    _say(f"controllers died at {deaths.total()} points of {len(deaths)} kinds:")
    for kind, count in deaths.most_common():
        _say(f"{count:5d}  {kind}")
    return 0


def _run(trouble: Trouble) -> Counter[str]:
    root = Path(tempfile.mkdtemp(prefix="dljob-chaos-"))
    with in_trouble(root, trouble) as world:
        world.run()
        world.verify()
    lives = read_all(world.witness)
    starts = len({(life.job, life.start) for life in lives})
    _say(
        f"{trouble.mechanism.value}, {'with' if trouble.has_namespaces else 'without'} namespaces:"
        f" {world.story.deaths.total()} deaths, {len(world.story.iterations)} jobs,"
        f" {len(world.hostiles.kinds)} hostile jobs of {len(set(world.hostiles.kinds))} kinds,"
        f" {starts} starts, {count_changes(lives)} changes of GPUs, and {json.dumps(world.story.others)}"
    )
    shutil.rmtree(root)
    return world.story.deaths


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
