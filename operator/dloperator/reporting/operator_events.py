"""
Events on the operator's own pod: its store is away, and it is back.

Jobs do not depend on the store, so their statuses do not mention it. An administrator who has just installed
DLJob with a wrong URL sees these Events in ``kubectl describe pod`` and ``kubectl get events``.
"""

import asyncio
import socket
from collections.abc import Callable

from dlkube.client import (
    ApiServer,
    NotFound,
    Rejected,
    Unreachable,
)
from dlkube.events import EventWriter
from dlkube.resources import PODS
from dlstore.notebook.notebook import NotebookState

LOOK_S = 1.0
AGAIN_S = 1800.0
"""The Event is sent again as long as the store is away, because Kubernetes forgets Events after an hour."""


async def tell_of_store(
    api: ApiServer, events: EventWriter, *, namespace: str, state: Callable[[], NotebookState]
) -> None:
    """Write an Event each time that the store goes or comes back; without a pod of our own, write none."""
    clock = asyncio.get_running_loop().time
    is_away, told_at = False, clock()
    while True:
        await asyncio.sleep(LOOK_S)
        now = state()
        # Before the first request the store is neither connected nor failing.
        away = not now.connected and bool(now.error)
        if away == is_away and not (away and clock() >= told_at + AGAIN_S):
            continue
        try:
            pod = await api.get(PODS, socket.gethostname(), namespace)
        except NotFound:
            await asyncio.Event().wait()
            return
        except (Rejected, Unreachable):
            continue
        # Only now: without the pod no Event was written, and the next look tries again.
        is_away, told_at = away, clock()
        if away:
            what = "jobs continue, and observations stay in memory until it is back"
            events.warn(pod, "StoreAway", f"the store is unavailable: {now.error}; {what}")
        else:
            events.write(pod, "StoreIsBack", "the store is available again")
