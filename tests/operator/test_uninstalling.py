"""All jobs are deleted before DLJob is uninstalled, in spite of passing errors."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dljob.kube.client import Conflict, Listing, Rejected, Unreachable
from dljob.operator import uninstalling

UNAVAILABLE = Rejected(503, {"message": "the server is currently unable to handle the request"})
FAILED = Rejected(500, {"message": "failed calling webhook"})
FORBIDDEN = Rejected(403, {"message": "forbidden"})
CHANGED = Conflict(409, {"message": "the object has been modified"})


class Api:
    """An API server with jobs that first fails lists and the deletions of one job."""

    def __init__(self, *, lists: Sequence[Exception], deletions: Sequence[Exception]) -> None:
        self.there = ["a", "b"]
        self.lists, self.deletions = [*lists], [*deletions]
        self.deleted: list[str] = []

    async def list(self, _resource, _namespace):
        if self.lists:
            raise self.lists.pop(0)
        metadata = [{"namespace": "team", "name": name} for name in self.there]
        return Listing([{"metadata": each} for each in metadata], "1")

    async def delete(self, _resource, name, _namespace):
        if name == "a" and self.deletions:
            raise self.deletions.pop(0)
        self.there.remove(name)
        self.deleted.append(name)

    async def close(self):
        """Nothing is open."""


def remove_all(api: Api, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(uninstalling, "ApiServer", lambda _: api)
    monkeypatch.setattr(uninstalling, "LOOK_S", 0.0)
    found: Any = None
    return asyncio.run(asyncio.wait_for(uninstalling._end(found, ("team",), seconds=3600.0), 240.0))


@pytest.mark.parametrize("error", [UNAVAILABLE, FAILED, CHANGED, Unreachable("no answer")])
def test_passing_error_is_retried(monkeypatch, error):
    api = Api(lists=[UNAVAILABLE], deletions=[error, error])
    assert remove_all(api, monkeypatch) == []
    assert api.deleted == ["b", "a"], "an error with one job delays no other"


@pytest.mark.parametrize("of_list", [True, False])
def test_missing_rights_are_reported_at_once(monkeypatch, of_list):
    lists, deletions = ([FORBIDDEN], []) if of_list else ([], [FORBIDDEN])
    with pytest.raises(Rejected, match="forbidden"):
        remove_all(Api(lists=lists, deletions=deletions), monkeypatch)
