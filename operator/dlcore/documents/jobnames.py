"""The name of a job, by its document."""

from collections.abc import Mapping
from typing import Any


def full_name(document: Mapping[str, Any], home: str = "") -> str:
    """Return the name of a job with its namespace, unless that is missing or ``home``."""
    metadata = document["metadata"]
    namespace = metadata.get("namespace")
    is_at_home = namespace in (None, "", home)
    return str(metadata["name"]) if is_at_home else f"{namespace}/{metadata['name']}"
