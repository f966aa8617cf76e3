"""
The free resources on the nodes of the pool, and the needs of each job's pods.

Other owners' pods, our existing pods, and our pods that are decided but not created yet are added up; a pod counts
until the kubelet reports its end. Only changed objects are read again, because thousands of jobs wait, and pods
come and go on hundreds of nodes.

:class:`Room` puts the four parts together: the nodes that suit each kind of pod, the free amounts, the requests of jobs,
and the refusals of kube-scheduler.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from dljob.control.situation.ports import UNSCHEDULABLE, Entry
from dljob.core.model import JobId, Node, NodeName
from dljob.core.placement.amounts import WHOLE, Amounts, less
from dljob.core.placement.needs import Needs
from dljob.kube.constraints.foreign import Ways, read_ways
from dljob.kube.constraints.matching import find_repelling, is_wanted
from dljob.kube.constraints.other_pods import OtherObjects
from dljob.kube.constraints.reading import read_traits
from dljob.kube.constraints.requirements import NodeTraits, Wants
from dljob.kube.constraints.usage import PORT, Occupancy, PodUsage, read_usage
from dljob.kube.documents import Json, NodeDocument, PodDocument
from dljob.kube.names import Name
from dljob.kube.unread import Unread
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.jobs.entries import job_id, name_of
from dljob.operator.nodes.nodes import is_ready
from dljob.operator.nodes.placeholders import is_placeholder
from dljob.operator.nodes.requests import Asks, Reach, read_reach
from dljob.operator.podspecs import building
from dljob.operator.proofs import is_bound, job_of, role_of

UNBOUND: Final = "unbound immediate PersistentVolumeClaims"
"""The words by which kube-scheduler refuses a pod on every node until its volumes are bound."""
MOST_KINDS: Final = 5000
"""The most remembered results, each of which may name all nodes."""
REFUSED_S: Final = 300.0
"""The time for which a job avoids a node after kube-scheduler has refused its pod there."""
LONGEST_REASON: Final = 200


class Fit(NamedTuple):
    """The nodes that would take a pod, regardless of its volumes."""

    machines: tuple[NodeTraits, ...]
    refusals: tuple[tuple[str, int], ...]
    """The reasons why the others would not, each with the number of nodes."""


class Fitting:
    """
    Finds the nodes that suit a pod by labels, taints, capacity and volumes, once for equal pods.

    The results hold until a node changes in a way that affects which pods may run there.
    """

    def __init__(self, unread: Unread) -> None:
        self._unread = unread
        self._machines: dict[NodeName, tuple[NodeDocument, NodeTraits | None]] = {}
        self._fits: dict[Wants, Fit] = {}
        self._found: dict[tuple[Wants, tuple[Reach, ...]], Needs] = {}
        """Both hold for these machines. Volumes that every node can reach are left out, so that jobs which
        differ only in these share a result."""
        self._same: dict[tuple[object, ...], Needs] = {}
        """Equal needs are one object."""

    @property
    def names(self) -> Iterable[NodeName]:
        return self._machines.keys()

    def machine(self, node: NodeName) -> NodeTraits | None:
        """Return the traits of a node; ``None`` if they cannot be read."""
        return self._machines[node][1]

    def update(self, nodes: Iterable[tuple[NodeDocument, Node]]) -> bool:
        """Read labels, taints and capacity; return true if a change affects which pods may run where."""
        seen: dict[NodeName, tuple[NodeDocument, NodeTraits | None]] = {}
        is_new = False
        for document, node in nodes:
            known = self._machines.get(node.name)
            if known is None or known[0] is not document:
                before = known[1] if known is not None else None
                read = partial(read_traits, document)
                known = (document, self._unread.attempt(f"Node {node.name}", read, otherwise=None))
                traits = known[1]
                is_new = is_new or (
                    traits is None
                    or before is None
                    or (before.labels, before.taints) != (traits.labels, traits.taints)
                )
            seen[node.name] = known
        is_new = is_new or seen.keys() != self._machines.keys()
        self._machines = seen
        if is_new:
            self._fits.clear()
            self._found.clear()
        return is_new

    def find(self, wants: Wants, reaches: Iterable[Reach]) -> Needs:
        """Return the needs of a pod with these requests and volumes."""
        limits = (reach for reach in reaches if reach.missing or reach.terms is not None)
        kind = (wants, tuple(limits))
        found = self._found.get(kind)
        if found is None:
            if len(self._found) >= MOST_KINDS:
                self._found.clear()
            fit = self._fit(wants)
            within = _sift(fit.machines, lambda machine: _why_out_of_reach(kind[1], machine))
            refusals = tuple(sorted((*fit.refusals, *within.refusals)))
            allowed = frozenset(machine.name for machine in within.machines) if refusals else None
            found = self._found[kind] = self.share(Needs(wants.amounts, allowed, refusals))
        return found

    def _fit(self, wants: Wants) -> Fit:
        fit = self._fits.get(wants)
        if fit is None:
            machines = [machine for _, machine in self._machines.values() if machine is not None]
            if len(self._fits) >= MOST_KINDS:
                self._fits.clear()
            fit = self._fits[wants] = _sift(machines, lambda each: _why_unwanted(wants, each))
        return fit

    def share(self, needs: Needs) -> Needs:
        """Return the one object for equal needs."""
        if len(self._same) > MOST_KINDS:
            self._same.clear()
        return self._same.setdefault((needs.amounts, needs.nodes, needs.refusals), needs)


def _sift(machines: Iterable[NodeTraits], why_not: Callable[[NodeTraits], str]) -> Fit:
    fitting: list[NodeTraits] = []
    refusals: dict[str, int] = {}
    for machine in machines:
        why = why_not(machine)
        if why:
            refusals[why] = refusals.get(why, 0) + 1
        else:
            fitting.append(machine)
    return Fit(tuple(fitting), tuple(sorted(refusals.items())))


def _why_unwanted(wants: Wants, machine: NodeTraits) -> str:
    if not is_wanted(wants, machine):
        return "with labels that its nodeSelector or node affinity does not match"
    taint = find_repelling(wants, machine)
    if taint is not None:
        value = f"={taint.value}" if taint.value else ""
        return f"with the taint {taint.key}{value}:{taint.effect}, which it does not tolerate"
    return ""


def _why_out_of_reach(reaches: Iterable[Reach], machine: NodeTraits) -> str:
    for reach in reaches:
        if reach.missing:
            return f"because the PersistentVolumeClaim {reach.name} does not exist"
        if reach.terms is not None and not is_wanted(Wants((), terms=reach.terms), machine):
            return f"out of reach of the volume of its PersistentVolumeClaim {reach.name}"
    return ""


class FreeAmounts:
    """
    The free resources of each node: the allocatable ones less the requests of all pods there.

    A node is counted again only after a change of the node or its pods.
    """

    def __init__(self, others: Occupancy) -> None:
        self.ours = Occupancy()
        self.decided = Occupancy()
        """Pods that are decided but not bound yet."""
        self._all = (self.ours, self.decided, others)
        self._ports: set[str] = set()
        """Host ports that a job requests; every node has each once."""
        self._counted: dict[str, tuple[Node, Json, Node]] = {}

    def learn_ports(self, asks: Asks) -> None:
        """Count the host ports of a job on every node from now on."""
        ports = {name for name, _ in asks.wants.amounts if name.startswith(PORT)}
        if not ports <= self._ports:
            self._ports |= ports
            self._counted.clear()

    def count(self, nodes: Iterable[tuple[Json, Node]], *, fitting: Fitting) -> tuple[Node, ...]:
        """Return the nodes with their free resources; an unchanged node stays the same object."""
        dirty = {name for each in self._all for name in each.dirty}
        for each in self._all:
            each.dirty.clear()
        return tuple(
            self._count(document, node, dirty=dirty, fitting=fitting) for document, node in nodes
        )

    def _count(self, document: Json, node: Node, *, dirty: set[str], fitting: Fitting) -> Node:
        before = self._counted.get(node.name)
        if before and before[0] is node and before[1] is document and node.name not in dirty:
            return before[2]
        counted, machine = node, fitting.machine(node.name)
        if machine is not None and machine.allocatable:
            capacity = {**machine.allocatable, **dict.fromkeys(self._ports, WHOLE)}
            free: Amounts = capacity
            for each in self._all:
                free = less(free, each.on(node.name))
            left = {name: free[name] for name in capacity}
            counted = replace(node, free=left, capacity=capacity)
        if before and before[2] == counted:
            counted = before[2]
        self._counted[node.name] = (node, document, counted)
        return counted


class JobRequests:
    """The requests of the pods of each unfinished job, and the nodes that can reach their volumes."""

    def __init__(self, others: OtherObjects, asks_of: Callable[[Name], Asks | None]) -> None:
        self._others = others
        self._asks_of = asks_of
        """Returns the requests of a job's pods once they are known."""
        self._asks: dict[JobId, Asks] = {}
        self._users: dict[tuple[str, str], set[JobId]] = {}
        """The jobs of each claim."""
        # A live view of the keys.
        others.claimed = self._users.keys()
        others.moved.clear()

    @property
    def jobs(self) -> Iterable[JobId]:
        """The jobs with known requests."""
        return self._asks.keys()

    def get(self, job: JobId) -> Asks | None:
        return self._asks.get(job)

    def update(self, job: JobId, name: Name) -> Asks | None:
        """Read the requests of a job again; the former ones count until there are new ones."""
        asks = self._asks_of(name) or self._asks.get(job)
        if asks is not None:
            self._replace(job, asks)
        return asks

    def forget(self, job: JobId) -> None:
        """Forget a job that gets no more pods."""
        if job in self._asks:
            self._replace(job, None)

    def _replace(self, job: JobId, asks: Asks | None) -> None:
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

    def take_moved(self) -> set[JobId]:
        """Return the jobs with a claim that was bound or moved since the last call."""
        moved = self._others.moved
        jobs = {job for claim in moved for job in self._users.get(claim, ())}
        moved.clear()
        return jobs

    def is_bound(self, job: JobId) -> bool:
        """True if every claim of a job has its volume."""
        asks = self._asks.get(job)
        return asks is not None and self._others.bound.issuperset(asks.claims)

    def reaches(self, asks: Asks) -> Iterable[Reach]:
        """Yield for each claimed volume from where it can be reached."""
        for claim in asks.claims:
            volume = self._others.claims.get(claim)
            yield read_reach(claim, volume, terms=self._others.volumes.get(volume or ""))


