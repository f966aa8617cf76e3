"""
On which nodes a job would be that fits on no single one: on as few as there are gaps for.

:class:`dlcore.placement.free_gpus.Room` calls :func:`spread` when no node has a gap for the job.
"""

from collections.abc import Iterable, Mapping

from dlcore.model import Cluster, GpuDemand, NodeName
from dlcore.placement.counting import has_whole_nodes
from dlcore.placement.gaps import Gaps, Takers


def spread(
    gaps: Gaps,
    demand: GpuDemand,
    *,
    gpus: int,
    kinds: tuple[str, ...],
    takers: Takers,
    beside: Mapping[NodeName, int],
) -> dict[NodeName, int] | None:
    """
    Find ``gpus`` GPUs on the fewest nodes, in addition to those that the job has already.

    The fullest gaps are taken first, which needs the fewest nodes; the last is a best fit.
    """
    largest = max(gaps.cluster.largest_node.get(kind, 0) for kind in kinds)
    falling = gaps.iterate(kinds, range(largest, 0, -1), takers=takers, but=beside)
    if demand.whole_nodes:
        return _take_whole(falling, gaps.cluster, demand=demand, gpus=gpus, beside=beside)
    chosen: dict[NodeName, int] = {}
    left = gpus
    for node, count in falling:
        if left <= count:
            break
        chosen[node] = count
        left -= count
    beyond = {**beside, **chosen}
    rising = gaps.iterate(kinds, range(left, largest + 1), takers=takers, but=beyond)
    last = next(rising, None)
    if last is None:
        return None
    chosen[last[0]] = left
    limit = demand.max_nodes
    if limit is not None and len(beside) + len(chosen) > limit:
        return None
    return chosen


def _take_whole(
    falling: Iterable[tuple[NodeName, int]],
    cluster: Cluster,
    *,
    demand: GpuDemand,
    gpus: int,
    beside: Mapping[NodeName, int],
) -> dict[NodeName, int] | None:
    """Find the same for a job that must have every GPU of each of several nodes."""
    if not has_whole_nodes(beside, cluster):
        return None
    chosen: dict[NodeName, int] = {}
    for node, count in falling:
        is_wide = demand.max_nodes is not None and len(beside) + len(chosen) == demand.max_nodes
        if gpus == 0 or is_wide:
            break
        if count <= gpus and count == len(cluster.usable[node]):
            chosen[node] = count
            gpus -= count
    return chosen if gpus == 0 else None
