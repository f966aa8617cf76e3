"""The name of a job and the name of its manager, by its document."""

from collections.abc import Mapping
from typing import Any, Final

OUR_CONTROLLER: Final = "dljob.io/operator"
"""The value of ``managedBy`` that stands for DLJob itself."""


def full_name(document: Mapping[str, Any], home: str = "") -> str:
    """Return the name of a job with its namespace, unless that is missing or ``home``."""
    metadata = document["metadata"]
    namespace = metadata.get("namespace")
    is_at_home = namespace in (None, "", home)
    return str(metadata["name"]) if is_at_home else f"{namespace}/{metadata['name']}"


def manager_of(document: Mapping[str, Any]) -> str:
    """Name the other controller that manages a job; empty if DLJob manages it."""
    manager = str((document.get("spec") or {}).get("managedBy") or "")
    return "" if manager == OUR_CONTROLLER else manager
