"""A short chaos test on a cluster; the long run is ``make chaos``."""

from pathlib import Path

import pytest

from tests.cluster.chaos import KINDS, survive
from tests.cluster.looking import View
from tests.servers.binaries import find_ferretdb

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(4500)]


def test_jobs_finish_in_spite_of_deaths(view: View, saved: Path):
    survive(view, saved, find_ferretdb(), disturbances=len(KINDS), seed=3)
