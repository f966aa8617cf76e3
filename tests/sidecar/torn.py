"""
Many reshapes with kills at random moments, over checkpoints of every shape.

``python -m tests.sidecar.torn [--reshapes 200] [--seed 1]``; ``--python PATH`` names an interpreter with
PyTorch, Transformers and Lightning, and uses their checkpoints. In every second reshape the training or
its SideCar is killed. The run fails if a training resumes from a torn checkpoint.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from pathlib import Path

from tests.sidecar.real_savers import NEEDS, WAYS
from tests.sidecar.reshapes import Job, Tally
from tests.sidecar.savers import SHAPES

LONGEST_SECONDS = 1.2
"""A kill comes at most this number of seconds after the beginning of a change."""
EVERY = 60
"""Trainings also save by themselves after this number of steps."""


def run(
    shape: str, reshapes: int, *, seed: int, gap: float, python: str, in_memory: bool = False
) -> Tally:
    chance = random.Random(seed)
    token = f"torn-{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        said = write_to_memory(shape, token) if in_memory else {}
        job = Job(Path(folder), token, shape, gap=gap, every=EVERY, python=python, **said)
        try:
            reshape(job, reshapes, chance)
        finally:
            job.sidecar.close()
    return job.tally


def find_ways(python: str) -> list[str]:
    """Return the ways whose framework this interpreter has, and print the others."""
    found = []
    for way in WAYS:
        asked = [python, "-c", f"import {NEEDS[way]}"]
        if (
            subprocess.run(asked, stderr=subprocess.DEVNULL, check=False, timeout=600).returncode
            == 0
        ):
            found.append(way)
        else:
            say(f"{way:12} left out, because {python} has no {NEEDS[way]}")
    return found


def write_to_memory(shape: str, token: str) -> dict[str, str]:
    """Return the options of a job that writes its checkpoints to memory first."""
    memory = {
        "checkpoint.memoryPath": f"/dev/shm/dljob-{token}",  # noqa: S108 - it is named after the test
        "checkpoint.memory": "1Gi",
    }
    return {"complete": shape, "writes": "-", "more": json.dumps(memory)}


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
    options.add_argument("--memory", action="store_true")
    given = options.parse_args()
    possible = WAYS if given.python else SHAPES
    if given.shape not in (None, *possible):
        options.error(
            f"--shape with{'' if given.python else 'out'} --python is one of {', '.join(possible)}"
        )
    shapes = find_ways(given.python) if given.python else list(SHAPES)
    shapes = [given.shape] if given.shape else shapes
    if given.memory:
        shapes = [shape for shape in shapes if shape != "several"]  # No sign completes it.
    each = -(-given.reshapes // len(shapes))
    kills: Counter[str] = Counter()
    for number, shape in enumerate(shapes):
        tally = run(
            shape,
            each,
            seed=given.seed + number,
            gap=given.gap,
            python=given.python,
            in_memory=given.memory,
        )
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
