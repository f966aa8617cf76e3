"""
Remembers the other users of the nodes: the pods of others, and the nodes that can reach each volume.

:mod:`dloperator.nodes.other_pods` fills it; :mod:`dloperator.nodes.room` computes from it the room for jobs.
"""

from collections.abc import Collection, Iterable

from dlkube.constraints.reaching import Reaching
from dlkube.constraints.usage import Name, Occupancy, read_usage
from dlkube.documents import Json


class OtherObjects:
    """A few words about each object."""

    def __init__(self) -> None:
        self.pods = Occupancy()
        self.claims: dict[Name, str] = {}
        """The name of the volume of each claim; empty while it has none."""
        self.bound: set[Name] = set()
        """The claims whose volume Kubernetes has bound to them: kube-scheduler refuses their pods until then."""
        self.volumes: dict[str, tuple[Json, ...]] = {}
        """The terms of which a node has to fulfil one to reach a volume; of those that have such."""
        self.claimed: Collection[Name] = ()
        """The claims that pods of jobs have; what becomes of others is remembered and no news."""
        self.moved: set[Name] = set()
        """Of these, those that were bound or that other nodes can reach since the last read."""
        self.reaching = Reaching()
        """By which other ways GPUs are reached."""

    # --- pods

    def show_pod(self, name: Name, document: Json | None) -> bool:
        """Take a pod in; raises :class:`~dlcore.placement.amounts.NoAmount` if it asks for what is no amount."""
        matters = self.reaching.show_pod(name, document)
        usage = read_usage(document) if document is not None else None
        return self.pods.put(name, (usage,) if usage is not None else ()) or matters

    def keep_pods(self, there: Collection[Name]) -> bool:
        matters = self.reaching.others.keep_only(there)
        return self.pods.keep_only(there) or matters

    # --- claims and volumes

    def show_claim(self, name: Name, document: Json | None) -> bool:
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
