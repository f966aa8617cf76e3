"""Kubernetes without gangs: pods are bound one by one, and part of a job may hold GPUs idle."""

import hashlib
import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from dljob.core.checking import Law
from dljob.core.contract import Decision, Share, View
from dljob.core.model import Cause, CauseCode, Cluster, JobState, NodeName
from dljob.core.options import check
from dljob.core.placement.counting import count_nodes, name_type
from dljob.core.placement.free_gpus import Room
from dljob.core.placement.largest import largest_possible
from dljob.core.policies.common import ordering
from dljob_lab.policies.common.nodes import choices_of_types, nodes_of

_ITS_TURN = Cause(CauseCode.ITS_TURN)


@dataclass(frozen=True, slots=True)
class KubePods:
    """
    Every GPU that a job requests is a pod of its own, bound by itself to the emptiest node.

    The task-level baseline of DRAGON, sections 2.2 and 2.3: the default scheduler of Kubernetes is
    "a FIFO queue" of pods and "binds PODs to workers in a round-robin manner"; it spreads them
    evenly, and "resources might be wasted when a training task cannot start computing before all
    its peer tasks are launched". So a job may hold GPUs without progress until its last pod is
    bound, and several such jobs may keep each other waiting for ever: that is the harm to show.

    Where the paper leaves room: pods are bound in order of the creation of their jobs. The pods of
    a job that may not mix types follow the first one; limits on nodes are kept as affinities that
    never lead where the whole job would not fit even if the cluster were empty.

    Coach, section 4.4, describes the same scheduler for jobs that are requested at one time: any of
    their pods may come first. With ``drawn`` the order of all unbound pods is drawn from the seed.
    By its section 4.1 a job whose pods are not all there may begin with those that are; with
    ``partial`` a job trains with any of its optional numbers, and has the rest bound later.
    """

    name: ClassVar[str] = "kube-pods"
    paper: ClassVar[str] = "DRAGON, 2.2 and 2.3; Coach, 4.1 and 4.4 (baseline)"
    needs: ClassVar[str] = "nothing"
    breaks: ClassVar[frozenset[Law]] = frozenset({Law.WHOLE_GANG})

    drawn: bool = False
    """True if unbound pods come in an order that is drawn, and not in that of their jobs."""
    partial: bool = False
    """True if a job trains with some of its pods where one of its optional numbers allows that."""

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        room = Room(view.cluster, [s.placement for s in view.running if s.placement is not None])
        shares = ordering.keep_all(view.running)
        incomplete = [state for state in view.running if self._lacks_pods(state, view)]
        jobs = sorted([*incomplete, *view.pending], key=lambda state: state.order)
        for job in self._bind_all(room, jobs, view=view):
            shares[job.state.id] = job.share(view, partial=self.partial)
        return Decision(shares, wait=ordering.NO_ROOM)

    def _lacks_pods(self, state: JobState, view: View) -> bool:
        if state.placement is None or not self.partial:
            return is_incomplete(state)
        # The cluster may have become too small for its present GPUs.
        most = min(state.job.gpus.requested, largest_possible(state, view.cluster))
        return any(state.placement.gpus < option <= most for option in state.job.gpus.options)

    def _bind_all(self, room: Room, states: Iterable[JobState], *, view: View) -> list["_Pods"]:
        """Bind as many pods as there is room for, and return their jobs."""
        if not self.drawn:
            jobs = (_Pods(state, view) for state in states)
            return [job for job in jobs if room.total > 0 and job.bind_all(room)]
        unbound = [_Pods(state, view) for state in states]
        queue = [(pods, number) for pods in unbound for number in range(pods.missing)]
        queue.sort(key=lambda pod: _lot(view, pod[0].state, number=pod[1]))
        return list({id(pods): pods for pods, _ in queue if pods.bind(room)}.values())


