"""The operator publishes its profiles and the state of its policy, and a plan reads them."""

import asyncio
import base64
import json
import zlib
from types import SimpleNamespace
from typing import Any

import pytest

from dlclient.cluster.reading.operators import Operator
from dlcore.documents.profilefile import render_all
from dlcore.profiles import OF_ONE_JOB
from dlkube import names
from dloperator.reporting import learned_configmap
from dloperator.reporting.learned_configmap import LearnedConfigMap
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
    scene: Any = object()
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


def test_a_plan_reads_the_published_knowledge(monkeypatch):
    monkeypatch.setattr(learned_configmap, "LOOK_S", 0.001)
    # Only changes are written.
    [document] = asyncio.run(publish(STATE))
    learned = read(document)
    # What was learnt of one job helps no other one, and its name is none that a document may have.
    assert learned["profiles"] == render_all([PROFILE])
    assert (learned["policy"], learned["state"]) == ("foresight", STATE)


def test_a_state_that_does_not_fit_is_left_out(monkeypatch):
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
def test_knowledge_that_cannot_be_read_is_none(data):
    assert read({"binaryData": data}) == {}
