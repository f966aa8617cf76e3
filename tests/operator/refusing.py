"""The API server's refusal of a manifest, as the lines that users read."""

import re
from typing import Any

from tests.operator.manifests import path_of
from tests.servers.api import Api, Refused

NOT_ALL = "some validation rules were not checked because the object was invalid"
"""Kubernetes adds this after its other errors where the shape of a document is wrong."""

VALUE = re.compile(r'^Invalid value: (?:(?:"(?:[^"\\]|\\.)*"|[-\w.+]+): )?')
"""The value that is wrong, which not every version of Kubernetes shows alike."""


def refusal(api: Api, namespace: str, manifest: Any) -> list[str]:
    """Submit a manifest as a dry run; return the refusal, empty if it is accepted."""
    try:
        api.post(path_of(namespace), manifest, dryRun="All", fieldValidation="Strict")
    except Refused as refused:
        return told(refused)
    return []


def told(refused: Refused) -> list[str]:
    """A line for each wrong field, without its value; one line for a document that is no DLJob."""
    causes = [cause for cause in refused.causes if NOT_ALL not in cause["message"]]
    if not causes:
        return [str(refused)]
    return [f"{cause.get('field', '')}: {VALUE.sub('', cause['message'])}" for cause in causes]
