"""
Jobs that have ended are deleted, after their pods.

The finalizer of a job keeps it until its pods are proven to have ended. Part of :mod:`dloperator.cluster`.
"""

from dlcontrol.situation.ports import Entry
from dlcore.model import JobId
from dlkube import names
from dlkube.client import ApiServer, Conflict, NotFound
from dlkube.documents import Json
from dlkube.names import Name
from dlkube.resources import DLJOBS
from dlkube.watches.mirror import Mirrors
from dloperator.jobs.entries import name_of
from dloperator.jobs.status_writing import StatusWriter
from dloperator.proofs import awaits_proof, is_bound


class Deletions:
    """Deletes jobs, for the life of a leader."""

    def __init__(self, api: ApiServer, mirrors: Mirrors, *, writer: StatusWriter) -> None:
        self._api = api
        self._mirrors = mirrors
        self._writer = writer
        self._held_at_cycle: frozenset[str] | None = None
        """The uids of jobs whose pods are kept; None before the first request of a cycle."""

    def begin_cycle(self) -> None:
        """Read the pods again when they are asked for next."""
        self._held_at_cycle = None

    async def delete(self, job: JobId, entry: Entry | None) -> None:
        """
        Delete a job that has ended and whose pods have, and keep it no longer.

        It goes after its pods: a user who sees no job any more may uninstall the operator, and then nothing
        would take our finalizers from the pods.
        """
        name = name_of(job)
        while entry is not None and (document := self._mirrors.jobs.get(name)) is not None:
            metadata = document["metadata"]
            if metadata["uid"] != entry.document["metadata"]["uid"]:
                return  # It is gone, and there is another one of its name by now.
            if "deletionTimestamp" not in metadata:
                await self._api.delete(DLJOBS, name.name, name.namespace, uid=metadata["uid"])
            # Read once a cycle: thousands of jobs may be deleted in one.
            if metadata["uid"] in self._held_pods():
                return  # This is asked for again, and they are let go of meanwhile.
            try:
                await self._let_go(document)
                return
            except NotFound:
                self._mirrors.jobs.show_end(document)
            except Conflict:
                await self._writer.see_who_wrote(name, document)

    def _held_pods(self) -> frozenset[str]:
        """Of which jobs there are pods that we keep until their end is proven, as of this look."""
        if self._held_at_cycle is None:
            self._held_at_cycle = frozenset(
                owner.get("uid", "")
                for pod in self._mirrors.pods.objects.values()
                # One on a Node that was deleted is kept in case that returns, and its job need not be.
                if awaits_proof(pod) and not (is_bound(pod) and self._node_of(pod) is None)
                for owner in pod["metadata"].get("ownerReferences") or ()
            )
        return self._held_at_cycle

    def _node_of(self, pod: Json) -> Json | None:
        return self._mirrors.nodes.get(Name("", pod["spec"].get("nodeName", "")))

    async def _let_go(self, document: Json) -> None:
        finalizers = [each for each in names.finalizers_of(document) if each != names.FINALIZER]
        if finalizers != names.finalizers_of(document):
            await self._api.hold_by(DLJOBS, document, finalizers=finalizers)
