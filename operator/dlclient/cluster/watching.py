"""
Jobs as they change, for as long as the caller reads: a watch that is cut continues.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

from dlkube.client import (
    GONE,
    ApiServer,
    Rejected,
    Unreachable,
)
from dlkube.resources import DLJOBS

Json = dict[str, Any]

RETRY_S: Final = 1.0
"""How often an API server that no longer answers is asked again."""
PAUSE_S: Final = 0.1
"""So that who ends each watch at once is not asked all the time."""
PATIENCE_S: Final = 30.0
"""A server that starts refuses for a while what it then grants."""


class News(NamedTuple):
    """The changes since the last news."""

    items: list[Json]
    removed: list[Json]
    version: str
    is_complete: bool = False
    """Whether these are all jobs, so that the reader has to forget any others."""


class Watcher:
    """Watches the jobs of a namespace, or of all, that have these labels."""

    def __init__(
        self, api: ApiServer, namespace: str, *, labels: str, retry_seconds: float = RETRY_S
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._labels = labels
        self._retry_seconds = retry_seconds
        self._well_at = time.monotonic()

    async def watch(self, version: str) -> AsyncIterator[News]:
        """Yield what changes after this version, and now and then only how far it was watched."""
        while True:
            began = time.monotonic()
            try:
                async for news in self._go_on(version):
                    # Before the reader gets it: a watch that is cut goes
                    # on after this event, however long the reader takes.
                    version = news.version
                    yield news
                self._well_at = time.monotonic()
                await asyncio.sleep(PAUSE_S)
            except Unreachable:
                self._well_at = time.monotonic()
                await asyncio.sleep(self._retry_seconds)
            except Rejected as error:
                if error.status == GONE:
                    version = ""  # It is too old for the server; everything has to be listed again.
                elif self._is_for_good(began):
                    raise
                await asyncio.sleep(self._retry_seconds)

    def _is_for_good(self, began: float) -> bool:
        """Whether it was refused for so long that it does not pass; what had gone on before may."""
        now = time.monotonic()
        # It was granted until then, so that the refusal is new and may pass.
        if now > began + PATIENCE_S:
            self._well_at = now
        return now > self._well_at + PATIENCE_S

    async def _go_on(self, version: str) -> AsyncIterator[News]:
        """List everything if nothing is known, and watch until that is cut."""
        if not version:
            news = await self._list()
            version = news.version
            yield news
        async for news in self._watch_once(version):
            yield news

    async def _list(self) -> News:
        listing = await self._api.list(DLJOBS, self._namespace, labels=self._labels)
        return News(listing.items, [], listing.version, is_complete=True)

    async def _watch_once(self, version: str) -> AsyncIterator[News]:
        events = self._api.watch(DLJOBS, self._namespace, version=version, labels=self._labels)
        async for event in events:
            self._well_at = time.monotonic()
            found = event["object"]
            newer = found["metadata"]["resourceVersion"]
            match event["type"]:
                case "BOOKMARK":
                    # Where no job changes, bookmarks alone keep
                    # the version young enough for the next watch.
                    yield News([], [], newer)
                case "DELETED":
                    yield News([], [found], newer)
                case _:
                    yield News([found], [], newer)
