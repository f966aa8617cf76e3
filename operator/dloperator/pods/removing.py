"""Pods that are asked to go: each is asked once, because that it goes may take minutes to be seen."""

from collections.abc import Collection

from dlkube.client import ApiServer
from dlkube.documents import Json
from dlkube.resources import PODS


class Removals:
    """One for the life of a leader."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._asked: set[str] = set()
        """By their uids."""

    async def remove(self, pod: Json) -> None:
        """Have this pod deleted, and no later one of its name."""
        metadata = pod["metadata"]
        uid = metadata["uid"]
        if "deletionTimestamp" not in metadata and uid not in self._asked:
            await self._api.delete(PODS, metadata["name"], metadata["namespace"], uid=uid)
            # Noted after the answer: where that is lost, the next look asks again, which hits no
            # other pod.
            self._asked.add(uid)

    def keep(self, there: Collection[str]) -> None:
        """Forget all pods but these, by their uids."""
        self._asked &= set(there)
