"""Deletes pods; each once, because a deletion may take minutes."""

from collections.abc import Collection

from dljob.kube.client import ApiServer
from dljob.kube.documents import Json
from dljob.kube.resources import PODS


class Removals:
    """One for the life of a leader."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._asked: set[str] = set()
        """The uids of the deleted pods."""

    async def remove(self, pod: Json) -> None:
        """Delete this pod, and no later pod of the same name."""
        metadata = pod["metadata"]
        uid = metadata["uid"]
        if "deletionTimestamp" not in metadata and uid not in self._asked:
            await self._api.delete(PODS, metadata["name"], metadata["namespace"], uid=uid)
            # Noted after the answer: if that is lost, the next pass asks again.
            self._asked.add(uid)

    def keep(self, there: Collection[str]) -> None:
        """Forget all pods but those with these uids."""
        self._asked &= set(there)