def _lot(view: View, state: JobState, *, number: int) -> bytes:
    """The key of the drawn order; the same in every process, which Python's own hash is not."""
    return hashlib.sha256(f"{view.seed}/{view.now}/{state.id}/{number}".encode()).digest()


def is_incomplete(state: JobState) -> bool:
    """Return whether a job holds GPUs but fewer than it needs to train."""
    return state.placement is not None and state.gang > state.placement.gpus


class _Pods:
    """The pods of a job while they are bound, each with one GPU."""

    def __init__(self, state: JobState, view: View) -> None:
        self.state = state
        held = state.placement
        self.gang = state.gang or ordering.count_requested(state, view)
        self.nodes = count_nodes(held) if held is not None else {}
        self.bound = sum(self.nodes.values())
        self._cluster = view.cluster

    @cached_property
    def _sites(self) -> list["_Site"]:
        """Return where the job could become whole; made when its first pod is bound."""
        state, cluster = self.state, self._cluster
        choices = choices_of_types(state, cluster)
        return [_Site(state, kinds, cluster=cluster, gang=self.gang) for kinds in choices]

    @property
    def missing(self) -> int:
        """Return how many of them are not bound."""
        return max(0, self.gang - self.bound)

    def bind_all(self, room: Room) -> bool:
        """Bind as many of the missing pods as there is room for; return whether there was any."""
        before = self.bound
        while self.missing and self.bind(room):
            pass
        return self.bound > before

    def bind(self, room: Room) -> bool:
        """Bind one pod to the emptiest node, if any has room for it."""
        state, nodes = self.state, self.nodes
        feasible = (site.iter_feasible(room, nodes) for site in self._sites)
        node = max(
            itertools.chain.from_iterable(feasible), key=room.nodes.__getitem__, default=None
        )
        if node is None:
            return False
        # For any number of GPUs on a node, one pod there requests the other resources.
        room.take({node: 1}, None if node in nodes else state)
        nodes[node] = nodes.get(node, 0) + 1
        self.bound += 1
        return True

    def share(self, view: View, *, partial: bool) -> Share:
        """The GPUs that the job holds now, and the number that it waits for before it trains."""
        trains = self.bound == self.gang or (partial and self.bound in self.state.job.gpus.options)
        kind = name_type(view.cluster, self.nodes)
        return Share(self.bound, _ITS_TURN, kind, self.nodes, gang=0 if trains else self.gang)


class _Site:
    """The nodes of one choice of types that a job may be on, and whether it can be whole there."""

    def __init__(
        self, state: JobState, kinds: tuple[str, ...], *, cluster: Cluster, gang: int
    ) -> None:
        self.state = state
        self.gang = gang
        self.max_nodes = state.job.gpus.max_nodes
        there = nodes_of(state, kinds, cluster=cluster)
        self.sizes = {node: len(cluster.usable[node]) for node in there}

    @cached_property
    def _widest_first(self) -> list[NodeName]:
        return sorted(self.sizes, key=self.sizes.__getitem__, reverse=True)

    @cached_property
    def _total(self) -> int:
        return sum(self.sizes.values())

    def iter_feasible(self, room: Room, nodes: Collection[NodeName]) -> Iterator[NodeName]:
        """The nodes with room for a pod from which the job can still become whole some day."""
        if not all(node in self.sizes for node in nodes):
            return
        for node in self.sizes:
            if room.nodes[node] <= 0 or not (node in nodes or room.takes_pod(self.state, node)):
                continue
            if self._can_complete({*nodes, node}):
                yield node

    def _can_complete(self, nodes: set[NodeName]) -> bool:
        """Return whether a job on these nodes, and some more of those it may use, could ever be whole."""
        if self.max_nodes is None:
            return self._total >= self.gang
        if len(nodes) > self.max_nodes:
            return False
        others = (node for node in self._widest_first if node not in nodes)
        more = itertools.islice(others, self.max_nodes - len(nodes))
        return sum(self.sizes[node] for node in (*nodes, *more)) >= self.gang
