"""Properties of a store on a server, against a real one."""

import inspect
import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import AutoReconnect, OperationFailure

from dljob.core.model import NodeName
from dljob.core.profiles import Profile
from dljob.store.addresses import PASSWORD, USERNAME, Credentials, MongoAddress, read_address
from dljob.store.mongo.server import SCHEMA
from dljob.store.mongo.store import TRUST_SECONDS, MongoStore
from dljob.store.opening import open_store
from dljob.store.store import (
    Bounds,
    StoreError,
    StoreUnavailableError,
    StoreUnusableError,
    fold_into,
)
from dljob.store.tables import GpuRow
from tests.control.store import test_exchanging, test_store
from tests.control.store.places import (
    KIND,
    OTHER,
    PATIENCE_SECONDS,
    Place,
    make_entry,
    open_patiently,
    speed_seen,
)
from tests.servers.mongo import MongoServer
from tests.sidecar.certificates import Authority

with_server = pytest.mark.processes


@pytest.fixture
def mongo(make_place: Callable[[str], Place]) -> Place:
    return make_place("mongo")


def mongo_address(text: str) -> MongoAddress:
    address = read_address(text, Credentials())
    assert isinstance(address, MongoAddress)
    return address


@contextmanager
def database(address: str) -> Iterator[Any]:
    """The database as another client sees it, over a connection of its own."""
    client: MongoClient[dict[str, Any]] = MongoClient(address)
    with closing(client):
        yield client.get_default_database()


CONTRACT = {
    name: test
    for module in (test_store, test_exchanging)
    for name, test in vars(module).items()
    if name.startswith("test_")
    and not hasattr(test, "hypothesis")
    and {"place", "shared_place"} & {*inspect.signature(test).parameters}
}


@with_server
@pytest.mark.story
def test_server_keeps_the_contract_of_stores(make_place: Callable[[str], Place]):
    """Run all tests of the contract, each in a database of its own."""
    for name, test in CONTRACT.items():
        place = make_place("mongo")
        try:
            test(place)
        except Exception as error:
            error.add_note(f"of the contract: {name}")
            raise
        finally:
            place.close()


# --- documents for other programs


@with_server
def test_documents_have_plain_names_and_indexes(mongo: Place):
    store = mongo.open()
    for number in range(1, 6):
        for kind in (KIND, OTHER):
            fold_into(store, kind, observations=[speed_seen(float(number))])
    with database(mongo.address) as db:
        found = {document["_id"]: document for document in db.profiles.find()}
    assert found.keys() == {'["resnet50", "imagenet", 256]#5', '["bert", "", 32]#5'}
    document = found['["resnet50", "imagenet", 256]#5']
    assert document["type"] == {"model": "resnet50", "dataset": "imagenet", "batchSize": 256}
    [speed] = document["speeds"]
    assert (speed["gpus"], speed["gpuType"], speed["iterationsPerSecond"]) == (4, "V100", 3.0)
    # Rows have the names of Kubernetes.
    store.replace_gpus([GpuRow(node=NodeName("n1"), gpu=3, gpu_type="V100")])
    store.record([make_entry("a", 1.0, name="one", cost_seconds=2.0)])
    with database(mongo.address) as db:
        [gpu], [entry] = list(db.gpus.find()), list(db.record.find())
        indexed = [
            index["key"] for name in ("profiles", "record") for index in db[name].list_indexes()
        ]
    assert (gpu["_id"], gpu["gpuType"], gpu["state"]) == ("n1/3", "V100", "free")
    line = json.loads(entry["line"])
    assert (entry["_id"], entry["kind"], line["costSeconds"]) == ("one", "decided", 2.0)
    assert line["new"]["nodes"] == [{"name": "n1", "gpuIds": [0, 1]}]
    assert {"key": 1, "revision": -1} in indexed
    assert {"job": 1, "at": -1, "place": -1} in indexed


# --- concurrent changes


