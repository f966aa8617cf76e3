"""
Which cluster is meant, and as whom it is spoken to: as kubectl finds it, but for what is named.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlctl.backends.backend import BackendError
from dlkube import access
from dlkube.access import Access, NoAccess

OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
USUAL_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Connection:
    """How a cluster is reached."""

    access: Access
    namespace: str
    """Where jobs are meant to be that name none."""
    is_named: bool = False
    """Whether the user has named it."""


def connect(kubeconfig: str = "", context: str = "", namespace: str = "") -> Connection:
    """Find the cluster; raises :class:`BackendError` with one line that says what to do."""
    file = kubeconfig or _usual_file()
    try:
        found = access.find(file, context)
    except NoAccess as error:
        raise BackendError(str(error)) from error
    return Connection(found, namespace or _namespace(file, context), bool(namespace))


def _usual_file() -> str:
    """Find the kubeconfig that kubectl would use; none where this is a pod without one."""
    named = os.environ.get("KUBECONFIG", "")
    usual = Path.home() / ".kube" / "config"
    return named or (str(usual) if usual.is_file() else "")


def _namespace(file: str, context: str) -> str:
    """Which namespace the context names, or that of the pod we are in."""
    if not file and OWN_NAMESPACE.is_file():
        return OWN_NAMESPACE.read_text(encoding="utf-8").strip()
    from kubernetes.config import list_kube_config_contexts  # noqa: PLC0415 - as access has done

    contexts, active = list_kube_config_contexts(file or None)  # type: ignore[no-untyped-call]
    chosen: dict[str, Any] = next(
        (each for each in contexts if each["name"] == context), active or {}
    )
    return str(chosen.get("context", {}).get("namespace") or USUAL_NAMESPACE)
