"""
Watches kinds of objects with kopf, and puts them into mirrors, which wake the loops that read them (law 2).

kopf handles events only, so it writes nothing into the objects.

A watch that had to restart does not report objects that were deleted meanwhile. It shows all objects instead, after
which this module lists them again.
"""

import asyncio
import logging
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import aiohttp
import kopf

from dljob.kube import names
from dljob.kube.access import Access, Connector
from dljob.kube.client import ApiServer, NotFound, Rejected, Unreachable, iter_lines
from dljob.kube.documents import Json, cut_depth, parse
from dljob.kube.resources import (
    CLUSTER_QUEUES,
    DLJOBS,
    FLAVORS,
    NAMESPACES,
    NODES,
    PODS,
    WORKLOADS,
    Resource,
)
from dljob.kube.watches.mirror import Mirror, Mirrors

log = logging.getLogger(__name__)

OURS: Final = names.JOB_LABEL
"""The label of the pods that the operator watches."""

SERVER_SECONDS: Final = 300
"""The time after which a watch is restarted, in case its connection is dead."""
SETTLE_S: Final = 1.0
AGAIN_S: Final = 3.0


class NotInstalled(Exception):
    """The custom resource is not installed."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A kind of objects, and their mirror."""

    resource: Resource
    mirror: Mirror[Any]
    labels: str = ""
    """The label selector."""
    is_in_namespaces: bool = True
    home: str = ""
    """A namespace in addition to the watched ones."""
    keep: Callable[[Json], Json] = dict
    """Returns the part of an object that is kept."""


def followed_by_operator(
    mirrors: Mirrors, home: str, *, kueue: bool = False
) -> tuple[Followed, ...]:
    """
    Return the kinds that the operator watches, those of Kueue only if wanted.

    ``home`` is the namespace of its placeholder pods.
    """
    of_kueue = (
        Followed(WORKLOADS, mirrors.workloads, labels=OURS),
        Followed(FLAVORS, mirrors.flavors, is_in_namespaces=False),
        Followed(CLUSTER_QUEUES, mirrors.cluster_queues, is_in_namespaces=False),
    )
    return (
        Followed(DLJOBS, mirrors.jobs),
        Followed(PODS, mirrors.pods, labels=OURS, home=home),
        Followed(NODES, mirrors.nodes, is_in_namespaces=False),
        Followed(
            NAMESPACES, mirrors.held, is_in_namespaces=False, keep=partial(_keep_annotations, home)
        ),
        *(of_kueue if kueue else ()),
    )


def _keep_annotations(home: str, namespace: Json) -> Json:
    metadata = {each: namespace["metadata"][each] for each in ("name", "resourceVersion")}
    return {
        "metadata": metadata,
        "holds": names.holds_of(namespace, home),
        "max_priority": names.max_priority_of(namespace),
    }


