"""
The auxiliary pods of jobs (parameter servers and the like): there as long as the job has pods.

They have no GPUs, so nothing needs to be proven of them. Each look brings about what is missing and
takes away what is too much; one that has ended is made anew under the same name, by which the others
know it.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from dlcore import jobfile
from dlcore.podrules import TRAINER
from dloperator import podmaking
from dloperator.apiserver import ApiServer, Conflict
from dloperator.jobs import Specs
from dloperator.mirror import Mirrors, Name
from dloperator.reading import role_of
from dloperator.resources import PODS

log = logging.getLogger(__name__)

Json = Mapping[str, Any]


class Companions:
    """One for the life of a leader; to be asked after each change."""

    def __init__(self, api: ApiServer, mirrors: Mirrors, specs: Specs) -> None:
        self._api = api
        self._specs = specs
        self._mirrors = mirrors
        self._deleted: set[str] = set()
        """The uids of pods that we had deleted."""

    async def tend(self) -> None:
        """Look at all jobs once."""
        there = {
            name: pod
            for name, pod in self._mirrors.pods.objects.items()
            if role_of(pod) not in ("", TRAINER)
        }
        wanted = dict(self._iter_wanted())
        for name, pod in there.items():
            if name not in wanted or _has_ended(pod):
                await self._remove(name, pod["metadata"])
        for name in wanted.keys() - there.keys():
            await self._create(name, wanted[name])
        self._deleted &= {pod["metadata"]["uid"] for pod in there.values()}

    def _iter_wanted(self) -> Iterator[tuple[Name, Json]]:
        for name, document in self._mirrors.jobs.objects.items():
            if document["spec"].get("auxiliaries") and (document.get("status") or {}).get("pods"):
                try:
                    job = self._specs.parse(document)
                except jobfile.JobFileError:
                    continue  # Whoever reads the job says so.
                for pod in podmaking.make_auxiliaries(dict(document), job.roles):
                    yield Name(name.namespace, pod["metadata"]["name"]), pod

    async def _create(self, name: Name, pod: Json) -> None:
        try:
            made = await self._api.create(PODS, pod, name.namespace)
        except Conflict:
            log.info("pod %s is there already", name)
            return
        self._mirrors.pods.show(made, is_ours=True)

    async def _remove(self, name: Name, metadata: Json) -> None:
        uid = metadata["uid"]
        if "deletionTimestamp" not in metadata and uid not in self._deleted:
            await self._api.delete(PODS, name.name, name.namespace, uid=uid)
            self._deleted.add(uid)


def _has_ended(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
