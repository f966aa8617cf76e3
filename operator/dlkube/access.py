"""
How the API server is reached, and as whom: a kubeconfig, or the service account of the pod we are in.

Read by the official client, which knows all the ways there are (tokens that are renewed, programs
that fetch them, certificates); the requests themselves are :mod:`dlkube.client`'s.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakSet

import aiohttp
from kubernetes import config
from kubernetes.client import Configuration
from kubernetes.config import ConfigException

RENEWAL_S: Final = 10.0


class NoAccess(Exception):
    """No configuration names the API server, or it cannot be read."""


class Access:
    """Where the API server is, and how we prove who we are."""

    def __init__(
        self, configuration: Configuration, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.configuration = configuration
        self._clock = clock
        self._token: str | None = None
        self._token_until = float("-inf")

    @property
    def address(self) -> str:
        return str(self.configuration.host).rstrip("/")

    def headers(self) -> dict[str, str]:
        """
        Return the credentials of a request; callers ask for each one, because tokens are renewed.

        The token is read only now and then: with some kinds of access that takes longer than a request.
        """
        if self._clock() >= self._token_until:
            self._token = self.configuration.get_api_key_with_prefix(
                "BearerToken", alias="authorization"
            )
            # Set last: the thread of the Lease must not take the former token for a new one.
            self._token_until = self._clock() + RENEWAL_S
        return {"Authorization": self._token} if self._token else {}

    def renew(self) -> None:
        """Look for a new token at the next request, because this one was not accepted."""
        self._token_until = float("-inf")

    def context(self) -> ssl.SSLContext | bool:
        """Return the authorities to trust and the certificate to show, if there is one."""
        if not self.address.startswith("https:"):
            return False
        settings = self.configuration
        context = ssl.create_default_context(cafile=settings.ssl_ca_cert or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if not settings.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)
        return context


class Connector(aiohttp.TCPConnector):
    """
    Connections that end with their connector, all of them.

    aiohttp forgets a TLS connection that it does not use again, such as one that was idle for too long, and
    its socket stays open until the server agrees to the end, for which a command's event loop does not wait.
    """

    def __init__(self, access: Access, *, limit: int) -> None:
        super().__init__(limit=limit, ssl=access.context())
        self._transports: WeakSet[asyncio.Transport] = WeakSet()

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        made = await super()._create_connection(req, traces, timeout)
        # aiohttp closes the TLS transport of a broken answer twice. At the second time asyncio takes its socket from it,
        # and its `abort` does nothing. The transport below keeps the socket, and the event loop has it until its end.
        tls = getattr(made.transport, "_ssl_protocol", None)
        transport = getattr(tls, "_transport", made.transport)
        if transport is not None:
            self._transports.add(transport)
        return made

    async def close(self, *, abort_ssl: bool = False) -> None:
        await super().close(abort_ssl=abort_ssl)
        for transport in self._transports:
            transport.abort()


def find(kubeconfig: str = "", context: str = "") -> Access:
    """
    Find the API server: the kubeconfig that is named, or that of the pod we are in, or the usual one.

    Raises :class:`NoAccess` with one line that says what to do.
    """
    configuration = Configuration()
    try:
        if not kubeconfig and not context:
            try:
                config.load_incluster_config(client_configuration=configuration)
                return Access(configuration)
            except ConfigException:
                pass  # We are in no pod, which is the usual case of a person at a terminal.
        config.load_kube_config(
            config_file=kubeconfig or None,
            context=context or None,
            client_configuration=configuration,
            persist_config=False,
        )
    except (ConfigException, OSError) as error:
        raise _no_access(error, kubeconfig) from error
    return Access(configuration)


def find_context(kubeconfig: str, context: str = "") -> tuple[str, str]:
    """
    Name the context of a kubeconfig that is meant, the current one if none is named, and its namespace.

    Raises :class:`NoAccess` with one line that says what to do.
    """
    try:
        contexts, current = config.list_kube_config_contexts(kubeconfig or None)
    except (ConfigException, OSError) as error:
        raise _no_access(error, kubeconfig) from error
    # Whether there is a context of that name, find() checks.
    chosen = next((each for each in contexts if each["name"] == context), current)
    namespace = (chosen.get("context") or {}).get("namespace") or ""
    return context or str(chosen["name"]), str(namespace)


def _no_access(error: Exception, kubeconfig: str) -> NoAccess:
    where = kubeconfig or "KUBECONFIG or ~/.kube/config"
    return NoAccess(f"no cluster: {error}; name a file with --kubeconfig, or see to {where}")
