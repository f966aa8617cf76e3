"""A scheduler with its extender, and a troupe for each test of gangs."""

import pytest

from addons.gangs.tests.troupes import Plugin, playing, plugged
from tests.servers.controlplane import ControlPlane


@pytest.fixture(scope="module")
def plugin(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory):
    with plugged(control_plane, tmp_path_factory.mktemp("gangs")) as plugin:
        yield plugin


@pytest.fixture
def troupe(plugin: Plugin, namespace: str):
    with playing(plugin, namespace) as troupe:
        yield troupe
