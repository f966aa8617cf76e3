"""
Lets go of jobs that have ended: removes our finalizer, and deletes cancelled jobs after their pods.

The finalizer of a job keeps it until the end of its pods is proven. :mod:`dljob.operator.cluster` asks for deletions,
:mod:`dljob.operator.pods.cleanup` removes finalizers.
"""

from typing import Any

from dljob.control.situation.ports import Entry
from dljob.core.model import JobId
from dljob.kube import names
from dljob.kube.client import ApiServer, Conflict, NotFound
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.resources import DLJOBS, Resource
from dljob.kube.watches.mirror import Mirror, Mirrors
from dljob.operator.jobs.entries import name_of
from dljob.operator.jobs.status_writing import StatusWriter
from dljob.operator.proofs import awaits_proof


class Deletions:
    """One for the life of a leader."""

    def __init__(self, api: ApiServer, mirrors: Mirrors, *, writer: StatusWriter) -> None:
        self._api = api
        self._mirrors = mirrors
        self._writer = writer
        self._held_at_cycle: frozenset[str] | None = None
        """The uids of jobs with pods that our finalizer keeps; None before the first request of a cycle."""

    def begin_cycle(self) -> None:
        """Read the pods again at the next deletion."""
        self._held_at_cycle = None

    async def delete(self, job: JobId, entry: Entry | None) -> None:
        """
        Delete a job whose pods have ended, and remove its finalizer.

        The pods go first: a user who sees no job any more may uninstall the operator, and then nothing would remove
        our finalizers from the pods.
        """
        name = name_of(job)
        while entry is not None and (document := self._mirrors.jobs.get(name)) is not None:
            metadata = document["metadata"]
            if metadata["uid"] != entry.document["metadata"]["uid"]:
                return  # This is another job of the same name.
            if "deletionTimestamp" not in metadata:
                await self._api.delete(DLJOBS, name.name, name.namespace, uid=metadata["uid"])
            # Read once a cycle: thousands of jobs may be deleted in one.
            if metadata["uid"] in self._held_pods():
                return  # The controller asks again, and the cleanup removes the finalizers meanwhile.
            finalizers = [each for each in names.finalizers_of(document) if each != names.FINALIZER]
            try:
                if finalizers != names.finalizers_of(document):
                    await self._api.hold_by(DLJOBS, document, finalizers=finalizers)
                return
            except NotFound:
                self._mirrors.jobs.show_end(document)
            except Conflict:
                await self._writer.see_other_write(name, document)

    def _held_pods(self) -> frozenset[str]:
        """Return the uids of jobs with pods that our finalizer keeps."""
        if self._held_at_cycle is None:
            self._held_at_cycle = frozenset(
                owner.get("uid", "")
                for pod in self._mirrors.pods.objects.values()
                # A pod is kept in case its deleted Node returns, but its job need not wait for that.
                if awaits_proof(pod)
                and not (
                    (node := pod["spec"].get("nodeName"))
                    and Name("", node) not in self._mirrors.nodes.objects
                )
                for owner in pod["metadata"].get("ownerReferences") or ()
            )
        return self._held_at_cycle


async def let_go(
    api: ApiServer, resource: Resource, *, mirror: Mirror[Any], document: Json, finalizer: str
) -> None:
    """Remove our finalizer from a job or a pod, unless another program has written it since."""
    finalizers = [each for each in names.finalizers_of(document) if each != finalizer]
    try:
        left = await api.hold_by(resource, document, finalizers=finalizers)
    except NotFound:
        mirror.show_end(document)
        return
    except Conflict:
        return
    if left["metadata"].get("deletionTimestamp") and not finalizers:
        mirror.show_end(left)
    else:
        mirror.show(left, is_ours=True)