class Refusals:
    """
    The nodes on which kube-scheduler recently refused the pods of a job, each with its message.

    DLJob does not evaluate affinity to other pods and topology, so the job avoids such a node for some time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._refused: dict[JobId, dict[NodeName, tuple[float, str]]] = {}
        """The end of each refusal, and the reason."""

    def note(self, job: JobId, node: NodeName, *, said: str) -> None:
        until = self._clock() + REFUSED_S
        self._refused.setdefault(job, {})[node] = (until, said[:LONGEST_REASON])

    def forget(self, job: JobId) -> None:
        """Let a job try every node again."""
        self._refused.pop(job, None)

    def forget_node(self, job: JobId, node: NodeName) -> None:
        """Forget the refusal of a node that has a pod of the job now."""
        self._refused.get(job, {}).pop(node, None)

    def expire(self) -> set[JobId]:
        """Forget the refusals that have ended, and return their jobs."""
        now, jobs = self._clock(), set()
        for job, nodes in list(self._refused.items()):
            left = {node: each for node, each in nodes.items() if each[0] > now}
            if len(left) < len(nodes):
                jobs.add(job)
                self._refused[job] = left
            if not left:
                del self._refused[job]
        return jobs

    def of(self, job: JobId) -> dict[NodeName, str]:
        """Return the nodes that a job avoids, each with the reason."""
        return {node: said for node, (_, said) in self._refused.get(job, {}).items()}


def leave_out(needs: Needs, refused: Mapping[NodeName, str], *, nodes: Iterable[NodeName]) -> Needs:
    """Remove the refused nodes from a job's needs."""
    allowed = needs.nodes if needs.nodes is not None else frozenset(nodes)
    said: dict[str, int] = dict(needs.refusals)
    for node, why in refused.items():
        if node in allowed:
            reason = f"that kube-scheduler refused recently ({why})"
            said[reason] = said.get(reason, 0) + 1
    left = allowed - refused.keys()
    return Needs(needs.amounts, frozenset(left), tuple(sorted(said.items())))


