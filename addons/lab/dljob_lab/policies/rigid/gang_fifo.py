"""The gang scheduler of Coach."""

from dataclasses import dataclass
from typing import ClassVar

from dljob.core.checking import Law
from dljob.core.contract import Decision, View
from dljob.core.model import JobState
from dljob.core.placement.free_gpus import Fit, Room
from dljob.core.policies.common import ordering
from dljob_lab.policies.common.nodes import find_along, nodes_of


@dataclass(frozen=True, slots=True)
class GangFifo:
    """
    Strictly in order of arrival, each gang whole or not at all, away from other jobs if possible.

    Coach, section 4.5. Its queue (Algorithm 1) and filter (Algorithm 2) make what ``fifo`` is here:
    older jobs have the first claim on all resources, and the roles of a job start together. Coach
    itself calls that "similar enough to a gang scheduler"; here a gang never starts in part. It
    differs from ``fifo`` by its score of nodes (Algorithm 3): 0 for a node with pods of another
    job and 100 for any other, where ``fifo`` fills up the smallest gap.

    Where the paper leaves room: among nodes of equal score the gang has the fewest, because "pods
    of the same job should be on the same nodes"; priorities, which Algorithm 1 asks first, are not
    heeded.
    """

    name: ClassVar[str] = "gang-fifo"
    paper: ClassVar[str] = "Coach, 4.5, Algorithms 1 to 3"
    needs: ClassVar[str] = "nothing"
    breaks: ClassVar[frozenset[Law]] = frozenset()

    def allocate(self, view: View) -> Decision:
        return ordering.admit(view, passing=False, find=find_apart)


def find_apart(room: Room, state: JobState, gpus: int, view: View) -> Fit | None:
    """Nodes that no other job is on, the fewest; others only when those do not suffice."""
    usable = view.cluster.usable
    for kind in ordering.rank_types(state, gpus, view=view):
        there = nodes_of(state, (kind,), cluster=view.cluster)
        nodes = [node for node in there if room.takes_pod(state, node)]
        apart = {node for node in nodes if room.nodes[node] == len(usable[node])}
        whole = [node for node in nodes if node in apart and room.nodes[node] >= gpus]
        if whole:
            return Fit(kind, {min(whole, key=lambda node: room.nodes[node]): gpus})
        nodes.sort(key=lambda node: (node not in apart, -room.nodes[node]))
        fit = find_along(nodes, room, state=state, gpus=gpus)
        if fit is not None:
            return fit
    # The remaining cases are limits on the number of nodes, and mixtures of types.
    return ordering.find_packed(room, state, gpus, view)
