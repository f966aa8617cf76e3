"""
Makes kube-scheduler retry pods that were refused.

An extender cannot call kube-scheduler, which retries a refused pod after a change in the cluster, or after five
minutes; a returned reservation is not such a change. A condition on the pod is one. It also shows reservations to
users and ``kubectl wait``.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from dljob.kube.client import ApiServer, Conflict, NotFound, Rejected, Unreachable
from dljob.kube.names import Name
from dljob.kube.resources import PODS
from dljob_gangs.members import Held

log = logging.getLogger(__name__)

CONDITION: Final = "dljob.io/GangReserved"
FIRST_S: Final = 0.5
"""How long to wait for kube-scheduler to retry by itself, as other events often cause."""
AGAIN_S: Final = 5.0
AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class _Kept:
    """A pod with a reservation, and the time to wake it."""

    name: Name
    held: Held
    due: float
    was_told: bool = False


class Patch(NamedTuple):
    """The condition to write on a pod."""

    name: Name
    uid: str
    node: str
    """The node of the pod's reservation; empty if the reservation was given back."""


class Schedule:
    """Decides which pods to wake, and when."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def due(self) -> float:
        """Return when the next patch is due."""
        return min((each.due for each in self._kept.values()), default=float("inf"))

    def admitted(self, uid: str, now: float) -> None:
        """Note that kube-scheduler was just given the node of a pod."""
        if uid in self._kept:
            self._kept[uid] = replace(self._kept[uid], due=now + AGAIN_S)

    def patches(
        self, held: Iterable[tuple[Name, Held]], pending: set[str], *, now: float
    ) -> list[Patch]:
        """Return the due patches, for pods that still wait and for pods whose reservation was given back."""
        found: list[Patch] = []
        before, self._kept = self._kept, {}
        for name, each in held:
            known = before.get(each.pod)
            if known is None or known.held.node != each.node:
                was_told = known is not None and known.was_told
                known = _Kept(name, each, now + FIRST_S, was_told)
            if known.due <= now:
                found.append(Patch(name, each.pod, each.node))
                # Count from now, so that the next patch also retries this one.
                known = replace(known, due=now + AGAIN_S, was_told=True)
            self._kept[each.pod] = known
        for uid, lost in before.items():
            if uid not in self._kept and lost.was_told and uid in pending:
                found.append(Patch(lost.name, uid, ""))
        return found


class PodWaker:
    """Writes the patches; :meth:`run` is its own task."""

    def __init__(self, api: ApiServer, *, clock: Callable[[], datetime] | None = None) -> None:
        self._api = api
        self._clock = clock or (lambda: datetime.now(UTC))
        self._waiting: dict[str, Patch] = {}
        """The latest unwritten patch of each pod, by uid."""
        self._writing: set[str] = set()
        self._turns: asyncio.Queue[str] = asyncio.Queue()
        """The pods with a waiting patch, except pods with a write in progress."""

    def write(self, patches: Iterable[Patch]) -> None:
        """Write patches in the background."""
        for patch in patches:
            # Replaces a waiting patch, so that patches do not pile up while the API server is slow.
            if patch.uid not in self._waiting and patch.uid not in self._writing:
                self._turns.put_nowait(patch.uid)
            self._waiting[patch.uid] = patch

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._write_on())

    async def _write_on(self) -> None:
        while True:
            uid = await self._turns.get()
            patch = self._waiting.pop(uid)
            # Make one write at a time for each pod, because concurrent writes can overtake each
            # other.
            self._writing.add(uid)
            try:
                await self._send(patch)
            finally:
                self._writing.discard(uid)
                if uid in self._waiting:
                    self._turns.put_nowait(uid)

    async def _send(self, patch: Patch) -> None:
        try:
            await self._api.apply(
                PODS, self._document(patch), namespace=patch.name.namespace, sub="status"
            )
        except (NotFound, Conflict):
            pass  # The pod is gone, or another pod has its name.
        except (Rejected, Unreachable) as error:
            log.warning("pod %s cannot be woken: %s", patch.name, error)

    def _document(self, patch: Patch) -> dict[str, Any]:
        now = self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        kept = bool(patch.node)
        condition = {
            "type": CONDITION,
            "status": "True" if kept else "False",
            "reason": "Reserved" if kept else "GivenBack",
            "message": f"room is kept on node {patch.node}" if kept else "no room is kept any more",
            # An update without a change does not make kube-scheduler retry the pod.
            "lastProbeTime": now,
            "lastTransitionTime": now,
        }
        return {
            "metadata": {"name": patch.name.name, "uid": patch.uid},
            "status": {"conditions": [condition]},
        }
