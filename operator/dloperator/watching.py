"""
The watches: kopf follows jobs, pods and nodes, and its handlers only remember (law 2).

What is remembered goes into mirrors, which wake whoever is to look. Nothing is written here: kopf
sees events only, and so marks no object as its own.

A watch that had to begin anew does not tell what was deleted meanwhile. It shows everything there is
instead, and whenever it does so, everything is listed once more by us.
"""

import asyncio
import logging
import warnings
from typing import Any, Final

import kopf

from dloperator import names
from dloperator.access import Access
from dloperator.apiserver import ApiServer, Listing, NotFound, Rejected, Unreachable
from dloperator.mirror import Mirror, Mirrors
from dloperator.resources import DLJOBS, NODES, PODS

log = logging.getLogger(__name__)

OURS: Final = names.JOB_LABEL
"""Of pods, those with this label are followed."""

SERVER_SECONDS: Final = 300
"""A watch is begun anew after so long, from where it was, in case its connection is dead."""
SETTLE_S: Final = 1.0
AGAIN_S: Final = 3.0


class NotInstalled(Exception):
    """The custom resource is not there."""


class Watches:
    """All that is followed. :meth:`run` is its own task."""

    def __init__(
        self, access: Access, api: ApiServer, mirrors: Mirrors, *, namespaces: tuple[str, ...] = ()
    ) -> None:
        self._access = access
        self._api = api
        self._mirrors = mirrors
        self._namespaces = namespaces
        self._began_anew = asyncio.Event()
        self.ended = asyncio.Event()
        """To be set by whoever wants the watches to end."""

    async def list_all(self) -> None:
        """Take in everything there is as of now."""
        for namespace in self._namespaces or ("",):
            try:
                jobs = await self._api.list(DLJOBS, namespace)
            except NotFound as error:
                raise NotInstalled(
                    f"the API server does not know what a {names.KIND} is ({error}); install its"
                    " definition: kubectl apply -k crds"
                ) from error
            pods = await self._api.list(PODS, namespace, labels=OURS)
            self._take(self._mirrors.jobs, jobs, namespace)
            self._take(self._mirrors.pods, pods, namespace)
        self._take(self._mirrors.nodes, await self._api.list(NODES), "")

    def _take(self, mirror: Mirror, listing: Listing, namespace: str) -> None:
        mirror.show_all(listing.items, int(listing.version), namespace)

    async def run(self) -> None:
        """Follow everything until told to end."""
        lister = asyncio.get_running_loop().create_task(self._list_again())
        # What was deleted between our own list and the first of the watch is told by neither.
        self._began_anew.set()
        try:
            with warnings.catch_warnings():
                # It says of its own options that they will change.
                warnings.simplefilter("ignore", FutureWarning)
                await kopf.operator(
                    registry=self._registry(),
                    settings=_settings(),
                    standalone=True,
                    clusterwide=not self._namespaces,
                    namespaces=self._namespaces,
                    stop_flag=self.ended,
                )
        finally:
            lister.cancel()

    async def _list_again(self) -> None:
        while True:
            await self._began_anew.wait()
            # Such events come in crowds.
            await asyncio.sleep(SETTLE_S)
            self._began_anew.clear()
            try:
                await self.list_all()
            except (NotInstalled, Rejected, Unreachable) as error:
                log.warning("cannot list what there is: %s", error)
                await asyncio.sleep(AGAIN_S)
                self._began_anew.set()

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        def login(**_: Any) -> kopf.ConnectionInfo:
            return _connection(self._access)

        @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
        async def see_job(event: Any, **_: Any) -> None:
            self._see(self._mirrors.jobs, event)

        @kopf.on.event("", "v1", "pods", registry=registry)
        async def see_pod(event: Any, **_: Any) -> None:
            self._see(self._mirrors.pods, event)

        @kopf.on.event("", "v1", "nodes", registry=registry)
        async def see_node(event: Any, **_: Any) -> None:
            self._see(self._mirrors.nodes, event)

        return registry

    def _see(self, mirror: Mirror, event: Any) -> None:
        document = dict(event["object"])
        if event["type"] == "DELETED":
            mirror.show_end(document)
            return
        if event["type"] is None:
            self._began_anew.set()
        mirror.show(document)


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    # What to follow is known, so nobody needs to watch which resources there are.
    settings.scanning.disabled = True
    settings.watching.server_timeout = SERVER_SECONDS
    settings.watching.label_selectors["", "v1", "pods"] = OURS
    return settings


def _connection(access: Access) -> kopf.ConnectionInfo:
    settings = access.configuration
    scheme, _, token = access.headers().get("Authorization", "").partition(" ")
    return kopf.ConnectionInfo(
        server=access.address,
        ca_path=settings.ssl_ca_cert,
        insecure=not settings.verify_ssl,
        certificate_path=settings.cert_file,
        private_key_path=settings.key_file,
        scheme=scheme or None,
        token=token or None,
    )
