"""Kill everything that can be killed, a little; the long run is ``make chaos``."""

import shutil
import tempfile
from pathlib import Path

import pytest

from dlcore.model import Mechanism
from tests.chaos.worlds import Trouble, in_trouble

LEAST_CHANGES = 4
"""How often jobs come to other GPUs at least while controllers die."""

LIMIT_S = 1800.0
"""On a busy machine; else it takes a minute."""

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_S)]


@pytest.mark.parametrize(
    ("mechanism", "has_namespaces"),
    [(Mechanism.IN_PLACE, True), (Mechanism.RECREATE, False)],
    ids=["in place", "recreated without namespaces"],
)
def test_jobs_finish_whoever_dies_and_no_gpu_has_two_masters(mechanism, has_namespaces):
    root = Path(tempfile.mkdtemp(prefix="dljob-chaos-"))
    trouble = Trouble(
        seed=5,
        kills=40,
        jobs=6,
        mechanism=mechanism,
        has_namespaces=has_namespaces,
        least_seconds=8.0,
        most_seconds=20.0,
        least_changes=LEAST_CHANGES,
        hostile=1,
        limit_seconds=LIMIT_S,
    )
    with in_trouble(root, trouble) as world:
        world.run()
        world.verify()
        assert world.story.deaths.total() >= trouble.kills
        assert world.hostiles.kinds
    # Only if all was well, since what is in there tells what was not.
    shutil.rmtree(root)
