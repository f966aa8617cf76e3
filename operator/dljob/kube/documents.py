"""
The documents of the API server, and how they are parsed, however deeply they are nested.

Kubernetes accepts documents that are nested 10,000 levels deep, and Python's parser gives up at a tenth of
that. One such DLJob would end every operator that lists jobs. So this module cuts off the parts that are too deep: the
job that holds it is refused later for its depth, and other jobs are not affected.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypedDict

Json = Mapping[str, Any]
"""A read-only document, or a part of one."""
JsonObject = dict[str, Any]
"""A document that is being built or was just parsed."""


class ObjectMeta(TypedDict, total=False):
    """The metadata of an object."""

    name: str
    namespace: str
    uid: str
    resourceVersion: str
    generation: int
    creationTimestamp: str
    deletionTimestamp: str
    labels: dict[str, str] | None
    annotations: dict[str, str] | None
    finalizers: list[str] | None
    ownerReferences: list[JsonObject] | None


class PodSpec(TypedDict, total=False):
    """The parts of a pod's spec that are read here."""

    nodeName: str
    schedulerName: str
    priority: int | None
    schedulingGates: list[JsonObject] | None
    nodeSelector: dict[str, str] | None
    affinity: JsonObject | None
    tolerations: list[JsonObject] | None
    containers: list[JsonObject]
    initContainers: list[JsonObject] | None
    ephemeralContainers: list[JsonObject] | None
    resourceClaims: list[JsonObject] | None
    runtimeClassName: str | None
    overhead: JsonObject | None


class PodDocument(TypedDict, total=False):
    metadata: ObjectMeta
    spec: PodSpec
    status: JsonObject


class NodeSpec(TypedDict, total=False):
    taints: list[dict[str, str]] | None
    unschedulable: bool


class NodeDocument(TypedDict, total=False):
    metadata: ObjectMeta
    spec: NodeSpec
    status: JsonObject


class NodeSelectorTerm(TypedDict, total=False):
    matchExpressions: list[JsonObject] | None
    matchFields: list[JsonObject] | None


class ClaimDocument(TypedDict, total=False):
    """A PersistentVolumeClaim or a ResourceClaim."""

    metadata: ObjectMeta
    spec: JsonObject
    status: JsonObject


class SliceDocument(TypedDict, total=False):
    """A ResourceSlice."""

    metadata: ObjectMeta
    spec: JsonObject


DEEPEST: Final = 200
"""The deepest nesting that is read; more levels than any valid document has."""
FEW_BRACKETS: Final = 500
"""A document with fewer opening brackets is never too deep for Python's parser."""
CUT: Final = '"nested too deeply to be read"'

_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]')


def parse(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError if the text is not JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads("".join(_shallow(text if isinstance(text, str) else text.decode())))


def cut_depth(text: bytes) -> bytes:
    """Return JSON that Python's parser can read."""
    if text.count(b"{") + text.count(b"[") < FEW_BRACKETS:
        return text
    return "".join(_shallow(text.decode())).encode()


def _shallow(text: str) -> Iterator[str]:
    """Yield a JSON text in which a placeholder replaces everything that is nested too deeply."""
    depth, kept_from = 0, 0
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth == DEEPEST + 1:
                yield text[kept_from : token.start()]
                yield CUT
        elif token[0] in "]}":
            if depth == DEEPEST + 1:
                kept_from = token.end()
            depth -= 1
    yield text[kept_from:]
