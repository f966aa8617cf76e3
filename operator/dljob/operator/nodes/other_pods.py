"""
Watches the other users of the pool's nodes: pods of other owners, volumes that only some nodes can reach, and
devices that Dynamic Resource Allocation has given away.

These have watches of their own, because only a few values of each object are kept, and the rest is dropped at
once: of all pods of a cluster, the requests of those that are bound to a node.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dljob.kube import names
from dljob.kube.client import ApiServer, NotFound, Rejected, Unreachable
from dljob.kube.documents import Json, PodDocument
from dljob.kube.names import Name
from dljob.kube.resources import CLAIMS, DEVICE_CLAIMS, PODS, SLICES, VOLUMES, Resource
from dljob.kube.unread import Unread
from dljob.kube.watches.mirror import Mirrors, version_of

log = logging.getLogger(__name__)


BOUND: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
AGAIN_S: Final = 3.0
REST_S: Final = 0.5
UNSERVED_S: Final = 300.0
"""The time between two requests for a resource that the cluster does not serve yet."""


ALWAYS_SERVED: Final = frozenset({PODS, CLAIMS, VOLUMES})


class _Seen(NamedTuple):
    """The resource that is watched, and the version up to which it was seen."""

    resource: Resource
    version: str


@dataclass(frozen=True, slots=True)
class _Followed:
    resources: tuple[Resource, ...]
    """The versions of one kind; the first that the cluster serves is watched."""
    show: Callable[[Name, Any], bool]
    """Takes in an object, or None once it is gone; returns true if that matters to jobs."""
    keep_only: Callable[[Collection[Name]], bool]
    labels: str = ""
    fields: str = ""


class OtherPods:
    """One for the life of an operator; :meth:`run` is its own task."""

    def __init__(self, api: ApiServer, mirrors: Mirrors, *, watched: Collection[str] = ()) -> None:
        """Jobs' pods in the ``watched`` namespaces (empty: all) are not counted here, because the
        mirrors hold them. Jobs' pods in other namespaces belong to another operator.
        """
        self._api = api
        self._mirrors = mirrors
        there = mirrors.others
        self._watched = frozenset(watched)
        others = "" if watched else f"!{names.JOB_LABEL}"
        self._followed = (
            _Followed((PODS,), self._show_pod, there.keep_pods, labels=others, fields=BOUND),
            _Followed((CLAIMS,), there.show_claim, there.keep_claims),
            _Followed((VOLUMES,), there.show_volume, there.keep_volumes),
            _Followed(SLICES, there.reaching.show_slice, there.reaching.keep_slices),
            _Followed(DEVICE_CLAIMS, there.reaching.show_claim, there.reaching.keep_claims),
        )
        self._versions: dict[_Followed, _Seen] = {}
        self._listed_at: dict[_Followed, int] = {}
        """The version of the last list of each."""
        self._turns = {each: asyncio.Lock() for each in self._followed}
        """Held by a list from its request to its last page, and by each event."""
        self._unread = Unread()

    async def list_all(self) -> None:
        for each in self._followed:
            await self._list(each)

    async def run(self) -> None:
        await asyncio.gather(*(self._follow(each) for each in self._followed))

    async def _list(self, followed: _Followed) -> None:
        # A new leader lists while the watch continues. An event that arrives meanwhile waits,
        # because the older pages would undo it.
        async with self._turns[followed]:
            await self._list_first_served(followed)

    async def _list_first_served(self, followed: _Followed) -> None:
        for resource in followed.resources:
            try:
                version = await self._list_one(followed, resource)
            except NotFound:
                if resource in ALWAYS_SERVED:
                    raise
                continue
            self._versions[followed] = _Seen(resource, version)
            # Only now, because a list may fail half-way.
            self._listed_at[followed] = int(version)
            return
        self._wake_if([followed.keep_only(())])

    async def _list_one(self, followed: _Followed, resource: Resource) -> str:
        there: set[Name] = set()
        version = ""
        # There may be very many, so at most two pages are in memory.
        async for page in self._api.pages(resource, labels=followed.labels, fields=followed.fields):
            version = page.version
            shown = {Name.of(item): item for item in page.items}
            there |= shown.keys()
            self._wake_if(
                [self._show(followed, name, document=item) for name, item in shown.items()]
            )
        self._wake_if([followed.keep_only(there)])
        return version

    async def _follow(self, followed: _Followed) -> None:
        while True:
            try:
                if followed not in self._versions:
                    await self._list(followed)
                seen = self._versions.get(followed)
                if seen is None:
                    await asyncio.sleep(UNSERVED_S)
                    continue
                async for event in self._api.watch(
                    seen.resource,
                    version=seen.version,
                    labels=followed.labels,
                    fields=followed.fields,
                ):
                    await self._take_in(followed, seen, event=event)
                # No event is lost in this pause, which spares a server that ends every watch at
                # once.
                await asyncio.sleep(REST_S)
            except (Rejected, Unreachable) as error:
                log.info("restarts the watch of %s: %s", followed.resources[0].plural, error)
                await asyncio.sleep(AGAIN_S)
                # The version may be too old, so everything is listed again.
                self._versions.pop(followed, None)

    async def _take_in(self, followed: _Followed, seen: _Seen, *, event: Json) -> None:
        document = event["object"]
        version = version_of(document)
        async with self._turns[followed]:
            # An event older than the last list would undo changes that the list has already shown.
            if version <= self._listed_at.get(followed, 0):
                return
            # The next watch continues from here.
            self._versions[followed] = seen._replace(version=str(version))
            if event["type"] != "BOOKMARK":
                there = None if event["type"] == "DELETED" else document
                self._wake_if([self._show(followed, Name.of(document), document=there)])

    def _show(self, followed: _Followed, name: Name, *, document: Json | None) -> bool:
        subject = f"{followed.resources[0].kind} {name}"
        return self._unread.attempt(subject, lambda: followed.show(name, document), otherwise=False)

    def _wake_if(self, matters: Iterable[bool]) -> None:
        if any(matters):
            self._mirrors.report_news(burst=True)

    def _show_pod(self, name: Name, document: PodDocument | None) -> bool:
        labels = ((document or {}).get("metadata") or {}).get("labels") or {}
        if name.namespace in self._watched and names.JOB_LABEL in labels:
            return False
        return self._mirrors.others.show_pod(name, document)
