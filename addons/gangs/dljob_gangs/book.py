"""
Keeps the watched objects as the values of decisions.

Only changed objects are read again, and the usage of nodes is updated as pods come and go, because kube-scheduler
waits for an answer while thousands of pods run.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from dljob.core.placement.amounts import Amounts, less, total
from dljob.kube.constraints.reading import read_traits
from dljob.kube.constraints.requirements import NodeTraits
from dljob.kube.documents import Json, NodeDocument
from dljob.kube.names import Name
from dljob.kube.unread import Unread
from dljob.kube.watches.mirror import Mirror
from dljob_gangs.members import GangName, Member, World, Wrong
from dljob_gangs.reading import Occupant, is_of_a_gang, read_member, read_occupant

T = TypeVar("T")

_KEPT_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "labels",
    "annotations",
    "creationTimestamp",
    "deletionTimestamp",
)
_KEPT_SPEC = (
    "nodeName",
    "schedulerName",
    "priority",
    "nodeSelector",
    "affinity",
    "tolerations",
    "overhead",
    "resources",
    "schedulingGates",
    "containers",
    "initContainers",
)
_KEPT_CONTAINER = ("name", "resources", "restartPolicy")


def trimmed(pod: Json) -> dict[str, Any]:
    """Return the parts of a pod that are read here; thousands of pods are kept."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    kept = {key: spec[key] for key in _KEPT_SPEC if key in spec}
    for key in ("containers", "initContainers"):
        kept[key] = [_chosen(each, _KEPT_CONTAINER) for each in spec.get(key) or ()]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _chosen(metadata, _KEPT_METADATA),
        "spec": kept,
        "status": {"phase": (pod.get("status") or {}).get("phase")},
    }


def _chosen(document: Json, keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: document[key] for key in keys if key in document}


_NEITHER: tuple[Member | None, Wrong | None] = (None, None)


class Book:
    """The mirrors of nodes and pods, and the values that are read from them."""

    def __init__(self, scheduler: str, changed: Callable[[], None] = lambda: None) -> None:
        self._scheduler = scheduler
        """``changed`` is called after each change."""
        self._changed = changed
        self.pods: Mirror[Json] = Mirror(self._pod_changed)
        self.nodes: Mirror[NodeDocument] = Mirror(self._node_changed)
        self.version = 0
        """The number of changes so far."""
        self.wrong: dict[Name, Wrong] = {}
        """Pods with an invalid statement about their gang."""
        self.members: dict[Name, Member] = {}
        self._machines: Mapping[str, NodeTraits] = {}
        self._occupants: dict[Name, Occupant] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._tenants: dict[str, Counter[str]] = {}
        self._world: tuple[int, World] | None = None
        self._unread = Unread()

    def world(self) -> World:
        """Return the input of a decision; the same object until something changes."""
        if self._world is None or self._world[0] != self.version:
            self._world = (self.version, self._make_world())
        return self._world[1]

    def _make_world(self) -> World:
        gangs: dict[GangName, list[Member]] = {}
        for member in self.members.values():
            gangs.setdefault(member.gang, []).append(member)
        free: dict[str, Amounts] = {
            name: less(machine.allocatable, self._used.get(name, {}))
            for name, machine in self._machines.items()
        }
        return World(
            self._machines,
            free,
            {node: frozenset(tenants) for node, tenants in self._tenants.items()},
            {
                gang: tuple(sorted(members, key=lambda each: (each.created, each.name)))
                for gang, members in gangs.items()
            },
        )

    # --- what has changed

    def _node_changed(self, name: Name, _is_news: bool) -> None:  # noqa: FBT001 - as Mirror has it
        document = self.nodes.get(name)
        read = partial(_read_machine, document)
        machine = self._unread.attempt(f"Node {name}", read, otherwise=None)
        if self._machines.get(name.name) == machine:
            return  # A heartbeat.
        machines = {each: it for each, it in self._machines.items() if each != name.name}
        if machine is not None:
            machines[name.name] = machine
        self._machines = machines
        self._note()

    def _pod_changed(self, name: Name, _is_news: bool) -> None:  # noqa: FBT001 - as Mirror has it
        document = self.pods.get(name)
        # The requests of a pod count even if its statements about its gang are invalid.
        read = partial(_read_occupant, document)
        occupant = self._unread.attempt(f"Pod {name}", read, otherwise=None)
        belongs = partial(_read_pod, document, self._scheduler)
        member, wrong = self._unread.attempt(f"The gang of Pod {name}", belongs, otherwise=_NEITHER)
        before = (self._occupants.get(name), self.members.get(name), self.wrong.get(name))
        if before == (occupant, member, wrong):
            return
        self._settle(name, before[0], after=occupant)
        _put(self.members, name, value=member)
        _put(self.wrong, name, value=wrong)
        self._note()

    def _note(self) -> None:
        self.version += 1
        self._changed()

    def _settle(self, name: Name, before: Occupant | None, *, after: Occupant | None) -> None:
        """Replace the usage of a pod on its node."""
        _put(self._occupants, name, value=after)
        if before is not None:
            self._used[before.node] = less(self._used[before.node], before.amounts)
            self._tenants[before.node] -= Counter([before.tenant] if before.tenant else [])
        if after is not None:
            self._used[after.node] = total((self._used.get(after.node, {}), after.amounts))
            self._tenants.setdefault(after.node, Counter()).update(
                [after.tenant] if after.tenant else []
            )


def _read_machine(document: NodeDocument | None) -> NodeTraits | None:
    return read_traits(document) if document is not None else None


def _read_occupant(document: Json | None) -> Occupant | None:
    return read_occupant(document) if document is not None else None


def _read_pod(document: Json | None, scheduler: str) -> tuple[Member | None, Wrong | None]:
    if document is None or not is_of_a_gang(document):
        return None, None
    read = read_member(document, scheduler)
    return (None, read) if isinstance(read, Wrong) else (read, None)


def _put(there: dict[Name, T], name: Name, *, value: T | None) -> None:
    if value is None:
        there.pop(name, None)
    else:
        there[name] = value