@with_server
def test_late_writer_reads_again(mongo: Place):
    one, other = mongo.open(), mongo.open()
    fold_into(one, KIND, observations=[speed_seen(1.0)])
    calls = 0

    def change(known: Profile | None) -> Profile | None:
        nonlocal calls
        calls += 1
        if calls == 1:
            # Others write revisions 2 to 4 meanwhile, of which only the last is left.
            for speed in (2.0, 3.0, 4.0):
                fold_into(other, KIND, observations=[speed_seen(speed)])
        assert known is not None
        speeds = {shape: each._replace(weight=77.0) for shape, each in known.speeds.items()}
        return Profile(KIND, speeds)

    stored = one.change(KIND, change)
    assert calls == 2
    assert stored.revision == 5
    profile = other.profiles()[KIND].profile
    assert profile is not None
    [speed] = profile.speeds.values()
    assert (speed.recent, speed.weight) == ((1.0, 2.0, 3.0, 4.0), 77.0)
    with database(mongo.address) as db:
        assert [document["revision"] for document in db.profiles.find()] == [5]


@with_server
def test_tables_are_compared_again_after_a_while(mongo: Place):
    now = 0.0
    rows = [GpuRow(node=NodeName("n1"), gpu=number) for number in range(4)]
    address = mongo_address(mongo.address)
    patience = PATIENCE_SECONDS
    with closing(MongoStore(address, patience_seconds=patience, clock=lambda: now)) as store:
        store.replace_gpus(rows)
        mongo.open().replace_gpus(rows[:1])
        store.replace_gpus(rows)
        assert len(store.gpus()) == 1
        now += TRUST_SECONDS + 1.0
        store.replace_gpus(rows)
        assert len(store.gpus()) == 4


# --- faults


@with_server
def test_newer_schema_is_refused_and_left_alone(mongo: Place):
    with database(mongo.address) as db:
        db.schema.insert_one({"_id": "schema", "version": 9})
        told = f"has schema version 9, and this dljob knows none above {SCHEMA}; upgrade dljob"
        with pytest.raises(StoreUnusableError, match=told):
            mongo.open().revisions()
        assert db.list_collection_names() == ["schema"]


@with_server
def test_damaged_profile_hides_no_other(mongo: Place, caplog):
    store = mongo.open()
    for kind in (KIND, OTHER):
        fold_into(store, kind, observations=[speed_seen()])
    with database(mongo.address) as db:
        wrong = {"speeds": "many", "tickets": "torn off"}
        db.profiles.update_one({"type.model": "bert"}, {"$set": wrong})
        db.profiles.insert_many([{"hello": "world"}, {"key": "{", "revision": 1}, {"key": 3}])
    again = mongo.open()
    assert again.profiles().keys() == {KIND}
    assert "the profile of bert/32 is damaged and will be learnt again" in caplog.text
    assert fold_into(again, OTHER, observations=[speed_seen(9.0)]).revision == 2
    assert again.profiles().keys() == {KIND, OTHER}


def test_missing_server_is_unavailable():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        address = mongo_address(f"mongodb://{place}/db")
        with closing(MongoStore(address, patience_seconds=0.5)) as store:
            told = rf"^mongodb://{place}/db: does not answer \(.*\); check that it runs"
            with pytest.raises(StoreUnavailableError, match=told):
                store.revisions()


class History:
    """A server's collection that may carry out a request and lose the answer."""

    def __init__(self) -> None:
        self.documents: dict[str, dict[str, Any]] = {}
        self.loses_answer = False

    def insert_many(self, documents: Sequence[dict[str, Any]], **_: Any) -> None:
        self.documents |= {document["_id"]: document for document in documents}
        if self.loses_answer:
            self.loses_answer = False
            raise AutoReconnect("connection closed")

    def aggregate(self, _: object) -> list[dict[str, Any]]:
        counts = Counter(document["job"] for document in self.documents.values())
        return [{"_id": job, "entries": count} for job, count in counts.items()]

    def find(self, *_: object) -> "Found":
        return Found(self.documents.values())

    def delete_many(self, which: dict[str, Any]) -> None:
        for each in which["_id"]["$in"]:
            del self.documents[each]


