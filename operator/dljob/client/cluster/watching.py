"""Changes of jobs, across watches that the API server cuts."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from dljob.client.backend import Json
from dljob.kube.client import GONE, ApiServer, Rejected, Unreachable
from dljob.kube.resources import DLJOBS

RETRY_S: Final = 1.0
"""The interval of retries while the API server does not answer."""
PAUSE_S: Final = 0.1
"""The pause between watches, for a server that ends each one at once."""
PATIENCE_S: Final = 30.0
"""Refusals count as final after this time, because a starting server refuses requests that it later grants."""


class News(NamedTuple):
    """The changes since the last news."""

    items: list[Json]
    removed: list[Json]
    version: str
    is_complete: bool = False
    """True if these are all jobs, so that the reader forgets any others."""


class Watcher:
    def __init__(
        self, api: ApiServer, namespace: str, *, labels: str, retry_seconds: float = RETRY_S
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._labels = labels
        self._retry_seconds = retry_seconds
        self._well_at = time.monotonic()

    async def watch(self, version: str) -> AsyncIterator[News]:
        """Yield changes after this version, and now and then only the latest version."""
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
                    version = ""  # The version is too old for the server; list everything again.
                elif self._judge_refusal(began):
                    raise
                await asyncio.sleep(self._retry_seconds)

    def _judge_refusal(self, began: float) -> bool:
        now = time.monotonic()
        # The last request was granted, so the refusal is new and may pass.
        if now > began + PATIENCE_S:
            self._well_at = now
        return now > self._well_at + PATIENCE_S

    async def _go_on(self, version: str) -> AsyncIterator[News]:
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
