"""The nodes that a job may be on, and its GPUs on the first of them: for policies that order nodes themselves."""

from collections.abc import Iterable, Iterator, Sequence

from dljob.core.model import Cluster, JobState, NodeName
from dljob.core.placement.counting import name_type
from dljob.core.placement.free_gpus import Fit, Room
from dljob.core.placement.largest import acceptable_types


def find_along(nodes: Iterable[NodeName], room: Room, *, state: JobState, gpus: int) -> Fit | None:
    """Take what is free on these nodes in their order, as far as the job's limits allow."""
    chosen: dict[NodeName, int] = {}
    for node in nodes:
        if gpus == 0 or len(chosen) == state.job.gpus.max_nodes:
            break
        taken = min(gpus, room.nodes[node])
        if taken > 0 and room.takes_pod(state, node):
            chosen[node] = taken
            gpus -= taken
    return Fit(name_type(room.cluster, chosen), chosen) if gpus == 0 else None


def nodes_of(state: JobState, kinds: Sequence[str], *, cluster: Cluster) -> Iterator[NodeName]:
    """The nodes of these types that the job may be on, in order of their names."""
    for node in cluster.nodes:
        if node.gpu_type in kinds and (not state.bound_to or node.name in state.bound_to):
            yield node.name


def choices_of_types(state: JobState, cluster: Cluster) -> Iterator[tuple[str, ...]]:
    """Each type alone that the job accepts, then, if it may mix them, all of them together."""
    kinds = acceptable_types(state, cluster)
    for kind in kinds:
        yield (kind,)
    if state.job.gpus.mixed and len(kinds) > 1:
        yield kinds
