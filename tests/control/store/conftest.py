"""Places for stores: the contract of stores is tested in memory and in a file."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.control.store.places import AddressPlace, MemoryPlace, Place
from tests.servers.binaries import find_ferretdb
from tests.servers.mongo import MongoServer

OTHER_SERVER = os.environ.get("DLJOB_TEST_MONGODB")
"""The address of a MongoDB to test instead of FerretDB, such as ``mongodb://127.0.0.1:27017``."""


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
    """A server of one test, to stop, kill and start again."""
    with MongoServer(ferretdb, tmp_path / "mongo") as server:
        yield server


@pytest.fixture
def make_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Place]]:
    """Make places by kind; close their stores after the test."""
    places: list[Place] = []

    def make(kind: str) -> Place:
        if kind == "memory":
            place: Place = MemoryPlace()
        elif kind == "sqlite":
            place = AddressPlace(str(tmp_path / "store" / f"{uuid4().hex}.db"))
        elif OTHER_SERVER:
            place = AddressPlace(f"{OTHER_SERVER.rstrip('/')}/test_{uuid4().hex}")
        else:
            server: MongoServer = request.getfixturevalue("shared_server")
            place = AddressPlace(server.url(f"test_{uuid4().hex}"))
        places.append(place)
        return place

    yield make
    for place in places:
        place.close()


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, make_place: Callable[[str], Place]) -> Place:
    """A place for a store of each kind that needs no server."""
    return make_place(request.param)


@pytest.fixture
def shared_place(make_place: Callable[[str], Place]) -> Place:
    return make_place("sqlite")
