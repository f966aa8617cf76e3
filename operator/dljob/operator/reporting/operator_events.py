"""
Events about the operator's own pod when its store becomes unavailable and available again.

Jobs do not depend on the store, so their statuses do not mention it. An administrator who has installed DLJob with a
wrong URL sees these Events in ``kubectl describe pod``.
"""

import asyncio
import socket
from collections.abc import Callable

from dljob.kube.client import ApiServer, NotFound, Rejected, Unreachable
from dljob.kube.events import EventWriter
from dljob.kube.resources import PODS
from dljob.store.notebook import NotebookState

LOOK_S = 1.0
AGAIN_S = 1800.0
"""The Event is repeated while the store is unavailable, because Kubernetes forgets Events after an hour."""


async def tell_of_store(
    api: ApiServer, events: EventWriter, *, namespace: str, state: Callable[[], NotebookState]
) -> None:
    """Write an Event after each change; none if this process is not in a pod."""
    clock = asyncio.get_running_loop().time
    is_away, told_at = False, clock()
    while True:
        await asyncio.sleep(LOOK_S)
        now = state()
        # Before the first request the store is neither connected nor has an error.
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
        is_away, told_at = away, clock()
        if away:
            what = "jobs continue, and observations stay in memory until it is back"
            events.warn(pod, "StoreAway", f"the store is unavailable: {now.error}; {what}")
        else:
            events.write(pod, "StoreIsBack", "the store is available again")
