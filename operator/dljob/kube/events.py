"""
Writes Events about jobs and pods, which ``kubectl describe`` shows.

A background task writes them at a limited rate, and no caller waits for it; if there are too many, some are left out,
which is logged once. A repetition raises the count of the first Event.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any, NamedTuple

from dljob.kube.client import ApiServer, NotFound, Rejected, Unreachable
from dljob.kube.documents import Json
from dljob.kube.resources import EVENTS

log = logging.getLogger(__name__)


MOST_WAITING = 2000
MOST_REMEMBERED = 4000
LONGEST_MESSAGE = 1024
COMPONENT = "dljob-operator"


class _Sent(NamedTuple):
    name: str
    times: int


class EventWriter:
    """One for the life of an operator; :meth:`run` is its own task."""

    def __init__(
        self, api: ApiServer, *, instance: str, component: str = COMPONENT, per_second: float = 50.0
    ) -> None:
        self._api = api
        self._component = component
        self._instance = instance
        self._pause = 1.0 / per_second
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(MOST_WAITING)
        self._sent: OrderedDict[tuple[str, str, str], _Sent] = OrderedDict()
        self._has_lost = False

    def write(self, about: Json, reason: str, message: str, *, warning: bool = False) -> None:
        """Write an Event in the background."""
        try:
            self._waiting.put_nowait(self._make(about, reason, message, warning=warning))
        except asyncio.QueueFull:
            if not self._has_lost:
                self._has_lost = True
                log.warning("too many Events at once; some are left out")

    def warn(self, about: Json, reason: str, message: str) -> None:
        self.write(about, reason, message, warning=True)

    async def run(self) -> None:
        while True:
            # One at a time, so that a repetition finds the Event whose count it raises.
            event = await self._waiting.get()
            try:
                await self._send(event)
            except (Rejected, Unreachable) as error:
                # The namespace may be about to be deleted, or the server unavailable.
                log.info("cannot write the Event '%s': %s", event["message"], error)
            if self._waiting.empty():
                self._has_lost = False
            await asyncio.sleep(self._pause)

    async def _send(self, event: dict[str, Any]) -> None:
        about = event["involvedObject"]
        key = (about["uid"], event["reason"], event["message"])
        # Put back after a success, as the latest one.
        sent = self._sent.pop(key, None)
        if sent is not None:
            again = _Sent(sent.name, sent.times + 1)
            change = {"count": again.times, "lastTimestamp": event["lastTimestamp"]}
            try:
                await self._api.merge(
                    EVENTS, sent.name, changes=change, namespace=about["namespace"]
                )
            except NotFound:
                pass  # Kubernetes forgets Events after an hour.
            else:
                self._sent[key] = again
                return
        await self._api.create(EVENTS, event, about["namespace"])
        self._sent[key] = _Sent(event["metadata"]["name"], 1)
        if len(self._sent) > MOST_REMEMBERED:
            self._sent.popitem(last=False)

    def _make(self, about: Json, reason: str, message: str, *, warning: bool) -> dict[str, Any]:
        metadata = about["metadata"]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{metadata['name']}.{secrets.token_hex(8)}",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": message[:LONGEST_MESSAGE],
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
