"""
The long run: many reshapes with kills at random moments, over checkpoints of every shape.

``python -m tests.sidecar.torn [--reshapes 200] [--seed 1]``; with ``--python PATH`` that of an
interpreter with PyTorch, Transformers and Lightning, whose own checkpoints they are then. Half of the reshapes are disturbed: the
training, or its SideCar, is killed at a random moment of the change. It fails as soon as a training
goes on from a torn checkpoint, and prints what happened.
"""

import argparse
import random
import statistics
import sys
import tempfile
import uuid
from collections import Counter
from pathlib import Path

from tests.sidecar.real_savers import WAYS
from tests.sidecar.reshapes import Job, Tally
from tests.sidecar.savers import SHAPES

LONGEST_SECONDS = 1.2
"""Kills come within so many seconds of the beginning of a change, which takes about as long."""
EVERY = 60
"""Trainings save themselves after so many steps as well, without being asked."""


def run(shape: str, reshapes: int, *, seed: int, gap: float, python: str) -> Tally:
    chance = random.Random(seed)
    token = f"torn-{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        job = Job(Path(folder), token, shape, gap=gap, every=EVERY, python=python)
        try:
            reshape(job, reshapes, chance)
        finally:
            job.sidecar.close()
    return job.tally


def reshape(job: Job, reshapes: int, chance: random.Random) -> None:
    job.reshape()
    for number in range(reshapes):
        if number % 2:
            job.change_under_fire(chance, LONGEST_SECONDS)
        else:
            job.reshape()
        assert not job.torn(), job.tell()


def main() -> int:
    options = argparse.ArgumentParser(prog="tests.sidecar.torn")
    options.add_argument("--reshapes", type=int, default=200)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--gap", type=float, default=0.3)
    options.add_argument("--python", default="")
    options.add_argument("--shape", choices=[*SHAPES, *WAYS])
    given = options.parse_args()
    shapes = [given.shape] if given.shape else list(WAYS if given.python else SHAPES)
    each = -(-given.reshapes // len(shapes))
    kills: Counter[str] = Counter()
    for number, shape in enumerate(shapes):
        tally = run(shape, each, seed=given.seed + number, gap=given.gap, python=given.python)
        kills += tally.kills
        seconds = statistics.median(tally.checkpoint_seconds or [0.0])
        saved = ", ".join(f"{count} {how}" for how, count in sorted(tally.saved.items()))
        say(f"{shape:12} {each} reshapes, 0 torn; {saved}; {seconds:.2f} s to a confirmation")
    for kind, count in kills.most_common():
        say(f"{count:5d}  {kind} was killed")
    return 0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
