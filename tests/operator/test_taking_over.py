"""A new leader renews its Lease from the start, however long the takeover lasts."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from kubernetes.client import Configuration

from dljob.control.scheduling import Options
from dljob.control.situation.ports import Fenced
from dljob.core import policies
from dljob.kube.access import Access
from dljob.kube.client import NotFound, Unreachable
from dljob.kube.leases import Election, LeaseSettings
from dljob.kube.resources import Resource
from dljob.operator.leading import Work
from dljob.operator.operating import Operator, Place
from tests.loops import on_loop

LEASE = LeaseSettings(renew_seconds=0.01, give_up_seconds=60.0, look_seconds=0.01)
GENEROUS_S = 240.0


class LeaseServer:
    """Keeps one Lease."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.renewals = 0
        self.often_renewed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.is_away = False

    async def get(self, _resource: Resource, name: str, _namespace: str) -> Mapping[str, Any]:
        if self.lease is None:
            raise NotFound(404, {"message": f"no {name}"})
        return self.lease

    async def create(
        self, _resource: Resource, document: Mapping[str, Any], _namespace: str
    ) -> Mapping[str, Any]:
        self.lease = {**document, "metadata": {**document["metadata"], "resourceVersion": "1"}}
        return self.lease

    async def replace(
        self, _resource: Resource, document: Mapping[str, Any], _namespace: str
    ) -> Mapping[str, Any]:
        if self.is_away:
            raise Unreachable("the API server does not answer")
        self.renewals += 1
        if self.renewals >= 3:
            self._loop.call_soon_threadsafe(self.often_renewed.set)
        self.lease = {**document}
        return self.lease

    async def close(self) -> None:
        """Other clients of the server still use it."""


class TakenOver(Exception):
    """The takeover has seen everything."""


def candidate(server: LeaseServer, lease: LeaseSettings) -> Operator:
    configuration = Configuration()
    configuration.host = "http://127.0.0.1:1"
    work = Work(options=Options(policy=policies.make("adaptive")))
    operator = Operator(Access(configuration), Place(namespace="home", identity="me"), work)
    api: Any = server
    operator._election = Election(api, "home", identity="me", settings=lease, connect=lambda: api)
    return operator


@on_loop
async def test_lease_is_renewed_during_a_long_takeover(monkeypatch: pytest.MonkeyPatch):
    server = LeaseServer()

    async def see_very_much(_operator: Operator) -> None:
        async with asyncio.timeout(GENEROUS_S):
            await server.often_renewed.wait()
        raise TakenOver

    monkeypatch.setattr(Operator, "_see_again", see_very_much)
    operator = candidate(server, LEASE)
    with pytest.raises(TakenOver):
        await operator._lead()
    await operator._api.close()


@on_loop
async def test_lost_lease_ends_the_takeover(monkeypatch: pytest.MonkeyPatch):
    server = LeaseServer()

    async def never_see(_operator: Operator) -> None:
        server.is_away = True
        async with asyncio.timeout(GENEROUS_S):
            await asyncio.Event().wait()

    monkeypatch.setattr(Operator, "_see_again", never_see)
    operator = candidate(server, LeaseSettings(renew_seconds=0.01, give_up_seconds=0.1))
    with pytest.raises(Fenced, match="could not be renewed"):
        await operator._lead()
    await operator._api.close()
