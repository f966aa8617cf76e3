"""Borrowed GPUs come back although operators die around their writes, and no layer stays behind."""

from pathlib import Path

import pytest

from tests.operator.reclaims import AUDIT, survive
from tests.servers.controlplane import ControlPlane, Wishes

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

FEW, SOME = 4, 40


def reclaim(folder: Path, *, evictions: int, seed: int, is_thorough: bool) -> None:
    with ControlPlane(folder / "plane", Wishes(audit_policy=AUDIT)) as plane:
        told = survive(plane, folder, evictions=evictions, seed=seed, is_thorough=is_thorough)
    assert len(told.evictions) >= evictions


def test_evicted_layers_are_cleared_in_spite_of_deaths(tmp_path):
    reclaim(tmp_path, evictions=FEW, seed=3, is_thorough=False)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_evicted_layers_are_cleared_after_a_death_at_each_write(tmp_path):
    reclaim(tmp_path, evictions=SOME, seed=4, is_thorough=True)
