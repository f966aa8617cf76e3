"""What is followed is followed in any container, whoever runs in it."""

import asyncio
import getpass
from pathlib import Path

import pytest

from dlkube import access
from dlkube.client import ApiServer
from dlkube.watching import Watches
from tests.servers.authority import Authority, write_kubeconfig


def test_who_runs_an_operator_need_not_have_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a container its user is a number, of which nothing is written in /etc/passwd."""

    def has_none() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr(getpass, "getuser", has_none)
    kubeconfig = write_kubeconfig(
        tmp_path / "config",
        server="https://127.0.0.1:1",
        authority=Authority().certificate,
        user={"token": "none"},
    )

    async def follow_nothing() -> None:
        found = access.find(str(kubeconfig), "")
        api = ApiServer(found)
        try:
            watches = Watches(found, api, ())
            watches.ended.set()
            await watches.run()
        finally:
            await api.close()

    asyncio.run(follow_nothing())
