"""The places of stores: every test of the contract of stores runs on each of them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.control.store.places import AddressPlace, MemoryPlace, Place
from tests.servers.binaries import BUILD_SECONDS, find_ferretdb
from tests.servers.mongo import MongoServer

WITH_SERVER = pytest.mark.timeout(BUILD_SECONDS + 300.0)
"""The first test that wants the server may have to build it."""


@pytest.fixture(scope="session")
def ferretdb() -> Path:
    return find_ferretdb()


@pytest.fixture(scope="session")
def shared_server(
    ferretdb: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MongoServer]:
    """A server that stays up."""
    with MongoServer(ferretdb, tmp_path_factory.mktemp("mongo")) as server:
        yield server


@pytest.fixture
def server(ferretdb: Path, tmp_path: Path) -> Iterator[MongoServer]:
    """A server of the test's own, to do with as it likes."""
    with MongoServer(ferretdb, tmp_path / "mongo") as server:
        yield server


@pytest.fixture
def make_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Place]]:
    """Make places by the name of their kind; their stores are closed after the test."""
    places: list[Place] = []

    def make(kind: str) -> Place:
        if kind == "memory":
            place: Place = MemoryPlace()
        elif kind == "sqlite":
            place = AddressPlace(str(tmp_path / "store" / f"{uuid4().hex}.db"))
        else:
            server: MongoServer = request.getfixturevalue("shared_server")
            place = AddressPlace(server.url(f"test_{uuid4().hex}"))
        places.append(place)
        return place

    yield make
    for place in places:
        place.close()


SQLITE = pytest.param("sqlite")
MONGO = pytest.param("mongo", marks=[WITH_SERVER, pytest.mark.slow])


@pytest.fixture(params=["memory", SQLITE, MONGO])
def place(request: pytest.FixtureRequest, make_place: Callable[[str], Place]) -> Place:
    """A place for a store of each kind."""
    return make_place(request.param)


@pytest.fixture(params=[SQLITE, MONGO])
def shared_place(request: pytest.FixtureRequest, make_place: Callable[[str], Place]) -> Place:
    """A place that several processes can use."""
    return make_place(request.param)
