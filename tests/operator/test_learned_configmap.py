"""A plan and the next leader read the profiles and the policy state that the operator publishes."""

import asyncio
import base64
import json
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.client.cluster.reading.operators import Operator
from dljob.core.documents.profilefile import render_all
from dljob.core.model import JobId
from dljob.core.profiles import OF_ONE_JOB, Profile
from dljob.kube import names
from dljob.operator.reporting import learned_configmap
from dljob.operator.reporting.learned_configmap import Learned, LearnedConfigMap
from dljob.store.sqlite.store import SqliteStore
from tests.builders import make_profile

PROFILE = make_profile({1: 2.0}, model="net")
OWN = make_profile({1: 2.0}, model=f"{OF_ONE_JOB}lab/bert")
STATE = {"form": 2, "levels": {"A100": 0.5}}


class Api:
    def __init__(self) -> None:
        self.written: list[Any] = []

    async def apply(self, _resource, document, *, namespace):
        assert namespace == "home"
        self.written.append(document)


class Asker:
    def __init__(self, document: Any) -> None:
        self.document = document

    def ask(self, _act):
        return self.document


async def publish(state: Any) -> list[Any]:
    api: Any = Api()
    scene: Any = SimpleNamespace(entries={})
    known: Any = SimpleNamespace(
        policy_state=state, profiles={each.type: each for each in (PROFILE, OWN)}
    )
    published = LearnedConfigMap(
        api, "home", scene=lambda: scene, snapshot=lambda _: known, policy="foresight"
    )
    running = asyncio.create_task(published.run())
    while not api.written:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    running.cancel()
    written: list[Any] = api.written
    return written


def read(document: Any) -> Any:
    asker: Any = Asker(document)
    return Operator(asker).learned()


def test_plan_reads_published_knowledge(monkeypatch):
    monkeypatch.setattr(learned_configmap, "LOOK_S", 0.001)
    # Only changes are written.
    [document] = asyncio.run(publish(STATE))
    learned = read(document)
    # Knowledge of one job helps no other job, and its type may not be in a document.
    assert learned["profiles"] == render_all([PROFILE])
    assert (learned["policy"], learned["state"]) == ("foresight", STATE)


def test_too_large_or_foreign_state_is_left_out(monkeypatch):
    monkeypatch.setattr(learned_configmap, "MOST_BYTES", 400)
    large = {"jobs": [f"{number:x}" for number in range(1000)]}
    assert set(read(asyncio.run(publish(large))[0])) == {"profiles"}
    assert set(read(asyncio.run(publish(object()))[0])) == {"profiles"}
    monkeypatch.setattr(learned_configmap, "MOST_BYTES", 20)
    assert read(asyncio.run(publish(large))[0]) == {}


@pytest.mark.parametrize(
    "data",
    [
        {},
        {names.LEARNED_KEY: base64.b64encode(b"no").decode()},
        {names.LEARNED_KEY: base64.b64encode(zlib.compress(json.dumps([])[:1].encode())).decode()},
    ],
)
def test_unreadable_knowledge_is_ignored(data):
    assert read({"binaryData": data}) == {}


class Publishing:
    """A leader with changing knowledge, and a clock."""

    def __init__(self) -> None:
        self.api, self.now = Api(), 0.0
        api: Any = self.api
        nothing: Any = None
        self._written = LearnedConfigMap(
            api,
            "home",
            scene=nothing,
            snapshot=nothing,
            policy="foresight",
            clock=lambda: self.now,
        )

    def writes(self, profile: Profile, *, state: object = None, decisions: int = 1) -> int:
        """Set the leader's knowledge, and count its writes."""
        before = len(self.api.written)
        status = SimpleNamespace(generation=decisions)
        entries = {JobId("a"): SimpleNamespace(status=status)}
        known: Any = SimpleNamespace(policy_state=state, profiles={profile.type: profile})
        scene: Any = SimpleNamespace(entries=entries)
        asyncio.run(self._written._write(scene, known))
        return len(self.api.written) - before


def test_repeated_measurement_is_written_every_ten_minutes():
    leader = Publishing()
    assert leader.writes(PROFILE) == 1
    for speed in (2.01, 1.95, 2.05):
        assert leader.writes(make_profile({1: speed}, model="net"), state={"at": speed}) == 0
    leader.now = learned_configmap.LONGEST_S
    assert leader.writes(make_profile({1: 2.05}, model="net")) == 1
    leader.now *= 2
    assert leader.writes(make_profile({1: 2.05}, model="net")) == 0, "unchanged"


def test_news_and_decisions_are_written_at_once():
    leader = Publishing()
    assert leader.writes(PROFILE) == 1
    assert leader.writes(make_profile({1: 2.2}, model="net")) == 1
    assert leader.writes(make_profile({1: 2.2, 2: 4.0}, model="net")) == 1
    assert leader.writes(make_profile({1: 2.2, 2: 4.0}, model="net"), state=STATE, decisions=2) == 1


def learned_of(*profiles: Profile, state: Any = STATE) -> Learned:
    return Learned({"profiles": render_all(profiles), "policy": "foresight", "state": state})


def seen(speed: float, at: float, **named: Any) -> Profile:
    made = make_profile({1: speed}, model="net", **named)
    return replace(made, speeds={s: each._replace(seen_at=at) for s, each in made.speeds.items()})


def open_store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "profiles.db")


def profiles_of(store: SqliteStore) -> list[Profile]:
    return [each.profile for each in store.profiles().values() if each.profile is not None]


def test_empty_store_gets_the_published_knowledge(tmp_path):
    learned_of(seen(2.0, at=100.0)).complete(store := open_store(tmp_path))
    [profile] = profiles_of(store)
    assert profile.speeds == seen(2.0, at=100.0).speeds
    assert json.loads(store.policy_states()["foresight"]) == STATE


@pytest.mark.parametrize(("at", "counts"), [(99.0, 3.0), (101.0, 2.0)])
def test_profile_with_the_latest_measurement_wins(tmp_path, at, counts):
    store = open_store(tmp_path)
    learned_of(seen(3.0, at=100.0), state={"own": True}).complete(store)
    learned_of(seen(2.0, at=at)).complete(store)
    [profile] = profiles_of(store)
    assert [speed[0] for speed in profile.speeds.values()] == [counts]
    is_own = json.loads(store.policy_states()["foresight"]) == {"own": True}
    assert is_own is (counts == 3.0)


def test_knowledge_of_another_version_is_skipped(tmp_path, caplog):
    Learned({"profiles": {"kind": "Other"}}).complete(store := open_store(tmp_path))
    assert store.profiles() == {}
    assert "cannot be read" in caplog.text
