"""The cluster and the user's credentials, found as kubectl finds them unless options name others."""

import os
from dataclasses import dataclass
from pathlib import Path

from dljob.client.backend import BackendError
from dljob.kube import access
from dljob.kube.access import Access, NoAccess

OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
USUAL_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Connection:
    """Address and credentials of a cluster."""

    access: Access
    namespace: str
    """The default namespace of jobs."""
    is_named: bool = False
    """True if the user named the namespace."""
    options: tuple[str, ...] = ()
    """The options with which kubectl finds this cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A cluster by its names in a kubeconfig, so that it stays the same when another context becomes current."""

    file: str
    context: str
    namespace: str
    is_named: bool = False
    """True if the user named the namespace."""

    def connect(self) -> Connection:
        """
        Read the credentials, which other programs may have renewed.

        Raises :class:`BackendError` with one line that says what to do.
        """
        try:
            found = access.find(self.file, self.context)
        except NoAccess as error:
            raise BackendError(str(error)) from error
        options = []
        # Only $KUBECONFIG, which kubectl reads itself, can name several files.
        if self.file and os.pathsep not in self.file:
            options.append(f"--kubeconfig={self.file}")
        if self.context:
            options.append(f"--context={self.context}")
        return Connection(found, self.namespace, self.is_named, tuple(options))


def find_target(kubeconfig: str = "", context: str = "", namespace: str = "") -> Target:
    """Find the cluster; raises :class:`BackendError` with a remedy."""
    # As kubectl does; a pod has none.
    file = kubeconfig or os.environ.get("KUBECONFIG", "")
    if not file and (usual := Path.home() / ".kube" / "config").is_file():
        file = str(usual)
    if not file and not context and OWN_NAMESPACE.is_file():
        own = OWN_NAMESPACE.read_text(encoding="utf-8").strip()
        return Target(file="", context="", namespace=namespace or own, is_named=bool(namespace))
    try:
        named, its_namespace = access.find_context(file, context)
    except NoAccess as error:
        raise BackendError(str(error)) from error
    return Target(
        file=file,
        context=named,
        namespace=namespace or its_namespace or USUAL_NAMESPACE,
        is_named=bool(namespace),
    )


def connect(kubeconfig: str = "", context: str = "", namespace: str = "") -> Connection:
    return find_target(kubeconfig, context, namespace).connect()
