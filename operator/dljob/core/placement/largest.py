"""The most GPUs that a job could have: on an empty cluster, and with the present room for pods."""

from collections.abc import Iterable, Mapping, Sequence

from dljob.core.model import Cluster, JobState, NodeName
from dljob.core.placement.pod_room import find_taking


def acceptable_types(state: JobState, cluster: Cluster) -> tuple[str, ...]:
    """The types of this cluster that the job can be given, those it likes best first."""
    kinds = cluster.types
    if state.job.gpus.types:
        kinds = tuple(kind for kind in state.job.gpus.types if kind in cluster.totals)
    sizes = _sizes_in_reach(state, cluster)
    if sizes is not cluster.sizes:
        kinds = tuple(kind for kind in kinds if kind in sizes)
    return kinds


def largest_possible(state: JobState, cluster: Cluster, *, gpu_type: str | None = None) -> int:
    """The most GPUs, of a type or of any, that this job could have on this cluster if it were
    empty."""
    return _most_of(state, _sizes_in_reach(state, cluster), cluster=cluster, gpu_type=gpu_type)


def largest_at_present(state: JobState, cluster: Cluster) -> int:
    """
    The same if all GPUs were free, on the nodes that have room for its pods now.

    It counts the existing pods, because new ones start while they run.
    """
    needs = state.needs
    if needs is None or state.placement is not None:
        return largest_possible(state, cluster)
    is_common = not (state.bound_to or state.pods_at)
    sizes: Sizes | None = cluster.memo.get((needs, "room")) if is_common else None  # type: ignore[assignment]
    if sizes is None:
        taking = find_taking(needs, cluster).union(state.pods_at)
        nodes = taking.intersection(state.bound_to) if state.bound_to else taking
        sizes = _sizes_of(nodes, cluster)
        if is_common:
            cluster.memo[needs, "room"] = sizes
    return _most_of(state, sizes, cluster=cluster, gpu_type=None)


Sizes = Mapping[str, Sequence[int]]
"""How many GPUs may be given away on each node of a type, the largest first."""


def _most_of(state: JobState, sizes: Sizes, *, cluster: Cluster, gpu_type: str | None) -> int:
    demand = state.job.gpus
    kinds = acceptable_types(state, cluster) if gpu_type is None else (gpu_type,)
    groups: list[Sequence[int]] = [sizes.get(kind, ()) for kind in kinds]
    if demand.mixed:
        groups = [sorted((size for group in groups for size in group), reverse=True)]
    return max((sum(group[: demand.max_nodes]) for group in groups), default=0)


def may_be_anywhere(state: JobState, cluster: Cluster) -> bool:
    """Return whether every node of the cluster would take the job if it were empty, as far as pods
    go."""
    return _sizes_in_reach(state, cluster) is cluster.sizes


def _sizes_in_reach(state: JobState, cluster: Cluster) -> Sizes:
    """The sizes of the nodes that would take the job if there were no pods."""
    needs = state.needs
    if needs is None:
        return _sizes_of(state.bound_to, cluster) if state.bound_to else cluster.sizes
    sizes: Sizes | None = None if state.bound_to else cluster.memo.get((needs, "reach"))  # type: ignore[assignment]
    if sizes is None:
        there = state.bound_to or tuple(cluster.by_name)
        nodes = [cluster.by_name[name] for name in there if name in cluster.by_name]
        taking = [node.name for node in nodes if needs.may_be_on(node.name, node.capacity)]
        is_whole = len(taking) == len(cluster.nodes)
        sizes = cluster.sizes if is_whole else _sizes_of(taking, cluster)
        if not state.bound_to:
            cluster.memo[needs, "reach"] = sizes
    return sizes


def _sizes_of(nodes: Iterable[str], cluster: Cluster) -> Sizes:
    sizes: dict[str, list[int]] = {}
    for node in nodes:
        name = NodeName(node)
        if name in cluster.by_name:
            kind = cluster.by_name[name].gpu_type
            sizes.setdefault(kind, []).append(len(cluster.usable[name]))
    return {kind: sorted(each, reverse=True) for kind, each in sizes.items()}
