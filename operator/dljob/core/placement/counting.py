"""GPUs of a placement counted by node: all of them, or only those that are in service."""

from collections.abc import Iterable, Mapping

from dljob.core.model import Cluster, NodeName, Placement


def has_whole_nodes(nodes: Mapping[NodeName, int], cluster: Cluster) -> bool:
    """Return whether these are all the GPUs of each node that may be given away."""
    return all(count >= len(cluster.usable.get(node, ())) for node, count in nodes.items())


def count_usable(placement: Placement, cluster: Cluster) -> dict[NodeName, int]:
    """
    How many GPUs on each node would be free if the placement were given up.

    Fewer than it has where the job continues with GPUs that no other job could get.
    """
    return {
        node: len(gpus) if node in cluster.whole else count_good_of(cluster, node, gpus=gpus)
        for node, gpus in placement.slices
    }


def count_good(
    placement: Placement, nodes: Mapping[NodeName, int], cluster: Cluster
) -> dict[NodeName, int]:
    """
    Count, of the GPUs kept on each node, those that other jobs could be given.

    A job may go on with GPUs that no other job would get; it gives those up first.
    """
    counts = dict(nodes)
    if cluster.flawless:
        return counts
    good, whole = count_usable(placement, cluster), count_nodes(placement)
    for node, count in nodes.items():
        bad = whole.get(node, 0) - good.get(node, 0)
        if bad:
            counts[node] = max(min(count, good[node]), count - bad)
    return counts


def count_good_of(cluster: Cluster, node: NodeName, *, gpus: tuple[int, ...]) -> int:
    return len(set(cluster.usable[node]).intersection(gpus))


def order_good_first(cluster: Cluster, node: NodeName, *, gpus: tuple[int, ...]) -> tuple[int, ...]:
    """A job's GPUs on a node in the order in which it keeps them: it gives up bad ones first."""
    if node in cluster.whole:
        return gpus
    usable = set(cluster.usable.get(node, ()))
    return tuple(sorted(gpus, key=lambda index: (index not in usable, index)))


def name_type(cluster: Cluster, nodes: Iterable[NodeName]) -> str:
    """The type of a placement on these nodes; several are joined by ``+``."""
    kinds = {cluster.by_name[node].gpu_type for node in nodes}
    return kinds.pop() if len(kinds) == 1 else "+".join(sorted(kinds))


def count_nodes(placement: Placement) -> dict[NodeName, int]:
    """How many GPUs the placement has on each node."""
    return {node: len(gpus) for node, gpus in placement.slices}
