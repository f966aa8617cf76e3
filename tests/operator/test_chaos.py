"""All jobs finish although operators die and everything between them and the API server fails."""

import pytest

from tests.operator.chaos import survive
from tests.servers.controlplane import ControlPlane
from tests.servers.namespaces import make_namespace

pytestmark = [pytest.mark.cluster, pytest.mark.processes, pytest.mark.slow]

DEATHS = 20


@pytest.fixture
def plane(tmp_path):
    with ControlPlane(tmp_path / "plane") as plane:
        yield plane


@pytest.mark.timeout(3600)
def test_jobs_finish_in_spite_of_operator_deaths(plane, tmp_path):
    with plane.api() as api:
        trouble = survive(plane, make_namespace(api), tmp_path, deaths=DEATHS, seed=6)
    assert len(trouble.deaths) >= 8, "too few kinds of deaths"
    assert trouble.restarts == 2
    assert trouble.wire.cuts > 0
    assert trouble.wire.lost > 0
    assert trouble.conflicts > 0
