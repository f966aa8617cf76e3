"""Hostile jobs that are applied to an API server, and the one kind of them that played kubelets start."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dljob.operator.nodes.nodes import PARDONS
from tests.chaos.hostiles import document_of, folder_of, honest
from tests.hostile import lies
from tests.operator.kubelets import HOSTILE
from tests.operator.stages import Stage
from tests.servers.api import Api, Json, Refused

GONE = 404
GRACE_S = 3
"""A hostile container that does not end is killed by the kubelet so soon."""


class Applied:
    """Implements :class:`~tests.chaos.hostiles.Place`."""

    def __init__(
        self,
        api: Api,
        jobs: str,
        gpus: Mapping[str, int],
        *,
        make: Callable[[str, str], Json],
        kinds: Sequence[str],
    ) -> None:
        """
        Keep jobs at this path of the API server, on nodes with ``gpus`` GPUs; ``make`` builds a job
        by name and kind.
        """
        self.kinds = kinds
        self._api = api
        self._jobs = jobs
        self._gpus = gpus
        self._make = make

    def submit(self, name: str, kind: str) -> bool:
        document = self._make(name, kind)
        document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = GRACE_S
        self._api.post(self._jobs, document)
        return True

    def cancel(self, name: str) -> bool:
        try:
            self._api.delete(f"{self._jobs}/{name}")
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
            self._api.merge(f"/api/v1/nodes/{node}", changed)


def on_stage(stage: Stage, gpus: Mapping[str, int]) -> Applied:
    """Have the played kubelets start SideCars that lie."""

    def make(name: str, kind: str) -> Json:
        return _document(name, kind, stage.folder)

    return Applied(stage.api, stage.path(), gpus, make=make, kinds=tuple(lies.KINDS))


def _document(name: str, kind: str, root: Path) -> Json:
    path = folder_of(name, root)
    document = document_of(name, honest(name, path), path, **{HOSTILE: kind})
    document["spec"]["template"]["spec"]["containers"][0]["image"] = "training"
    return document
