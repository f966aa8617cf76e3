"""
How the API server is reached, and as whom: a kubeconfig, or the service account of the pod we are in.

Read by the official client, which knows all the ways there are (tokens that are renewed, programs
that fetch them, certificates); the requests themselves are :mod:`dlkube.client`'s.
"""

import ssl
import time
from collections.abc import Callable
from typing import Final

from kubernetes import config
from kubernetes.client import Configuration
from kubernetes.config import ConfigException

RENEWAL_S: Final = 10.0


class NoAccess(Exception):
    """Nobody says where the API server is, or the one who says it cannot be read."""


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
        What a request proves itself with; to be asked for each, because tokens are renewed.

        That is looked at now and then only: with some kinds of access it takes longer than a request.
        """
        if self._clock() >= self._token_until:
            self._token = self.configuration.get_api_key_with_prefix(
                "BearerToken", alias="authorization"
            )
            self._token_until = self._clock() + RENEWAL_S
        return {"Authorization": self._token} if self._token else {}

    def renew(self) -> None:
        """Look for a new token at the next request, because this one was not accepted."""
        self._token_until = float("-inf")

    def context(self) -> ssl.SSLContext | bool:
        """Whom to trust, and the certificate to show, if there is one."""
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
        where = kubeconfig or "KUBECONFIG or ~/.kube/config"
        raise NoAccess(
            f"no cluster: {error}; name a file with --kubeconfig, or see to {where}"
        ) from error
    return Access(configuration)
