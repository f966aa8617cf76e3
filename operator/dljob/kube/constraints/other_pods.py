"""
The other users of the nodes: pods of other owners, and the nodes that can reach each volume.

:mod:`dljob.operator.nodes.other_pods` fills it, and :mod:`dljob.operator.nodes.room` reads it.
"""

from collections.abc import Collection, Iterable

from dljob.kube.constraints.reaching import Reaching
from dljob.kube.constraints.usage import Name, Occupancy, read_usage
from dljob.kube.documents import ClaimDocument, Json, NodeSelectorTerm, PodDocument


class OtherObjects:
    """A few values of each object; each update method returns true if jobs are affected."""

    def __init__(self) -> None:
        self.pods = Occupancy()
        self.claims: dict[Name, str] = {}
        """The volume of each claim; empty if the claim has no volume yet."""
        self.bound: set[Name] = set()
        """The bound claims; kube-scheduler refuses pods with others."""
        self.volumes: dict[str, tuple[NodeSelectorTerm, ...]] = {}
        """The node affinity of each volume that has one."""
        self.claimed: Collection[Name] = ()
        """The claims of pods of jobs; changes of other claims do not affect jobs."""
        self.moved: set[Name] = set()
        """The claims of jobs that were bound or moved since the last read."""
        self.reaching = Reaching()

    # --- pods

    def show_pod(self, name: Name, document: PodDocument | None) -> bool:
        """Add a pod; raise :class:`~dljob.core.placement.amounts.NoAmount` for an invalid amount."""
        matters = self.reaching.show_pod(name, document)
        usage = read_usage(document) if document is not None else None
        return self.pods.put(name, (usage,) if usage is not None else ()) or matters

    def keep_pods(self, there: Collection[Name]) -> bool:
        matters = self.reaching.others.keep_only(there)
        return self.pods.keep_only(there) or matters

    # --- claims and volumes

    def show_claim(self, name: Name, document: ClaimDocument | None) -> bool:
        before = self.claims.get(name), name in self.bound
        if document is None:
            self._forget_claim(name)
        else:
            self.claims[name] = (document.get("spec") or {}).get("volumeName") or ""
            is_bound = (document.get("status") or {}).get("phase") == "Bound"
            (self.bound.add if is_bound else self.bound.discard)(name)
        is_new = before != (self.claims.get(name), name in self.bound)
        return self._move([name] if is_new else ())

    def show_volume(self, name: Name, document: Json | None) -> bool:
        spec = (document or {}).get("spec") or {}
        required = (spec.get("nodeAffinity") or {}).get("required")
        before = self.volumes.pop(name[1], None)
        if required is not None:
            self.volumes[name[1]] = tuple(required.get("nodeSelectorTerms") or ())
        is_new = self.volumes.get(name[1]) != before
        return self._move(self._claims_on({name[1]}) if is_new else ())

    def keep_claims(self, there: Collection[Name]) -> bool:
        gone = self.claims.keys() - set(there)
        for name in gone:
            self._forget_claim(name)
        return self._move(gone)

    def _forget_claim(self, name: Name) -> None:
        self.claims.pop(name, None)
        self.bound.discard(name)

    def keep_volumes(self, there: Collection[Name]) -> bool:
        gone = self.volumes.keys() - {name[1] for name in there}
        for name in gone:
            del self.volumes[name]
        return self._move(self._claims_on(gone))

    def _claims_on(self, volumes: Collection[str]) -> Iterable[Name]:
        return [name for name in self.claimed if self.claims.get(name) in volumes]

    def _move(self, names: Iterable[Name]) -> bool:
        matter = [name for name in names if name in self.claimed]
        self.moved.update(matter)
        return bool(matter)