class Found(list[dict[str, Any]]):
    def sort(self, *_: object, **__: object) -> "Found":  # type: ignore[override]
        return Found(sorted(self, key=lambda document: document["at"], reverse=True))

    def skip(self, count: int) -> "Found":
        return Found(self[count:])


def test_history_stays_bounded_after_a_lost_answer(monkeypatch: pytest.MonkeyPatch):
    """The rows of that request exist, so they count."""
    store = MongoStore(mongo_address("mongodb://nowhere/db"), bounds=Bounds(entries_per_job=10))
    history = History()
    monkeypatch.setattr(store._server, "_connected", lambda: SimpleNamespace(record=history))
    entries = [make_entry("a", float(number), name=f"{number:02}") for number in range(11)]
    store.record(entries[:1])
    history.loses_answer = True
    with pytest.raises(StoreUnavailableError):
        store.record(entries[1:10])
    assert len(history.documents) == 10
    store.record(entries[10:])
    assert sorted(history.documents) == [entry.id for entry in entries[2:]]


# --- secrets

QUOTED = "s3cr3t-%C3%A4-of-ours"


@with_server
def test_refusal_does_not_contain_the_password(shared_server: MongoServer, caplog):
    caplog.set_level(0)
    plain = "s3cr3t-ä-of-ours"
    for user, environment in (
        (f"bob:{QUOTED}@", {}),
        ("bob@", {PASSWORD: plain}),
        ("", {USERNAME: "bob", PASSWORD: plain}),
    ):
        url = f"mongodb://{user}{shared_server.place}/db"
        opened = open_store(url, environment=environment, patience_seconds=PATIENCE_SECONDS)
        with closing(opened) as store:
            # FerretDB knows no such passwords, and refuses them as wrong ones.
            with pytest.raises(StoreUnusableError, match="refuses these credentials") as raised:
                store.revisions()
            told = [str(raised.value), repr(raised.value), store.address, repr(store), caplog.text]
        assert raised.value.__cause__ is None
        assert f"in {USERNAME} and {PASSWORD}" in str(raised.value)
        assert "of-ours" not in " ".join(told), user


@with_server
def test_tls_server_is_reached_by_options_of_the_url(ferretdb: Path, tmp_path: Path):
    ours = Authority().issue(tmp_path / "ours", "localhost")
    theirs = Authority("another authority").issue(tmp_path / "theirs", "localhost")
    with MongoServer(ferretdb, tmp_path / "mongo", tls=ours) as server:
        place = server.place.replace("127.0.0.1", "localhost")
        url = f"mongodb://{place}/db?tls=true&tlsCAFile="
        with closing(open_patiently(f"{url}{ours / 'ca.crt'}")) as store:
            fold_into(store, KIND, observations=[speed_seen()])
            assert store.revisions() == {KIND: 1}
        with (
            closing(
                # The driver retries until all of it has passed.
                MongoStore(mongo_address(f"{url}{theirs / 'ca.crt'}"), patience_seconds=10)
            ) as s,
            pytest.raises(StoreError, match="certificate verify failed"),
        ):
            s.revisions()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mongodb://h:99999/db", "Port must be an integer"),
        ("mongodb://h/db?socks=1", "Unknown option: socks"),
        ("mongodb://h/db?tls=true&tlsCAFile=/nowhere/ca.crt", "No such file or directory"),
        ("mongodb://h/d b", "Bad database name"),
        ("mongodb://h/db?w=0&journal=maybe", "journal"),
    ],
)
def test_impossible_url_is_refused_at_once(url: str, told: str):
    with pytest.raises(StoreUnusableError, match=told) as raised:
        open_store(url, environment={})
    assert str(raised.value).endswith("; correct its URL")


@with_server
def test_reader_without_write_access_reads(mongo: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """FerretDB has no roles: only the refusal of writes is played here."""
    mongo.open().record([make_entry("read")])
    reader = mongo.open()

    def refuse(*_: object, **__: object) -> None:
        raise OperationFailure("not authorized on dljob to execute command", 13)

    for name in ("insert_one", "create_index"):
        monkeypatch.setattr(Collection, name, refuse)
    assert [entry.job for entry in reader.history(limit=10)] == ["read"]
