"""Keeps the taint ``dljob.io/ending`` on this node while the cloud announces the end of the machine."""

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final

from dlcloud.watching import EndWatch
from dlcore.primitives.once_per_change import OncePerChange
from dlkube.client import ApiServer, Rejected, Unreachable
from dlkube.names import ENDING
from dlkube.resources import NODES

log = logging.getLogger(__name__)

RETRY_S: Final = 2.0
AGAIN_S: Final = 60.0
"""The interval of checks for a taint that other programs removed."""


class Tainter:
    """One for each node. It reads the node only when the taint may have to change."""

    def __init__(self, api: ApiServer, node: str, *, watch: EndWatch) -> None:
        self._api = api
        self._node = node
        self._watch = watch
        self._changed = asyncio.Event()
        self._troubles: OncePerChange[str] = OncePerChange()

    async def run(self) -> None:
        """Follow the notices until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch.run(self._changed.set))
            # Before the first reading a taint of the last process stays.
            await self._watch.known.wait()
            while True:
                self._changed.clear()
                pause = AGAIN_S if await self._is_kept() else RETRY_S
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), pause)

    async def _is_kept(self) -> bool:
        ending = self._watch.ending
        if ending is None and not self._watch.is_sure:
            return False
        try:
            await self._set_taint("" if ending is None else ending.kind)
        except (Rejected, Unreachable) as trouble:
            if self._troubles.note("taint", trouble):
                log.warning("the taint of node %s is not up to date: %s", self._node, trouble)
            return False
        self._troubles.settle("taint")
        return True

    async def _set_taint(self, kind: str) -> None:
        node = await self._api.get(NODES, self._node)
        taints: list[dict[str, Any]] = (node.get("spec") or {}).get("taints") or []
        others = [taint for taint in taints if taint.get("key") != ENDING]
        ours = [{"key": ENDING, "value": kind, "effect": "NoSchedule"}] if kind else []
        if [taint for taint in taints if taint.get("key") == ENDING] == ours:
            return
        # The list is replaced as a whole, so another program's change in between has to refuse this one.
        version = {"resourceVersion": node["metadata"]["resourceVersion"]}
        changes = {"metadata": version, "spec": {"taints": [*others, *ours]}}
        await self._api.merge(NODES, self._node, changes=changes)
        log.info("node %s %s the taint %s", self._node, "has" if kind else "lost", ENDING)
