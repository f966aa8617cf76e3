"""Hostile jobs on a stage: SideCars that lie to each operator, started by the played kubelets."""

import json
from collections.abc import Sequence

from dloperator.nodes.nodes import PARDONS
from tests.chaos.hostiles import document_of, folder_of, honest
from tests.hostile import lies
from tests.operator.kubelets import HOSTILE
from tests.operator.stages import Stage
from tests.servers.api import Refused

GONE = 404


class OnStage:
    """Implements :class:`~tests.chaos.hostiles.Place`."""

    kinds = tuple(lies.KINDS)

    def __init__(self, stage: Stage, gpus: dict[str, int]) -> None:
        """Play on these nodes of so many GPUs."""
        self._stage = stage
        self._gpus = gpus

    def submit(self, name: str, kind: str) -> bool:
        path = folder_of(name, self._stage.folder)
        document = document_of(name, honest(name, path), path, **{HOSTILE: kind})
        pod = document["spec"]["template"]["spec"]
        pod["terminationGracePeriodSeconds"] = 3
        pod["containers"][0]["image"] = "training"
        self._stage.api.post(self._stage.path(), document)
        return True

    def cancel(self, name: str) -> bool:
        try:
            self._stage.api.delete(self._stage.path(name))
        except Refused as refused:
            if refused.code != GONE:
                raise
            return True
        return False

    def reinstate(self, after: Sequence[str]) -> None:
        if not after:
            return
        for node, gpus in self._gpus.items():
            pardons = json.dumps({str(number): " ".join(after) for number in range(gpus)})
            changed = {"metadata": {"annotations": {PARDONS: pardons}}}
            self._stage.api.merge(f"/api/v1/nodes/{node}", changed)
