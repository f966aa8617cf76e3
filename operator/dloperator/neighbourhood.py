"""
What is remembered of what else is on the nodes: the pods of others, and who can reach which volume.

:mod:`dloperator.neighbours` follows it; :mod:`dloperator.lodging` makes of it what is free for jobs.
"""

from collections.abc import Collection, Mapping
from typing import Any

from dloperator.occupancy import Name, Occupancy, read_lodger

Json = Mapping[str, Any]


class Neighbourhood:
    """A few words about each object."""

    def __init__(self) -> None:
        self.pods = Occupancy()
        self.claims: dict[Name, str] = {}
        """The name of the volume of each claim; empty while it has none."""
        self.volumes: dict[str, tuple[Json, ...]] = {}
        """The terms of which a node has to fulfil one to reach a volume; of those that have such."""
        self.places_changed = 0
        """Counts the changes of claims and volumes."""

    # --- pods

    def show_pod(self, name: Name, document: Json | None) -> bool:
        lodger = read_lodger(document) if document is not None else None
        return self.pods.put(name, (lodger,) if lodger is not None else ())

    # --- claims and volumes

    def show_claim(self, name: Name, document: Json | None) -> bool:
        if document is None:
            return self._changes(self.claims.pop(name, None) is not None)
        volume = (document.get("spec") or {}).get("volumeName") or ""
        is_new = self.claims.get(name) != volume
        self.claims[name] = volume
        return self._changes(is_new)

    def show_volume(self, name: Name, document: Json | None) -> bool:
        spec = (document or {}).get("spec") or {}
        required = (spec.get("nodeAffinity") or {}).get("required")
        before = self.volumes.pop(name[1], None)
        if required is not None:
            self.volumes[name[1]] = tuple(required.get("nodeSelectorTerms") or ())
        return self._changes(self.volumes.get(name[1]) != before)

    def keep_claims(self, there: Collection[Name]) -> bool:
        gone = self.claims.keys() - set(there)
        for name in gone:
            del self.claims[name]
        return self._changes(bool(gone))

    def keep_volumes(self, there: Collection[Name]) -> bool:
        gone = self.volumes.keys() - {name[1] for name in there}
        for name in gone:
            del self.volumes[name]
        return self._changes(bool(gone))

    def _changes(self, is_so: bool) -> bool:  # noqa: FBT001 - tells on what it was told
        self.places_changed += is_so
        return is_so
