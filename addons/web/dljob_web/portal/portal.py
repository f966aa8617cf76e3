"""
The server of the page of a cluster: it answers each user with the part that the user may see.

Users of the same rights share one :class:`dljob_web.serving.Server`, so that fifty of them cost as much as one.
"""

import asyncio
from collections.abc import Collection
from typing import Final

from aiohttp import web

from dljob.kube.client import Rejected, Unreachable
from dljob.kube.reviews import Reviews, User
from dljob_web.answering import SourceError
from dljob_web.document import write_live_page
from dljob_web.guarding import Handler
from dljob_web.log_threads import LogThreads
from dljob_web.portal.gate import SESSION, USER, Gate
from dljob_web.portal.proxying import Proxy
from dljob_web.portal.rights import Rights, read_rights
from dljob_web.portal.source import Narrowed, Whole
from dljob_web.serving import (
    PRESENT_S,
    RECORD_S,
    Answering,
    Asking,
    Server,
    add_routes,
    make_application,
)

MOST_SERVERS: Final = 32
"""Beyond this number of different rights, the one that was asked the longest time ago is forgotten with its answers."""

MOST_ASKED: Final = 2
"""The number of questions about the future that are answered at the same time, for all users."""

HEALTH: Final = "/healthz"
HEALTHY_S: Final = 5.0
"""How long a question may wait for a thread."""


class Portal:
    """Routes and what they need; :meth:`application` is what aiohttp runs."""

    def __init__(
        self,
        whole: Whole,
        reviews: Reviews,
        hosts: Collection[str] = (),
        *,
        proxy: Proxy | None = None,
        record_s: float = RECORD_S,
        present_s: float = PRESENT_S,
    ) -> None:
        self._whole = whole
        self._reviews = reviews
        self._gate = Gate(reviews, hosts, proxy=proxy)
        self._every = {"every_s": record_s, "present_s": present_s}
        self._asking = Asking(MOST_ASKED)
        self._logs = LogThreads()
        self._servers: dict[Rights, Server] = {}
        """The one that was asked last is the last."""

    def application(self) -> web.Application:
        application = make_application(self._gate.check, write_live_page(login=True))
        add_routes(application, self._narrow)
        application.router.add_post(SESSION, self._gate.open_session)
        application.router.add_delete(SESSION, self._gate.close_session)
        application.router.add_get(HEALTH, tell_health)
        return application

    def _narrow(self, handler: Answering) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            return await handler(await self._find_server(request[USER]), request)

        return answer

    async def _find_server(self, user: User) -> Server:
        try:
            rights = await read_rights(self._reviews, user, list_namespaces=self._list_namespaces)
        except (Rejected, Unreachable) as error:
            raise SourceError(
                f"the API server cannot be asked what {user.name} may see: {error}"
            ) from error
        if rights.has_none:
            raise SourceError(
                f"{user.name} may list neither DLJobs in a namespace that has any, nor nodes; an administrator grants"
                " it by a RoleBinding to the ClusterRole view",
                status=403,
            )
        # Taken out and put back, so that the dict has the servers in the order of their last use.
        server = self._servers.pop(rights, None) or Server(
            Narrowed(self._whole, rights), asking=self._asking, logs=self._logs, **self._every
        )
        # Nothing awaits until it is back, so that two users of the same rights never get two
        # servers. One that is forgotten still answers the requests that it has.
        while len(self._servers) >= MOST_SERVERS:
            del self._servers[next(iter(self._servers))]
        self._servers[rights] = server
        return server

    async def _list_namespaces(self) -> frozenset[str]:
        # On a thread, because the first look at a cluster takes seconds.
        return await asyncio.to_thread(self._whole.list_namespaces)


async def tell_health(_: web.Request) -> web.Response:
    """Answer the kubelet: the event loop turns, and one of the threads on which the page is made is free."""
    try:
        async with asyncio.timeout(HEALTHY_S):
            await asyncio.to_thread(int)
    except TimeoutError:
        return web.Response(status=503, text="all threads wait for the API server or the store\n")
    return web.Response(text="ok\n")