class Watches:
    """All watches; :meth:`run` is its own task."""

    def __init__(
        self,
        access: Access,
        api: ApiServer,
        *,
        followed: Sequence[Followed],
        namespaces: tuple[str, ...] = (),
    ) -> None:
        self._access = access
        self._api = api
        self._followed = followed
        self._namespaces = namespaces
        self._restarted = asyncio.Event()
        self.ended = asyncio.Event()
        """Set this event to end the watches."""

    async def list_all(self) -> None:
        for each in self._followed:
            for namespace in self._namespaces_of(each):
                await self._list(each, namespace)

    def _namespaces_of(self, followed: Followed) -> tuple[str, ...]:
        """Return the namespaces of such objects; an empty one stands for all."""
        if not self._namespaces or not followed.is_in_namespaces:
            return ("",)
        home = {followed.home} - {"", *self._namespaces}
        return (*self._namespaces, *home)

    async def _list(self, followed: Followed, namespace: str) -> None:
        resource = followed.resource
        try:
            listing = await self._api.list(resource, namespace, labels=followed.labels)
        except NotFound as error:
            remedy = (
                "install its definition: kubectl apply -k crds"
                if resource.group == names.GROUP
                else f"install what serves {resource.group}, or set kueue.enabled to false"
            )
            raise NotInstalled(
                f"the API server does not know the kind {resource.kind} ({error}); {remedy}"
            ) from error
        kept = [followed.keep(item) for item in listing.items]
        followed.mirror.show_all(kept, int(listing.version), namespace=namespace)

    async def run(self) -> None:
        """Watch until ``ended`` is set."""
        lister = asyncio.get_running_loop().create_task(self._list_again())
        # Neither our list nor the first one of the watch shows an object that was deleted between the two.
        self._restarted.set()
        try:
            with warnings.catch_warnings():
                # kopf warns about its own options.
                warnings.simplefilter("ignore", FutureWarning)
                await kopf.operator(
                    # kopf's default needs a user name, which many containers lack.
                    identity=cast(Any, "dljob"),
                    registry=self._registry(),
                    settings=_settings(self._followed),
                    standalone=True,
                    clusterwide=not self._namespaces,
                    namespaces=sorted(
                        {n for each in self._followed for n in self._namespaces_of(each)} - {""}
                    ),
                    stop_flag=self.ended,
                )
        finally:
            lister.cancel()

    async def _list_again(self) -> None:
        while True:
            await self._restarted.wait()
            # Such events come in bursts.
            await asyncio.sleep(SETTLE_S)
            # Before the list, so that a watch that restarts meanwhile causes another one.
            self._restarted.clear()
            try:
                await self.list_all()
            except (NotInstalled, Rejected, Unreachable) as error:
                log.warning("cannot list the objects: %s", error)
            except Exception:
                # If this task ended, objects that are deleted while a watch is interrupted would stay in
                # the mirrors.
                log.exception("cannot list the objects")
            else:
                continue
            await asyncio.sleep(AGAIN_S)
            self._restarted.set()

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> kopf.AiohttpSession:
            session = aiohttp.ClientSession(
                connector=Connector(self._access, limit=0),
                headers=self._access.headers(),
                response_class=_Answer,
            )
            return kopf.AiohttpSession(server=self._access.address, aiohttp_session=session)

        for each in self._followed:
            kind, see = each.resource, partial(self._see, each)
            kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)(see)
        return registry

    async def _see(self, followed: Followed, event: Any, **_: Any) -> None:
        namespaces = self._namespaces_of(followed)
        namespace = event["object"]["metadata"].get("namespace", "")
        if "" not in namespaces and namespace not in namespaces:
            return  # kopf watches all kinds in all namespaces that it is given.
        mirror, document = followed.mirror, followed.keep(event["object"])
        # kopf has a worker for each uid, so the deletion of an object may arrive after the next object of its
        # name. The mirror compares versions.
        if event["type"] == "DELETED":
            mirror.show_end(document)
            return
        if event["type"] is None:
            self._restarted.set()
        mirror.show(document)


class _NoDifferences(kopf.DiffBaseStorage):
    """Keeps kopf from copying each object to find differences, which no handler reads."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        """Store nothing."""


class _NoProgress(kopf.ProgressStorage):
    """For handlers that are never retried."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        """Store nothing."""

    def purge(self, **_: Any) -> None:
        """Purge nothing."""

    def touch(self, **_: Any) -> None:
        """Touch nothing."""

    def clear(self, *, essence: Any) -> Any:
        return essence


def _settings(followed: Sequence[Followed]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.persistence.diffbase_storage = _NoDifferences()
    settings.persistence.progress_storage = _NoProgress()
    settings.posting.enabled = False
    settings.peering.standalone = True
    # The kinds to follow are known, so kopf need not watch for new kinds of resources.
    settings.scanning.disabled = True
    settings.watching.server_timeout = SERVER_SECONDS
    for each in followed:
        if each.labels:
            kind = each.resource
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = each.labels
    return settings


class _Lines:
    """The content of an answer; kopf gets the lines of a watch one by one, and can parse each of them."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, _size: int) -> AsyncIterator[bytes]:
        async for line in iter_lines(self._content):
            yield cut_depth(line) + b"\n"


class _Answer(aiohttp.ClientResponse):
    """An answer to kopf, whose documents may be nested more deeply than Python's parser can read."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        await super().start(connection)
        self.content = cast(Any, _Lines(self.content))
        return self

    async def json(self, **_: Any) -> Any:
        return parse(await self.read())
