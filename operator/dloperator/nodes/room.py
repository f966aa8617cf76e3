"""
What is free on the nodes of the pool for new pods, and what the pods of each job need of a node.

The pods of others, ours that are there, and ours that are only decided yet are added up; a pod counts
until the kubelet says that it has ended. What changed is looked at, and nothing else: thousands of
jobs wait, and hundreds of nodes have pods that come and go.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from dlcontrol.situation.ports import UNSCHEDULABLE, Entry
from dlcore.model import JobId, Node, NodeName
from dlcore.placement.amounts import WHOLE, Amounts, less
from dlcore.placement.needs import Needs
from dlkube.constraints.foreign import Ways, read_ways
from dlkube.constraints.members import Machine, Wants
from dlkube.constraints.reading import read_machine
from dlkube.constraints.usage import (
    PORT,
    Lodger,
    Occupancy,
    read_lodger,
)
from dlkube.mirror import Mirrors
from dlkube.names import Name
from dlkube.unread import Unread
from dloperator.jobs.entries import job_id, name_of
from dloperator.nodes.nodes import (
    is_bound,
    is_ready,
    job_of,
    role_of,
)
from dloperator.nodes.placeholders import is_placeholder
from dloperator.nodes.requests import (
    Asks,
    Fit,
    Reach,
    find_fit,
    find_needs,
    read_reach,
)
from dloperator.podspecs import building

Json = Mapping[str, Any]

REFUSED_S: Final = 300.0
"""For so long a job does not come back to a node that kube-scheduler did not let its pod on."""
LONGEST_REASON: Final = 200
MOST_KINDS: Final = 5000
"""Of needs; and of what pods want, each of which may name all nodes."""


class Lodging:
    """Keeps the account, for as long as we lead."""

    def __init__(
        self,
        mirrors: Mirrors,
        asks_of: Callable[[Name], Asks | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mirrors = mirrors
        self._neighbours = mirrors.neighbourhood
        self._asks_of = asks_of
        """What the pods of a job ask, once that is known."""
        self._clock = clock
        self._ours = Occupancy()
        self._decided = Occupancy()
        """Pods that are decided, and are not on their node yet."""
        self._whose: dict[Name, JobId] = {}
        """Of which jobs our pods are."""
        self._asks: dict[JobId, Asks] = {}
        """Of jobs that may yet have pods."""
        self._users: dict[tuple[str, str], set[JobId]] = {}
        """Which of these jobs have which claim."""
        self._machines: dict[NodeName, tuple[Json, Machine | None]] = {}
        self._fits: dict[Wants, Fit] = {}
        self._found: dict[tuple[Wants, tuple[Reach, ...]], Needs] = {}
        """Both hold for these machines. Volumes that every node can reach are left out: where each
        job has its own, what follows is the same."""
        self._same: dict[tuple[object, ...], Needs] = {}
        """Needs by what they say, so that equal ones are one."""
        self._needs: Mapping[JobId, Needs] = {}
        self._refused: dict[JobId, dict[NodeName, tuple[float, str]]] = {}
        """Until when, and what kube-scheduler said."""
        self._doubtful: set[JobId] = set()
        """Jobs of which it said so while the node was not ready, so that it is looked at again."""
        self._ports: set[str] = set()
        self._nodes: dict[NodeName, tuple[Node, Json, Node]] = {}
        self._unread = Unread()
        mirrors.attend()
        self._neighbours.claimed = self._users.keys()
        self._neighbours.moved.clear()

    @property
    def needs(self) -> Mapping[JobId, Needs]:
        """What the pods of each job need, as far as it is known; another object if it changed."""
        return self._needs

    def settle(
        self,
        entries: Mapping[JobId, Entry],
        changed: Iterable[Name],
        nodes: Iterable[tuple[Json, Node]],
    ) -> tuple[Node, ...]:
        """Take in what has changed, and return these nodes with what is free on them."""
        there = list(nodes)
        touched = {job_id(name) for name in changed} | self._see_pods() | self._doubtful
        self._doubtful = set()
        for job in touched:
            self._see_job(job, entries.get(job))
        self._find_needs(touched, entries, fits_changed=self._see_machines(there))
        dirty = self._ours.dirty | self._decided.dirty | self._neighbours.pods.dirty
        for each in (self._ours, self._decided, self._neighbours.pods):
            each.dirty.clear()
        return tuple(self._counted(document, node, dirty) for document, node in there)

    # --- pods

    def _see_pods(self) -> set[JobId]:
        """Take in what became of our pods, and return whose they are."""
        whose = set()
        for name in self._mirrors.changed_pods:
            document = self._mirrors.pods.get(name)
            lodger = self._unread.attempt(f"Pod {name}", partial(_lodger, document), None)
            self._ours.put(name, (lodger,) if lodger is not None else ())
            ways = self._unread.attempt(f"Pod {name}", partial(_ways, document), None)
            self._neighbours.reaching.labelled.put(name, ways)
            job = _job_of(name, document) if document is not None else self._whose.pop(name, None)
            if job is None:
                continue
            whose.add(job)
            if document is not None:
                self._whose[name] = job
        self._mirrors.changed_pods.clear()
        return whose

    def _see_job(self, job: JobId, entry: Entry | None) -> None:
        """Count the pods of a job that are decided but not on their node."""
        name = name_of(job)
        if entry is None or (entry.status.is_final and not entry.status.pods):
            self._take_asks(job, None)
            self._decided.drop(name)
            self._refused.pop(job, None)
            return
        asks = self._asks_of(name) or self._asks.get(job)
        if asks is None:
            return
        self._take_asks(job, asks)
        booked = {booking.node: booking.serial for booking in entry.status.pods}
        placed = entry.status.placement.nodes if entry.status.placement is not None else ()
        coming = [
            Lodger(node, asks.amounts)
            for node in {*placed, *booked}
            if not self._is_there(job, node, booked.get(node))
        ]
        self._decided.put(name, sorted(coming))

    def _take_asks(self, job: JobId, asks: Asks | None) -> None:
        before = self._asks.get(job)
        if asks is before:
            return
        for claim in set(before.claims) if before is not None else ():
            self._users[claim].discard(job)
            if not self._users[claim]:
                del self._users[claim]
        if asks is None:
            del self._asks[job]
            return
        self._asks[job] = asks
        for claim in asks.claims:
            self._users.setdefault(claim, set()).add(job)

    def _is_there(self, job: JobId, node: NodeName, serial: int | None) -> bool:
        """Whether the pod is counted on its node, or will not be on one any more."""
        if serial is None:
            return False
        name = name_of(job)
        pod_name = building.trainer_name(name.name, serial)
        document = self._mirrors.pods.get(Name(name.namespace, pod_name))
        if document is None:
            return False
        if is_bound(document):
            self._refused.get(job, {}).pop(node, None)
            return True
        self._note_refusal(job, node, _refusal(document))
        return (document.get("status") or {}).get("phase") in ("Succeeded", "Failed")

    def _note_refusal(self, job: JobId, node: NodeName, said: str) -> None:
        """Remember for some time what kube-scheduler says of a pod."""
        if not said:
            return
        document = self._mirrors.nodes.get(Name("", node))
        if document is not None and not is_ready(document):
            # A kubelet that is started anew is not ready for a moment; then the pod may come after all.
            self._doubtful.add(job)
            return
        until = self._clock() + REFUSED_S
        self._refused.setdefault(job, {})[node] = (until, said[:LONGEST_REASON])

    # --- needs

    def _see_machines(self, nodes: Iterable[tuple[Json, Node]]) -> bool:
        """Take in what the nodes are like; tell whether that matters to who may be on them."""
        seen: dict[NodeName, tuple[Json, Machine | None]] = {}
        is_new = False
        for document, node in nodes:
            known = self._machines.get(node.name)
            if known is None or known[0] is not document:
                before = known[1] if known is not None else None
                read = partial(read_machine, document)
                known = (document, self._unread.attempt(f"Node {node.name}", read, None))
                is_new = is_new or known[1] is None or before is None or _differ(before, known[1])
            seen[node.name] = known
        is_new = is_new or seen.keys() != self._machines.keys()
        self._machines = seen
        return is_new

    def _see_claims(self) -> set[JobId]:
        """Return of which jobs a claim can be reached from elsewhere than before."""
        jobs = {job for claim in self._neighbours.moved for job in self._users.get(claim, ())}
        self._neighbours.moved.clear()
        return jobs

    def _end_refusals(self) -> set[JobId]:
        """Return which jobs may be again where they were refused."""
        now, jobs = self._clock(), set()
        for job, nodes in list(self._refused.items()):
            left = {node: each for node, each in nodes.items() if each[0] > now}
            if len(left) < len(nodes):
                jobs.add(job)
                self._refused[job] = left
            if not left:
                del self._refused[job]
        return jobs

    def _find_needs(
        self, touched: set[JobId], entries: Mapping[JobId, Entry], *, fits_changed: bool
    ) -> None:
        if fits_changed:
            self._fits.clear()
            self._found.clear()
        jobs = touched | self._see_claims() | self._end_refusals()
        if fits_changed:
            jobs |= self._asks.keys()
        changed = {}
        for job in jobs:
            needs = self._needs_of(job) if job in entries else None
            if needs is not self._needs.get(job):
                changed[job] = needs
        if changed:
            merged = {**self._needs, **changed}
            self._needs = {job: needs for job, needs in merged.items() if needs is not None}

    def _needs_of(self, job: JobId) -> Needs | None:
        asks = self._asks.get(job)
        if asks is None:
            return None
        found = self._find(asks)
        refused = {node: why for node, (_, why) in self._refused.get(job, {}).items()}
        return self._share(_without(found, refused, self._machines.keys())) if refused else found

    def _find(self, asks: Asks) -> Needs:
        places = (self._reach(claim) for claim in asks.claims)
        kind = (asks.wants, tuple(place for place in places if not place.is_anywhere))
        found = self._found.get(kind)
        if found is None:
            self._learn_ports(asks)
            if len(self._found) >= MOST_KINDS:
                self._found.clear()
            found = self._found[kind] = self._share(
                find_needs(asks.wants, self._fit(asks), kind[1])
            )
        return found

    def _fit(self, asks: Asks) -> Fit:
        fit = self._fits.get(asks.wants)
        if fit is None:
            machines = [machine for _, machine in self._machines.values() if machine is not None]
            if len(self._fits) >= MOST_KINDS:
                self._fits.clear()
            fit = self._fits[asks.wants] = find_fit(asks.wants, machines)
        return fit

    def _reach(self, claim: Name) -> Reach:
        volume = self._neighbours.claims.get(claim)
        return read_reach(claim, volume, self._neighbours.volumes.get(volume or ""))

    def _share(self, needs: Needs) -> Needs:
        if len(self._same) > MOST_KINDS:
            self._same.clear()
        return self._same.setdefault((needs.amounts, needs.nodes, needs.refusals), needs)

    def _learn_ports(self, asks: Asks) -> None:
        ports = {name for name, _ in asks.wants.amounts if name.startswith(PORT)}
        if not ports <= self._ports:
            self._ports |= ports
            self._nodes.clear()

    # --- nodes

    def _counted(self, document: Json, node: Node, dirty: set[str]) -> Node:
        known = self._nodes.get(node.name)
        if known and known[0] is node and known[1] is document and node.name not in dirty:
            return known[2]
        counted = self._count(node)
        if known and known[2] == counted:
            counted = known[2]
        self._nodes[node.name] = (node, document, counted)
        return counted

    def _count(self, node: Node) -> Node:
        _, machine = self._machines[node.name]
        if machine is None or not machine.allocatable:
            return node
        capacity = {**machine.allocatable, **dict.fromkeys(self._ports, WHOLE)}
        free: Amounts = capacity
        for each in (self._ours, self._decided, self._neighbours.pods):
            free = less(free, each.on(node.name))
        return replace(node, free={name: free[name] for name in capacity}, capacity=capacity)


def _lodger(document: Json | None) -> Lodger | None:
    return read_lodger(document) if document is not None else None


def _ways(document: Json | None) -> Ways | None:
    """By which ways a pod reaches GPUs that bears our label and is none of ours."""
    if document is None or role_of(document) or is_placeholder(document):
        return None
    return read_ways(document)


def _differ(one: Machine, other: Machine | None) -> bool:
    return other is None or (one.labels, one.taints) != (other.labels, other.taints)


def _without(needs: Needs, refused: Mapping[NodeName, str], nodes: Iterable[NodeName]) -> Needs:
    """Leave out nodes on which kube-scheduler did not let the pod lately."""
    allowed = needs.nodes if needs.nodes is not None else frozenset(nodes)
    said: dict[str, int] = dict(needs.refusals)
    for node, why in refused.items():
        if node in allowed:
            reason = f"that kube-scheduler refused recently ({why})"
            said[reason] = said.get(reason, 0) + 1
    left = allowed - refused.keys()
    return Needs(needs.amounts, frozenset(left), tuple(sorted(said.items())))


def _refusal(document: Json) -> str:
    """Say why kube-scheduler finds no place for a pod; empty if it does not say so."""
    for condition in (document.get("status") or {}).get("conditions") or ():
        is_it = condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        if is_it and condition.get("reason") == UNSCHEDULABLE:
            return str(condition.get("message") or UNSCHEDULABLE)
    return ""


def _job_of(name: Name, document: Json) -> JobId | None:
    job = job_of(document)
    return job_id(Name(name.namespace, job)) if job else None
