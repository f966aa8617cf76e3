"""Grants of priorities by an administrator."""

from dljob.kube import names
from tests.operator.stages import Stage


def grant(stage: Stage, priority: int | None) -> None:
    """Grant the namespace priorities up to this one; ``None`` revokes the grant."""
    highest = None if priority is None else str(priority)
    annotations = {"metadata": {"annotations": {names.MAX_PRIORITY: highest}}}
    stage.api.merge(f"/api/v1/namespaces/{stage.namespace}", annotations)
