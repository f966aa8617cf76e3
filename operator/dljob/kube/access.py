"""
The address and the credentials of the API server: a kubeconfig, or the service account of this process's pod.

The official client reads them, because it knows all kinds of credentials (renewed tokens, exec plugins,
certificates); :mod:`dljob.kube.client` makes the requests.
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
    """No readable configuration names the API server."""


class Access:
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
        """Return the headers with credentials; call this for each request, because tokens are
        renewed.

        The token is read only every few seconds: some credentials take longer to read than a
        request.
        """
        if self._clock() >= self._token_until:
            self._token = self.configuration.get_api_key_with_prefix(
                "BearerToken", alias="authorization"
            )
            # Set this last, so that the Lease thread does not mistake the old token for a new one.
            self._token_until = self._clock() + RENEWAL_S
        return {"Authorization": self._token} if self._token else {}

    def renew(self) -> None:
        """Make the next request read the token again."""
        self._token_until = float("-inf")

    def for_user(self, token: str) -> "Access":
        """Return the access of another user to the same API server, without any credentials of this one."""
        own = self.configuration
        configuration = Configuration()
        configuration.host, configuration.ssl_ca_cert = own.host, own.ssl_ca_cert
        configuration.verify_ssl = own.verify_ssl
        configuration.api_key["authorization"] = f"Bearer {token}"
        return Access(configuration, clock=self._clock)

    def context(self) -> ssl.SSLContext | bool:
        """Return the CAs to trust and the client certificate, if any; false without TLS."""
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
    """Connections that are all closed together with their connector.

    aiohttp drops a TLS connection that it does not reuse, for example an idle one. The socket then
    stays open until the server confirms the shutdown, but the event loop of a command does not wait
    for that.
    """

    def __init__(self, access: Access, *, limit: int) -> None:
        super().__init__(limit=limit, ssl=access.context())
        self._transports: WeakSet[asyncio.Transport] = WeakSet()

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        made = await super()._create_connection(req, traces, timeout)
        # aiohttp closes the TLS transport of a broken answer twice. The second time asyncio detaches its socket, and its
        # `abort` does nothing. The transport below keeps the socket.
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
    Return the access of the named kubeconfig, of this process's pod, or of the default kubeconfig.

    Raises :class:`NoAccess` with the remedy.
    """
    configuration = Configuration()
    try:
        if not kubeconfig and not context:
            try:
                config.load_incluster_config(client_configuration=configuration)
                return Access(configuration)
            except ConfigException:
                pass  # Not in a pod.
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
    Return the context of a kubeconfig (default: the current one) and its namespace.

    Raises :class:`NoAccess` with the remedy.
    """
    try:
        contexts, current = config.list_kube_config_contexts(kubeconfig or None)
    except (ConfigException, OSError) as error:
        raise _no_access(error, kubeconfig) from error
    # find() checks that the context exists.
    chosen = next((each for each in contexts if each["name"] == context), current)
    namespace = (chosen.get("context") or {}).get("namespace") or ""
    return context or str(chosen["name"]), str(namespace)


def _no_access(error: Exception, kubeconfig: str) -> NoAccess:
    where = kubeconfig or "KUBECONFIG or ~/.kube/config"
    return NoAccess(f"no cluster: {error}; name a file with --kubeconfig, or see to {where}")
