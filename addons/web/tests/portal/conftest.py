"""The shared control plane with its page, for all tests of this folder."""

import pytest

from addons.web.tests.browsers import find_chromium
from addons.web.tests.portal.houses import inhabited


@pytest.fixture(scope="package")
def house(control_plane, tmp_path_factory):
    with inhabited(control_plane, tmp_path_factory.mktemp("house")) as house:
        yield house


@pytest.fixture(scope="session")
def chromium():
    return find_chromium()
