"""
Which pods of other owners and which DRA drivers reach the GPUs of each node.
"""

from collections.abc import Collection, Iterable

from dljob.kube.constraints.foreign import Ways, is_gpu_driver, read_ways
from dljob.kube.constraints.usage import Name
from dljob.kube.documents import ClaimDocument, PodDocument, SliceDocument

EVERYWHERE = ""
"""The node of a slice that is offered on several nodes."""


class Users:
    """Pods that may reach GPUs, by node."""

    def __init__(self) -> None:
        self._ways: dict[Name, Ways] = {}
        self._on: dict[str, set[Name]] = {}

    def put(self, name: Name, ways: Ways | None) -> bool:
        """Replace the ways of a pod; return true if they have changed."""
        before = self._ways.get(name)
        if ways == before:
            return False
        if before is not None:
            del self._ways[name]
            self._on[before.node].discard(name)
        if ways is not None:
            self._ways[name] = ways
            self._on.setdefault(ways.node, set()).add(name)
        return True

    def keep_only(self, names: Collection[Name]) -> bool:
        """Forget all other pods; return true if there were any."""
        gone = self._ways.keys() - set(names)
        for name in gone:
            self.put(name, None)
        return bool(gone)

    def on(self, node: str) -> Iterable[tuple[Name, Ways]]:
        """Return the pods of a node in a fixed order."""
        return ((name, self._ways[name]) for name in sorted(self._on.get(node, ())))


class Reaching:
    """Pods, claims and slices; each update method returns true if the object changed."""

    def __init__(self) -> None:
        self.others = Users()
        """The pods without our label."""
        self.labelled = Users()
        """The pods with our label that belong to no job of ours."""
        self._claims: set[Name] = set()
        """The claims with allocated GPUs."""
        self._slices: dict[str, tuple[str, str]] = {}
        """The node and the driver of each slice of GPUs."""
        self._drivers: dict[str, dict[str, str]] = {}
        """The drivers by node and slice."""

    def show_pod(self, name: Name, document: PodDocument | None) -> bool:
        return self.others.put(name, read_ways(document) if document is not None else None)

    def show_claim(self, name: Name, document: ClaimDocument | None) -> bool:
        allocation = ((document or {}).get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or ()
        before = name in self._claims
        if any(is_gpu_driver(str(each.get("driver") or "")) for each in results):
            self._claims.add(name)
        else:
            self._claims.discard(name)
        return before != (name in self._claims)

    def keep_claims(self, names: Collection[Name]) -> bool:
        gone = self._claims - set(names)
        self._claims -= gone
        return bool(gone)

    def show_slice(self, name: Name, document: SliceDocument | None) -> bool:
        spec = (document or {}).get("spec") or {}
        driver = str(spec.get("driver") or "")
        now = (str(spec.get("nodeName") or EVERYWHERE), driver) if is_gpu_driver(driver) else None
        before = self._slices.get(name[1])
        if now == before:
            return False
        if before is not None:
            del self._slices[name[1]]
            del self._drivers[before[0]][name[1]]
        if now is not None:
            self._slices[name[1]] = now
            self._drivers.setdefault(now[0], {})[name[1]] = driver
        return True

    def keep_slices(self, names: Collection[Name]) -> bool:
        gone = self._slices.keys() - {name[1] for name in names}
        for name in gone:
            self.show_slice(("", name), None)
        return bool(gone)

    # --- conclusions

    def driver_on(self, node: str) -> str:
        """Name a DRA driver that may offer GPUs of this node; empty if there is none."""
        here = self._drivers.get(node) or self._drivers.get(EVERYWHERE) or {}
        return min(here.values(), default="")

    def why_reached(self, node: str, runtime_class: str, *, by_requests: bool = True) -> str:
        """Name another owner's pod that reaches the GPUs of a node, and how; empty if none does."""
        for users in (self.others, self.labelled):
            for name, ways in users.on(node):
                counted = ways if by_requests else ways._replace(requested="")
                if why := counted.why(self._claims.__contains__, runtime_class):
                    return f"pod {'/'.join(name)} {why}"
        return ""
