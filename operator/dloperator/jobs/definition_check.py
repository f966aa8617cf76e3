"""
Whether the custom resource that is installed is the one that this operator was made for.

The API server silently drops every field that the definition lacks. An operator that writes to an older
definition would lose its decisions and the pods that it has booked (law 4), without an error. So one that
finds a field of the status missing does not lead, says so, and looks again until the definition is brought
up to date. While a new version of the operator is rolled out, its pods are not ready then, so that the
former ones stay and lead. A field that is missing from the spec only keeps users from writing it; the
operator reports that and leads all the same. Fields that only the installed one has are none of our
business.
"""

import logging
import uuid
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from dlkube import names
from dlkube.client import ApiServer, NotFound, Rejected
from dlkube.documents import Json
from dlkube.resources import Resource
from dlkube.watches.watching import NotInstalled
from dloperator.jobs import crd

log = logging.getLogger(__name__)


CRDS: Final = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"
)
REMEDY: Final = (
    "update it: helm upgrade, or without Helm kubectl apply --server-side --force-conflicts -k crds"
)
MOST_NAMED: Final = 5


class Outdated(NotInstalled):
    """It is older than this operator."""


class Finding(NamedTuple):
    """The result of the check of the installed definition."""

    remark: str = ""
    """The problem in words; empty if all is well."""
    uid: str = ""
    """Of the definition, and so of this cluster's DLJobs; empty if it may not be read."""

    def installation(self, home: str, lease: str) -> str:
        """
        Name the installation that leads by this Lease of this namespace.

        The jobs of a cluster live and end with their definition, and so does this name: it outlives an
        operator that is uninstalled and installed again, and a Lease that is deleted.
        """
        return str(uuid.uuid5(uuid.UUID(self.uid), f"{home}/{lease}")) if self.uid else ""


async def check(api: ApiServer) -> Finding:
    """
    Raise :class:`Outdated` if it cannot keep what we write; return what else is found of it.

    Raises :class:`Rejected` or :class:`Unreachable` if the API server does not give it at present.
    """
    try:
        document = await api.get(CRDS, crd.NAME)
    except NotFound as error:
        raise NotInstalled(f"the definition {crd.NAME} is not installed; {REMEDY}") from error
    except Rejected as error:
        if error.is_passing:
            # Without the definition this operator might lead where its writes are not kept, and it
            # would not know its installation for as long as it lives.
            raise
        # Its rights may be older than the operator; most often all is well.
        return Finding(
            f"it is not known whether the installed definition of DLJobs has this version: {error}"
        )
    uid = document["metadata"]["uid"]
    missing = find_missing(document)
    status = [path for path in missing if path.startswith("status")]
    if status:
        raise Outdated(
            f"the installed definition of DLJobs is older than this operator and does not keep"
            f" {_named(status)}; {REMEDY}"
        )
    if missing:
        return Finding(
            f"the installed definition of DLJobs is older than this operator: users cannot write"
            f" {_named(missing)} yet; {REMEDY}",
            uid,
        )
    return Finding(uid=uid)


def find_missing(document: Json) -> list[str]:
    """Name the fields that our definition has and an installed one has not."""
    versions = (document.get("spec") or {}).get("versions") or ()
    found: Json = next((each for each in versions if each["name"] == names.VERSION), {})
    schema = (found.get("schema") or {}).get("openAPIV3Schema") or {}
    return list(_iter_missing(crd.schema(), schema, path=""))


def _iter_missing(ours: Json, theirs: Json, *, path: str) -> Iterator[str]:
    if theirs.get("x-kubernetes-preserve-unknown-fields"):
        return
    there = theirs.get("properties") or {}
    for name, part in (ours.get("properties") or {}).items():
        at = f"{path}.{name}" if path else name
        if name in there:
            yield from _iter_missing(part, there[name], path=at)
        else:
            yield at
    for key in ("items", "additionalProperties"):
        if isinstance(ours.get(key), Mapping):
            yield from _iter_missing(ours[key], theirs.get(key) or {}, path=f"{path}[]")


def _named(paths: list[str]) -> str:
    more = len(paths) - MOST_NAMED
    return ", ".join(paths[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
