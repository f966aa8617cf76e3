"""A short chaos test on one machine; the long run is ``make chaos``."""

import shutil
import tempfile
from pathlib import Path

import pytest

from dljob.core.model import Mechanism
from tests.chaos.worlds import Trouble, in_trouble

LIMIT_S = 1800.0
"""For a busy machine; otherwise it takes a minute."""

pytestmark = pytest.mark.processes


def survive(trouble: Trouble) -> None:
    root = Path(tempfile.mkdtemp(prefix="dljob-chaos-"))
    with in_trouble(root, trouble) as world:
        world.run()
        world.verify()
        assert world.story.deaths.total() >= trouble.kills
        assert bool(world.hostiles.kinds) is bool(trouble.hostile)
    # Only after success: the folder explains a failure.
    shutil.rmtree(root)


@pytest.mark.story
def test_jobs_finish_in_spite_of_deaths_at_each_step():
    acts = ("submit_all", "launch", "Run", "record", "Stop")
    survive(
        Trouble(
            seed=5,
            kills=len(acts),
            acts=acts,
            jobs=2,
            least_seconds=2.0,
            most_seconds=4.0,
            ending=1.0,
            patience=20.0,
            limit_seconds=600.0,
        )
    )


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize(
    ("mechanism", "has_namespaces"),
    [(Mechanism.IN_PLACE, True), (Mechanism.RECREATE, False)],
    ids=["in place", "recreated without namespaces"],
)
def test_jobs_finish_in_spite_of_random_deaths(mechanism, has_namespaces):
    survive(
        Trouble(
            seed=5,
            kills=40,
            jobs=6,
            mechanism=mechanism,
            has_namespaces=has_namespaces,
            least_seconds=8.0,
            most_seconds=20.0,
            hostile=1,
            limit_seconds=LIMIT_S,
        )
    )
