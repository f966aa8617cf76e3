"""Blocking requests to the API server, on an event loop that runs only during a request."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from dljob.client.backend import BackendError
from dljob.client.cluster.refusals import explain
from dljob.kube.access import Access
from dljob.kube.client import ApiServer, Listing, Rejected, Unreachable
from dljob.kube.resources import Resource

MANAGER: Final = "kubectl-dljob"
"""The field manager of users' changes."""
CONNECTIONS: Final = 16

T = TypeVar("T")


async def list_in(
    api: ApiServer, kind: Resource, namespaces: Sequence[str], *, labels: str = "", fields: str = ""
) -> Listing:
    """List the objects of some namespaces; an empty name means all."""
    found = [await api.list(kind, each, labels=labels, fields=fields) for each in namespaces]
    return Listing([item for each in found for item in each.items], found[0].version)


class Asker:
    """Asks one API server; the caller closes it."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._runner = asyncio.Runner()
        self._api: ApiServer | None = None

    @property
    def address(self) -> str:
        return self._access.address

    def ask(self, act: Callable[[ApiServer], Awaitable[T]]) -> T:
        """Run a request; raises :class:`BackendError`."""
        with self.translating():
            return self.ask_plainly(act)

    def ask_plainly(self, act: Callable[[ApiServer], Awaitable[T]]) -> T:
        """Send a request, for a caller that handles refusals itself."""
        try:
            return self._runner.run(self._do(act))
        except asyncio.CancelledError:
            # An interrupt while Runner.run() installs its handler shows only as this error.
            raise KeyboardInterrupt from None

    def iterate(self, make: Callable[[ApiServer], AsyncIterator[T]]) -> Generator[T]:
        """Yield the items of an asynchronous generator."""
        with self.translating():
            flow = self.ask_plainly(lambda api: _made(make, api))
        is_idle = True
        try:
            while True:
                is_idle = False
                with self.translating():
                    # The event loop runs only within a request. While the caller uses what
                    # was found, all tasks of the flow pause, and go on with the next one.
                    found = self.ask_plainly(lambda _: _next(flow))
                is_idle = True
                if not found:
                    return
                yield from found
        finally:
            # A request that was interrupted half-way ends with the event loop.
            if is_idle:
                self.ask_plainly(lambda _: _close(flow))

    def close(self) -> None:
        if self._api is not None:
            self._runner.run(self._api.close())
        self._runner.close()

    async def _do(self, act: Callable[[ApiServer], Awaitable[T]]) -> T:
        if self._api is None:
            self._api = self._open()
        return await act(self._api)

    def _open(self) -> ApiServer:
        try:
            return ApiServer(self._access, connections=CONNECTIONS, manager=MANAGER)
        except OSError as error:
            raise BackendError(
                f"the certificates of the kubeconfig cannot be used ({error}); correct them, or"
                " name another file with --kubeconfig"
            ) from error

    def explain(self, error: Rejected) -> BackendError:
        """Translate a refusal of the API server."""
        return explain(error, self.address)

    @contextmanager
    def translating(self) -> Iterator[None]:
        try:
            yield
        except (Rejected, Unreachable) as error:
            raise explain(error, self.address) from error


async def _made(make: Callable[[ApiServer], AsyncIterator[T]], api: ApiServer) -> AsyncIterator[T]:
    return make(api)


async def _next(flow: AsyncIterator[T]) -> list[T]:
    """Return the next item in a list, which is empty at the end."""
    async for found in flow:
        return [found]
    return []


async def _close(flow: AsyncIterator[T]) -> None:
    close = getattr(flow, "aclose", None)
    if close is not None:
        await close()
