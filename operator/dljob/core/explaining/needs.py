"""The GPUs that a waiting job needs: how many, on which nodes, who holds them, and when they are expected."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import chain
from math import inf, isfinite
from typing import NamedTuple

from dljob.core.explaining.phrases import enumerated, is_or_are
from dljob.core.model import Cause, CauseCode, Cluster, GpuRef, JobId, JobState, NodeName, Snapshot
from dljob.core.placement.largest import acceptable_types
from dljob.core.predicting.predictor import Predictor

Free = Mapping[NodeName, int]


@dataclass(frozen=True, slots=True)
class _Need:
    """A number of GPUs at once, on nodes that go together."""

    gpus: int
    groups: tuple[tuple[NodeName, ...], ...]
    """Nodes that the job could have together: those of one type, or all if types may mix."""
    limit: int | None
    """On how many nodes at most."""

    @property
    def where(self) -> str:
        if self.limit == 1:
            return " on one node"
        if self.limit is not None:
            return f" on at most {self.limit} nodes"
        return " of one type" if len(self.groups) > 1 else ""

    def most(self, free: Free) -> int:
        """The most GPUs that the job could have if these are free."""
        return max((self._most_of(group, free) for group in self.groups), default=0)

    def _most_of(self, group: Sequence[NodeName], free: Free) -> int:
        counts = [free[node] for node in group]
        return sum(counts if self.limit is None else nlargest(self.limit, counts))


def need_of(snapshot: Snapshot, state: JobState, *, cause: Cause) -> _Need:
    need = least_need(snapshot, state)
    most = need.most(free_by_node(snapshot))
    if cause.gpus:
        need = replace(need, gpus=cause.gpus)
    elif most >= need.gpus:
        # A job that waits although its smallest option would fit waits for its requested number.
        need = replace(need, gpus=state.job.gpus.requested)
    if cause.code is CauseCode.NO_ROOM_ON_ONE_NODE and most >= need.gpus:
        # The job itself would spread, so it is the policy that wants it on one node.
        return replace(need, limit=1)
    return need


def least_need(snapshot: Snapshot, state: JobState) -> _Need:
    demand, cluster = state.job.gpus, snapshot.cluster
    if state.bound_to:
        here = tuple(node for node in state.bound_to if node in cluster.by_name)
        return _Need(state.least, (here,), limit=1)
    kinds = acceptable_types(state, cluster)
    apart = tuple(nodes_of(cluster, (kind,)) for kind in kinds)
    groups = (nodes_of(cluster, kinds),) if demand.mixed else apart
    return _Need(state.least, groups, demand.max_nodes)


def nodes_of(cluster: Cluster, kinds: Sequence[str]) -> tuple[NodeName, ...]:
    return tuple(node.name for node in cluster.nodes if node.gpu_type in kinds)


def free_by_node(snapshot: Snapshot) -> dict[NodeName, int]:
    """Return how many GPUs of each node are free."""
    free = {node: len(usable) for node, usable in snapshot.cluster.usable.items()}
    for state in snapshot.running:
        for node, count in held_by_node(snapshot.cluster, state):
            free[node] -= count
    return free


def held_by_node(cluster: Cluster, state: JobState) -> Iterator[tuple[NodeName, int]]:
    """How many GPUs of each node others could have if the job ended."""
    slices = state.placement.slices if state.placement is not None else ()
    for node, gpus in slices:
        # A node may have been lost, and a GPU may have been cordoned under the job.
        if node in cluster.usable:
            yield node, len(set(gpus).intersection(cluster.usable[node]))


def describe_supply(snapshot: Snapshot, need: _Need) -> str:
    """
    Name the free GPUs, and the jobs whose ends release enough.

    It names no time, because the sentence may be read long after it was written; the turn of the job has the time.
    """
    most = need.most(free_by_node(snapshot))
    if most >= need.gpus:
        return f"{is_or_are(most)} free already"
    now = (
        f"the most free{need.where} is {most}" if most and need.where else f"{is_or_are(most)} free"
    )
    out = out_of_service(snapshot, chain.from_iterable(need.groups))
    release = find_release(snapshot, need)
    if release is None:
        return f"{now}{out}"
    end = f"{enumerated(release.jobs)} end{'s' if len(release.jobs) == 1 else ''}"
    then = f", and {release.gpus} more when {end}" if most else f" until {end}"
    return f"{now}{then}{out}"


class Release(NamedTuple):
    """The GPUs that a job needs and lacks, when the ends of running jobs release them."""

    seconds: float
    """Infinite where the end of one of the jobs is a guess."""
    gpus: int
    jobs: Sequence[JobId]


def find_release(snapshot: Snapshot, need: _Need) -> Release | None:
    """Return the release by which there are enough GPUs; ``None`` if it cannot be predicted."""
    free = free_by_node(snapshot)
    most = reached = need.most(free)
    helpful: list[JobId] = []
    predictor, is_guess = Predictor.of(snapshot), False
    for seconds, state in _iter_ends(snapshot, predictor):
        for node, count in held_by_node(snapshot.cluster, state):
            free[node] += count
        after = need.most(free)
        if after > reached:
            helpful.append(state.job.id)
            reached = after
            is_guess = is_guess or not predictor.is_measured(state)
        if reached >= need.gpus:
            return Release(inf if is_guess else seconds, reached - most, helpful)
    return None


def out_of_service(snapshot: Snapshot, names: Iterable[NodeName]) -> str:
    """Return how many GPUs of these nodes are out of service, and why the first of them is."""
    nodes = [snapshot.cluster.by_name[name] for name in dict.fromkeys(names)]
    out = [(node, gpu) for node in nodes for gpu in node.gpus if gpu.unavailable_because]
    if not out:
        return ""
    node, gpu = out[0]
    whole = all(each.unavailable_because == gpu.unavailable_because for each in node.gpus)
    where = node.name if whole else GpuRef(node.name, gpu.index)
    return f"; {is_or_are(len(out))} out of service ({where}: {gpu.unavailable_because})"


def _iter_ends(snapshot: Snapshot, predictor: Predictor) -> Iterator[tuple[float, JobState]]:
    """Every running job whose end can be predicted, with the seconds until then, soonest first."""
    # Half a gang does not train, so it does not end either; and assumed lengths are not reported.
    known = [state for state in snapshot.running if isfinite(state.iterations_total)]
    training = [s for s in known if s.placement is None or s.gang <= s.placement.gpus]
    ends = [(predictor.remaining(state, snapshot.now), state) for state in training]
    yield from sorted(
        ((seconds, state) for seconds, state in ends if isfinite(seconds)),
        key=lambda end: (end[0], end[1].order),
    )
