"""Kubernetes without gangs: pods are bound one by one, and part of a job may hold GPUs idle."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from dlcore.checking import Law
from dlcore.contract import Decision, Share, View
from dlcore.model import Cause, CauseCode, JobState, NodeName
from dlcore.policies import ordering
from dlcore.rooms import Room, count_nodes, name_type

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
    """

    name: ClassVar[str] = "kube-pods"
    paper: ClassVar[str] = "DRAGON, 2.2 and 2.3 (baseline)"
    needs: ClassVar[str] = "nothing"
    breaks: ClassVar[frozenset[Law]] = frozenset({Law.WHOLE_GANG})

    def allocate(self, view: View) -> Decision:
        room = Room(view.cluster, [s.placement for s in view.running if s.placement is not None])
        shares = ordering.keep_all(view.running)
        incomplete = [state for state in view.running if is_incomplete(state)]
        for state in sorted([*incomplete, *view.pending], key=lambda state: state.order):
            if room.total == 0:
                break
            share = _bind(room, state, view)
            if share is not None:
                shares[state.id] = share
        return Decision(shares, wait=ordering.NO_ROOM)


def is_incomplete(state: JobState) -> bool:
    """Whether a job holds GPUs but fewer than it needs to train."""
    return state.placement is not None and state.gang > state.placement.gpus


def _bind(room: Room, state: JobState, view: View) -> Share | None:
    """Bind as many of the missing pods as there is room for; ``None`` if there is none."""
    gang = state.gang if state.placement is not None else ordering.count_requested(state, view)
    nodes = count_nodes(state.placement) if state.placement is not None else {}
    bound = sum(nodes.values())
    before = bound
    while bound < gang:
        node = max(
            _iter_feasible(room, state, nodes, gang), key=room.nodes.__getitem__, default=None
        )
        if node is None:
            break
        # Whatever number of GPUs it has there, it is one pod there that asks for the rest.
        room.take({node: 1}, None if node in nodes else state)
        nodes[node] = nodes.get(node, 0) + 1
        bound += 1
    if bound == before:
        return None
    kind = name_type(view.cluster, nodes)
    return Share(bound, _ITS_TURN, kind, nodes, gang=gang if bound < gang else 0)


def _iter_feasible(
    room: Room, state: JobState, nodes: dict[NodeName, int], gang: int
) -> Iterator[NodeName]:
    """The nodes with room for a pod from which the job can still become whole some day."""
    cluster = room.cluster
    demand = state.job.gpus
    for kinds in ordering.choices_of_types(state, cluster):
        there = list(ordering.nodes_of(state, kinds, cluster))
        if not nodes.keys() <= set(there):
            continue
        sizes = {node: len(cluster.usable[node]) for node in there}
        for node in there:
            if room.nodes[node] <= 0 or not (node in nodes or room.takes_pod(state, node)):
                continue
            if _can_complete({*nodes, node}, sizes, demand.max_nodes, gang):
                yield node


def _can_complete(
    nodes: set[NodeName], sizes: dict[NodeName, int], max_nodes: int | None, gang: int
) -> bool:
    """Whether a job on these nodes, and some more of those it may use, could ever be whole."""
    if max_nodes is not None and len(nodes) > max_nodes:
        return False
    others = sorted((size for node, size in sizes.items() if node not in nodes), reverse=True)
    more = None if max_nodes is None else max_nodes - len(nodes)
    return sum(sizes[node] for node in nodes) + sum(others[:more]) >= gang
