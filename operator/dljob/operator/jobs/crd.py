"""
The CustomResourceDefinition, made from the schema of a job and the fields of its status.

``scripts/write-crd`` writes it to ``crds/``. It contains every check that a rule can express, so that the API
server itself refuses a wrong job on ``kubectl apply``, without a webhook.

The operator checks that the installed definition is recent enough for it. The API server silently drops every field
that the definition lacks. With an older definition an operator would lose its decisions and the pods that it has booked
(law 4), without an error. So an operator that finds a field of the status missing does not lead, reports why, and checks
again until the definition is updated. During a rollout its pods are not ready then, so the former ones stay and lead. A
field that is missing from the spec only keeps users from writing it; the operator reports that and leads. Additional
fields of the installed definition are ignored.
"""

import uuid
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import yaml

from dljob.control.situation.status_schema import STATUS
from dljob.core.documents import jobschema
from dljob.kube import names
from dljob.kube.client import ApiServer, NotFound, Rejected
from dljob.kube.documents import Json, JsonObject
from dljob.kube.resources import Resource
from dljob.kube.watches.watching import NotInstalled
from dljob.operator.jobs.columns import COLUMNS

NAME: Final = f"{names.PLURAL}.{names.GROUP}"
FILE: Final = f"{NAME}.yaml"
_ORIGIN: Final = (
    "# Made by scripts/write-crd from the schema in operator/dljob/core; not to be edited.\n"
)
CRDS: Final = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"
)
REMEDY: Final = (
    "update it: helm upgrade, or without Helm kubectl apply --server-side --force-conflicts -k crds"
)
MOST_NAMED: Final = 5


def definition() -> JsonObject:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema()},
                    "subresources": {
                        "status": {},
                        # Autoscalers bound the number of GPUs; DLJob decides it within the bound.
                        "scale": {
                            "specReplicasPath": ".spec.gpus.max",
                            "statusReplicasPath": ".status.allocation.gpus",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": list(COLUMNS),
                }
            ],
        },
    }


def schema() -> JsonObject:
    described = jobschema.openapi()
    # The status has one writer, so managed fields are useless in it: with one entry for each field a
    # write of a status costs a tenth more, and a job is a third larger.
    described["properties"]["status"] = {**STATUS.openapi(), "x-kubernetes-map-type": "atomic"}
    return described


def text() -> str:
    """Write the definition as YAML."""
    document = yaml.safe_dump(definition(), sort_keys=False, width=100, allow_unicode=True)
    return f"{_ORIGIN}{document}"


class Outdated(NotInstalled):
    """The definition is older than this operator."""


class Finding(NamedTuple):
    """The result of the check of the installed definition."""

    remark: str = ""
    """The problem in words; empty if all is well."""
    uid: str = ""
    """The uid of the definition; empty if it may not be read."""

    def installation(self, home: str, lease: str) -> str:
        """
        Return the ID of the installation with this Lease in this namespace.

        Like the jobs of a cluster, it lives as long as their definition: it outlives a deleted Lease, and an
        operator that is uninstalled and installed again.
        """
        return str(uuid.uuid5(uuid.UUID(self.uid), f"{home}/{lease}")) if self.uid else ""


async def check(api: ApiServer) -> Finding:
    """
    Raise :class:`Outdated` if it lacks a field of the status; return other findings.

    Raises :class:`Rejected` or :class:`Unreachable` if the API server does not give it at present.
    """
    try:
        document = await api.get(CRDS, NAME)
    except NotFound as error:
        raise NotInstalled(f"the definition {NAME} is not installed; {REMEDY}") from error
    except Rejected as error:
        if error.is_passing:
            # Without the definition this operator might lead where its writes are not kept, and it
            # would never know its installation.
            raise
        # The rights may be older than the operator; usually the definition is recent enough.
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
    """Name the fields that an installed definition lacks."""
    versions = (document.get("spec") or {}).get("versions") or ()
    found: Json = next((each for each in versions if each["name"] == names.VERSION), {})
    installed = (found.get("schema") or {}).get("openAPIV3Schema") or {}
    return list(_iter_missing(schema(), installed, path=""))


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
