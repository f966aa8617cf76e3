"""Watches work in any container, under every user ID."""

import asyncio
import getpass
from pathlib import Path
from typing import Any, cast

import pytest

from dljob.kube import access
from dljob.kube.client import ApiServer, Listing
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.resources import PODS
from dljob.kube.watches import watching
from dljob.kube.watches.mirror import Mirror
from dljob.kube.watches.watching import Followed, Watches
from tests.loops import on_loop
from tests.servers.authority import Authority, write_kubeconfig


@on_loop
async def test_operator_needs_no_user_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A container's user may be a number without an entry in /etc/passwd."""

    def has_none() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr(getpass, "getuser", has_none)
    kubeconfig = write_kubeconfig(
        tmp_path / "config",
        server="https://127.0.0.1:1",
        authority=Authority().certificate,
        user={"token": "none"},
    )
    found = access.find(str(kubeconfig), "")
    api = ApiServer(found)
    try:
        watches = Watches(found, api, followed=())
        watches.ended.set()
        await watches.run()
    finally:
        await api.close()


class Lister:
    """An API server whose first list has no version, as from a proxy."""

    def __init__(self) -> None:
        self.asked = 0

    async def list(self, *_: Any, **__: Any) -> Listing:
        self.asked += 1
        return Listing([], "" if self.asked == 1 else "7")


def test_unusable_list_is_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Until then a pod that was deleted during an interruption counts as present."""
    monkeypatch.setattr(watching, "SETTLE_S", 0.0)
    monkeypatch.setattr(watching, "AGAIN_S", 0.0)

    async def story() -> None:
        gone = asyncio.Event()
        mirror: Mirror[Json] = Mirror(lambda _name, _is_news: gone.set())
        mirror.show(
            {"metadata": {"name": "pod", "namespace": "team", "uid": "1", "resourceVersion": "3"}}
        )
        gone.clear()
        api = cast(ApiServer, Lister())
        watches = Watches(cast(Any, None), api, followed=(Followed(PODS, mirror),))
        lister = asyncio.create_task(watches._list_again())
        watches._restarted.set()
        waiting = asyncio.create_task(gone.wait())
        await asyncio.wait((lister, waiting), return_when=asyncio.FIRST_COMPLETED)
        assert not lister.done()
        assert Name("team", "pod") not in mirror.objects
        lister.cancel()

    asyncio.run(story())
    assert "cannot list the objects" in caplog.text
