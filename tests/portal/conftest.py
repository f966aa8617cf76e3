"""One cluster with its page for all tests of a process."""

import pytest

from tests.portal.houses import inhabited


@pytest.fixture(scope="session")
def house(tmp_path_factory):
    with inhabited(tmp_path_factory.mktemp("house")) as house:
        yield house