def read_refusal(document: Json) -> str:
    """Return kube-scheduler's reason for not binding a pod; empty if it gives none."""
    for condition in (document.get("status") or {}).get("conditions") or ():
        is_it = condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        if is_it and condition.get("reason") == UNSCHEDULABLE:
            return str(condition.get("message") or UNSCHEDULABLE)
    return ""


class Room:
    """One for the life of a leader."""

    def __init__(
        self,
        mirrors: Mirrors,
        asks_of: Callable[[Name], Asks | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mirrors = mirrors
        self._others = mirrors.others
        self._free = FreeAmounts(mirrors.others.pods)
        self._whose: dict[Name, JobId] = {}
        """The jobs of our pods."""
        self._needs: Mapping[JobId, Needs] = {}
        self._refusals = Refusals(clock)
        self._doubtful: set[JobId] = set()
        """Jobs whose pod kube-scheduler refused for a passing reason; the next cycle reads the pod again."""
        self._unread = Unread()
        self._fitting = Fitting(self._unread)
        mirrors.collect_changes()
        self._requests = JobRequests(self._others, asks_of)

    @property
    def needs(self) -> Mapping[JobId, Needs]:
        """The known needs of each job's pods; a new object after each change."""
        return self._needs

    def settle(
        self,
        entries: Mapping[JobId, Entry],
        changed: Iterable[Name],
        *,
        nodes: Iterable[tuple[NodeDocument, Node]],
    ) -> tuple[Node, ...]:
        """Take in the changes, and return the nodes with their free resources."""
        there = list(nodes)
        touched = {job_id(name) for name in changed} | self._see_pods() | self._doubtful
        self._doubtful = set()
        for job in touched:
            self._see_job(job, entries.get(job))
        self._find_needs(touched, entries, fits_changed=self._fitting.update(there))
        return self._free.count(there, fitting=self._fitting)

    # --- pods

    def _see_pods(self) -> set[JobId]:
        """Take in the changes of our pods, and return their jobs."""
        whose = set()
        for name in self._mirrors.changed_pods:
            document = self._mirrors.pods.get(name)
            usage = self._unread.attempt(f"Pod {name}", partial(_usage, document), otherwise=None)
            self._free.ours.put(name, (usage,) if usage is not None else ())
            ways = self._unread.attempt(f"Pod {name}", partial(_ways, document), otherwise=None)
            self._others.reaching.labelled.put(name, ways)
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
            self._requests.forget(job)
            self._free.decided.drop(name)
            self._refusals.forget(job)
            return
        asks = self._requests.update(job, name)
        if asks is None:
            return
        self._free.learn_ports(asks)
        booked = {booking.node: booking.serial for booking in entry.status.pods}
        placed = entry.status.placement.nodes if entry.status.placement is not None else ()
        coming = [
            PodUsage(node, asks.amounts)
            for node in {*placed, *booked}
            if not self._is_there(job, node, serial=booked.get(node))
        ]
        self._free.decided.put(name, sorted(coming))

    def _is_there(self, job: JobId, node: NodeName, *, serial: int | None) -> bool:
        """True if the pod is bound to its node, or has ended."""
        if serial is None:
            return False
        name = name_of(job)
        pod_name = building.trainer_name(name.name, serial)
        document = self._mirrors.pods.get(Name(name.namespace, pod_name))
        if document is None:
            return False
        if is_bound(document):
            self._refusals.forget_node(job, node)
            return True
        self._note_refusal(job, node, said=read_refusal(document))
        return (document.get("status") or {}).get("phase") in ("Succeeded", "Failed")

    def _note_refusal(self, job: JobId, node: NodeName, *, said: str) -> None:
        """Note a refusal, unless its reason is passing."""
        if not said:
            return
        document = self._mirrors.nodes.get(Name("", node))
        # A kubelet that restarts is not ready for a moment; then the pod may be bound after all.
        is_restarting = document is not None and not is_ready(document)
        # kube-scheduler may not have tried the pod again since its volumes were bound.
        is_outdated = UNBOUND in said and self._requests.is_bound(job)
        if is_restarting or is_outdated:
            self._doubtful.add(job)
            return
        self._refusals.note(job, node, said=said)

    # --- needs

    def _find_needs(
        self, touched: set[JobId], entries: Mapping[JobId, Entry], *, fits_changed: bool
    ) -> None:
        moved = self._requests.take_moved()
        for job in moved:
            # kube-scheduler may have refused the pods because of this claim, and other nodes may suit them now.
            self._refusals.forget(job)
        jobs = touched | moved | self._refusals.expire()
        if fits_changed:
            jobs.update(self._requests.jobs)
        changed = {}
        for job in jobs:
            needs = self._needs_of(job) if job in entries else None
            if needs is not self._needs.get(job):
                changed[job] = needs
        if changed:
            merged = {**self._needs, **changed}
            self._needs = {job: needs for job, needs in merged.items() if needs is not None}

    def _needs_of(self, job: JobId) -> Needs | None:
        asks = self._requests.get(job)
        if asks is None:
            return None
        found = self._fitting.find(asks.wants, self._requests.reaches(asks))
        refused = self._refusals.of(job)
        if not refused:
            return found
        return self._fitting.share(leave_out(found, refused, nodes=self._fitting.names))


def _usage(document: PodDocument | None) -> PodUsage | None:
    return read_usage(document) if document is not None else None


def _ways(document: PodDocument | None) -> Ways | None:
    """Return how a pod reaches GPUs that has our label but is not of our jobs."""
    if document is None or role_of(document) or is_placeholder(document):
        return None
    return read_ways(document)


def _job_of(name: Name, document: Json) -> JobId | None:
    job = job_of(document)
    return job_id(Name(name.namespace, job)) if job else None
