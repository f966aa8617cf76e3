"""The rights that roles grant the operator, and those that it uses, by the API server's audit log."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.servers.api import Json
from tests.servers.audits import read_events

HOME = "dljob-system"
ACCOUNT = f"system:serviceaccount:{HOME}:dljob-operator"
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata", "users": [ACCOUNT]}, {"level": "None"}],
}
FOR_ALL = {"/api", "/apis", "/version"}
"""The URLs that every authenticated account may request."""


class Right(NamedTuple):
    verb: str
    resource: str
    name: str = ""
    """Of a right on one object only."""


def iter_rights(rules: Iterable[Json]) -> Iterator[Right]:
    for rule in rules:
        parts = (rule["verbs"], rule["resources"], rule.get("resourceNames", [""]))
        yield from itertools.starmap(Right, itertools.product(*parts))


def used(log: Path) -> set[Right]:
    """The rights that the audit log shows; all requests must have been allowed."""
    rights = set()
    for event in read_events(log):
        assert event["user"]["username"] == ACCOUNT
        reference = event.get("objectRef")
        if reference is None or "resource" not in reference:
            path = event["requestURI"].partition("?")[0]
            assert any(path == each or path.startswith(f"{each}/") for each in FOR_ALL), path
            continue
        allowed = event["annotations"]["authorization.k8s.io/decision"]
        verb, resource = event["verb"], reference["resource"]
        if "subresource" in reference:
            resource = f"{resource}/{reference['subresource']}"
        assert allowed == "allow", f"{verb} {resource} {reference.get('name', '')}"
        rights.add(Right(verb, resource, reference.get("name", "")))
    return rights
