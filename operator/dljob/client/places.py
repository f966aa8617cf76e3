"""
The place where jobs run: one machine or a cluster.

The first of these rules that applies decides; scripts/write-reference shows them to users:

1. ``--state`` is the ``dljob up`` of a state folder; ``--kubeconfig``, ``--context``, ``--namespace``
   and ``--all-namespaces`` are a cluster.
2. ``kubectl dljob`` is a cluster.
3. ``$DLJOB_PLATFORM``, which is ``machine`` or ``cluster``.
4. ``$DLJOB_STATE`` is the ``dljob up`` of that folder.
5. A ``dljob up`` of the usual state folder, if one answers, or else that of all users of this
   machine (``dljob up --system``), if that does.
6. A cluster, if there is a kubeconfig, or if this is a pod of one.
7. Otherwise the ``dljob up`` of the usual folder; the verb reports that none runs there.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dljob.client.backend import Backend, warn
from dljob.client.local.local_backend import LocalBackend
from dljob.local.folders import SYSTEM_ROOT, Folders, default_root

if TYPE_CHECKING:
    from dljob.client.cluster.connecting import Target

PLATFORM = "DLJOB_PLATFORM"
MACHINE, CLUSTER = "machine", "cluster"

CLUSTER_REMEDY = "; if you mean a cluster, name its --kubeconfig"

SERVICE_HOST = "KUBERNETES_SERVICE_HOST"
"""Set in every pod."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The options that choose a place."""

    state: Path | None = None
    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    everywhere: bool = False

    @property
    def names_cluster(self) -> bool:
        return bool(self.kubeconfig or self.context or self.namespace or self.everywhere)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """
    The place that is meant, decided once.

    A program that asks for hours opens it for each question. Meanwhile a ``dljob up`` may come or go, and
    another context may become the current one; no question or change may go to another place for that.
    """

    folders: Folders | None = None
    """The folders of one machine; else ``None``."""
    or_else: str = ""
    """Ends the remedy where no ``dljob up`` answers."""
    target: "Target | None" = None
    """The cluster; else ``None``."""
    everywhere: bool = False

    def open(self, *, notice: Callable[[str], None] = warn) -> Backend:
        """Open the place; the caller closes it. ``notice`` takes lines for the user."""
        if self.target is None:
            assert self.folders is not None
            return LocalBackend(self.folders.socket, or_else=self.or_else)
        from dljob.client.cluster.backend import ClusterBackend  # noqa: PLC0415 - see decide

        return ClusterBackend(self.target.connect(), self.everywhere, notice=notice)


def decide(place: Place) -> Chosen:
    if place.state is not None and place.names_cluster:
        raise click.UsageError(
            "--state is one machine, and --kubeconfig, --context, --namespace and"
            " --all-namespaces are a cluster; give one or the other"
        )
    if place.state is None and _is_cluster(place):
        # It takes longer to load than all else, and users of one machine do not need it.
        from dljob.client.cluster.connecting import find_target  # noqa: PLC0415

        target = find_target(place.kubeconfig, place.context, place.namespace)
        return Chosen(target=target, everywhere=place.everywhere)
    return Chosen(folders=find_folders(place.state), or_else="" if place.state else CLUSTER_REMEDY)


def choose(place: Place) -> Backend:
    return decide(place).open()


def _is_cluster(place: Place) -> bool:
    context = click.get_current_context(silent=True)
    program = context.find_root().info_name if context is not None else ""
    if place.names_cluster or (program or "").startswith("kubectl"):
        return True
    wanted = os.environ.get(PLATFORM, "")
    if wanted not in ("", MACHINE, CLUSTER):
        raise click.UsageError(
            f"{PLATFORM}: {wanted!r} is not a platform; write {MACHINE} or {CLUSTER}"
        )
    if wanted or os.environ.get("DLJOB_STATE"):
        return wanted == CLUSTER
    named = [Path(each) for each in os.environ.get("KUBECONFIG", "").split(os.pathsep) if each]
    files = named or [Path.home() / ".kube" / "config"]
    has_cluster = any(file.is_file() for file in files) or bool(os.environ.get(SERVICE_HOST))
    return has_cluster and not _answers(find_folders(None).socket)


def find_folders(state: Path | None) -> Folders:
    """Find the state folder: the named one, else the user's own, else that of all users."""
    own = Folders(state or default_root(os.environ))
    if state is not None or os.environ.get("DLJOB_STATE") or _answers(own.socket):
        return own
    of_all = Folders(SYSTEM_ROOT)
    return of_all if _answers(of_all.socket) else own


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True


@contextmanager
def opened(place: Place) -> Iterator[Backend]:
    backend = choose(place)
    try:
        yield backend
    finally:
        backend.close()
