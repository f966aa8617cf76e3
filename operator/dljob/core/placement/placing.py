"""
Chooses which job gets which GPUs on which nodes.

Called by :func:`dljob.core.cycle.schedule` with the policy's shares. A job keeps its GPUs if it can;
otherwise :mod:`dljob.core.placement.free_gpus` finds nodes. Only this module chooses GPU ids.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dljob.core.contract import Decision, Share
from dljob.core.model import (
    OWN_REASONS,
    Cause,
    CauseCode,
    Cluster,
    JobId,
    JobState,
    NodeName,
    Placement,
)
from dljob.core.placement.counting import count_nodes, count_usable, name_type, order_good_first
from dljob.core.placement.free_gpus import Room, grow, may_share_as
from dljob.core.planning import Wanted


class Placed(NamedTuple):
    """The result of a policy's shares: only the differences from before."""

    wanted: dict[JobId, Wanted]
    """Newcomers and changed jobs, in the order in which GPUs were given."""
    changed: list[JobState]
    stopped: list[JobState]
    unplaced: dict[JobId, Cause]
    """Newcomers that could not be placed, with the reasons."""


def place(
    decision: Decision,
    running: tuple[JobState, ...],
    newcomers: Sequence[JobState],
    cluster: Cluster,
) -> Placed:
    """
    Turn shares into placements with GPU ids. Newcomers are the pending jobs that have a share.

    A share that finds no place leaves a running job as it is, and a pending one waiting.
    The policy normally knew, because it asked :class:`Room`.
    """
    shares = decision.shares
    stopped: list[JobState] = []
    changed: list[JobState] = []
    for state in running:
        share = shares.get(state.id)
        if share is None:
            stopped.append(state)
        elif not _keeps(state, share):
            changed.append(state)
    if not (stopped or changed or newcomers):
        return Placed({}, [], [], {})
    moved = {state.id for state in (*stopped, *changed)}
    placer = _Placer(cluster, [state for state in running if state.id not in moved])
    wanted, unplaced = placer.place_all(shares, changed, newcomers=newcomers)
    vain = _find_vain_losses((*stopped, *changed), wanted)
    for job in vain:
        wanted.pop(job, None)
    return Placed(
        wanted,
        [state for state in changed if state.id in wanted],
        [state for state in stopped if state.id not in vain],
        unplaced,
    )


def _keeps(state: JobState, share: Share) -> bool:
    """Return whether nothing changes for a running job. The first line recognises the usual case."""
    placement = state.placement
    assert placement is not None
    if share.gpus != placement.shape.gpus:
        return False
    if share.gpu_type is not None and share.gpu_type != placement.gpu_type:
        return False
    batch_size = _batch_of(state, share)
    if batch_size is not None and batch_size != state.batch_size:
        return False
    return share.nodes is None or share.nodes == count_nodes(placement)


def _find_vain_losses(states: Iterable[JobState], wanted: Mapping[JobId, Wanted]) -> set[JobId]:
    """
    Find the jobs that would lose GPUs without a gain for another job, and so keep what they have.

    That happens when the job that should get their GPUs found no place after all, under any policy that
    decides numbers and leaves the places to us.
    """
    losers = [state for state in states if _loses(state, wanted.get(state.id))]
    if not losers:
        return set()
    lost = {state.id for state in losers}
    given = {
        ref for job, want in wanted.items() if job not in lost for ref in want.placement.refs()
    }
    vain: set[JobId] = set()
    for state in losers:
        assert state.placement is not None
        want = wanted.get(state.id)
        refs = set(state.placement.refs())
        kept = set(want.placement.refs()) if want is not None else set()
        if kept <= refs and given.isdisjoint(refs - kept):
            vain.add(state.id)
    return vain


def _loses(state: JobState, want: Wanted | None) -> bool:
    """Return whether the job loses GPUs for the benefit of another job."""
    placement = state.placement
    if placement is None or placement.gpus not in state.job.gpus.options:
        return False
    if want is None:
        return True
    return want.placement.gpus < placement.gpus and want.cause.code not in OWN_REASONS


def _want(state: JobState, share: Share, *, placement: Placement) -> Wanted:
    return Wanted(placement, share.cause, share.gang, _batch_of(state, share))


def _batch_of(state: JobState, share: Share) -> int | None:
    """The batch that the share wants, as far as the user lets it change; ``None`` keeps it."""
    batch, wanted = state.job.batch, share.batch_size
    if wanted is None or not batch.elastic:
        return None
    return min(wanted, batch.maximum) if batch.maximum else wanted


def _keep_or_shrink(state: JobState, share: Share, *, cluster: Cluster) -> Placement | None:
    """Return the job's placement if it only keeps or shrinks; ``None`` if it needs more."""
    placement = state.placement
    assert placement is not None
    if share.gpu_type is not None and share.gpu_type != placement.gpu_type:
        return None
    if share.nodes is None or not _may_be_on(state, share, nodes=share.nodes, cluster=cluster):
        if share.gpus > placement.shape.gpus:
            return None
        shrunk = shrink(placement, share.gpus, cluster)
        return (
            shrunk if _may_be_on(state, share, nodes=count_nodes(shrunk), cluster=cluster) else None
        )
    have = count_nodes(placement)
    if share.nodes == have:
        return placement
    if all(have.get(node, 0) >= count for node, count in share.nodes.items()):
        parts = {
            node: order_good_first(cluster, node, gpus=gpus)[: share.nodes.get(node, 0)]
            for node, gpus in placement.slices
        }
        return Placement.of(parts, name_type(cluster, share.nodes))
    return None


def _may_be_on(
    state: JobState, share: Share, *, nodes: Mapping[NodeName, int], cluster: Cluster
) -> bool:
    """Return whether the job may share nodes like this; a gang started pod by pod always may."""
    return state.gang > 0 or share.gang > share.gpus or may_share_as(state, nodes, cluster=cluster)


def shrink(placement: Placement, gpus: int, cluster: Cluster) -> Placement:
    """Keep ``gpus`` of a placement, on as few nodes as possible: the smallest slices go first."""
    if gpus == placement.shape.gpus:
        return placement
    parts: dict[NodeName, tuple[int, ...]] = {}
    left = gpus
    for part in sorted(placement.slices, key=lambda part: (-len(part.gpus), part.node)):
        parts[part.node] = order_good_first(cluster, part.node, gpus=part.gpus)[:left]
        left -= len(parts[part.node])
    return Placement.of(parts, name_type(cluster, (node for node, kept in parts.items() if kept)))


class _Placer:
    """Gives out GPU ids, one share after the other, in the order of the policy's decision."""

    def __init__(self, cluster: Cluster, keeping: Iterable[JobState]) -> None:
        self.cluster = cluster
        placements = [state.placement for state in keeping if state.placement is not None]
        self.room = Room(cluster, placements)
        self.used: dict[NodeName, set[int]] = {}
        for placement in placements:
            for node, gpus in placement.slices:
                self.used.setdefault(node, set()).update(gpus)

    def _hold(self, placement: Placement) -> None:
        self.room.take(count_usable(placement, self.cluster))
        for node, gpus in placement.slices:
            self.used.setdefault(node, set()).update(gpus)

    def place_all(
        self,
        shares: Mapping[JobId, Share],
        changed: Iterable[JobState],
        *,
        newcomers: Iterable[JobState],
    ) -> tuple[dict[JobId, Wanted], dict[JobId, Cause]]:
        """Shrink jobs first, then place the others in the order of the shares."""
        wanted: dict[JobId, Wanted] = {}
        takers: dict[JobId, JobState] = {}
        for state in changed:
            assert state.placement is not None
            share = shares[state.id]
            shrunk = _keep_or_shrink(state, share, cluster=self.cluster)
            self._hold(shrunk or state.placement)
            if shrunk is not None:
                wanted[state.id] = _want(state, share, placement=shrunk)
            else:
                takers[state.id] = state
        takers.update((state.id, state) for state in newcomers)
        unplaced: dict[JobId, Cause] = {}
        for job in [job for job in shares if job in takers]:
            placement = self._place(takers[job], shares[job])
            if placement is not None:
                wanted[job] = _want(takers[job], shares[job], placement=placement)
            elif takers[job].placement is None:
                unplaced[job] = self._why_not(takers[job], shares[job])
        return wanted, unplaced

    def _place(self, state: JobState, share: Share) -> Placement | None:
        have = count_nodes(state.placement) if state.placement is not None else {}
        nodes = self._choose(state, share, have=have)
        if nodes is None:
            return None
        placement = self._pick(state.placement, nodes)
        if state.placement is not None:
            self.room.give(count_usable(state.placement, self.cluster))
        self.room.take(count_usable(placement, self.cluster), state)
        return placement

    def _choose(
        self, state: JobState, share: Share, *, have: Mapping[NodeName, int]
    ) -> Mapping[NodeName, int] | None:
        # Use the best available placement for a policy that does not know about whole nodes.
        if share.nodes is not None and _may_be_on(
            state, share, nodes=share.nodes, cluster=self.cluster
        ):
            more = {node: n - have.get(node, 0) for node, n in share.nodes.items()}
            fits = all(self.room.takes_pod(state, node) for node in share.nodes)
            return share.nodes if fits and self.room.has(more) else None
        held = state.placement
        if held is not None and share.gpu_type in (None, held.gpu_type):
            # A job that may not share a node cannot always shrink in place.
            grows = share.gpus >= held.shape.gpus
            grown = grow(self.room, state, have, held.gpu_type, share.gpus) if grows else None
            if grown is not None and _may_be_on(state, share, nodes=grown, cluster=self.cluster):
                return grown
            if state.is_live and state.unsaved_from is not None:
                return None  # Elsewhere it would have to start again.
        fit = self.room.find(state, share.gpus, share.gpu_type)
        return fit.nodes if fit is not None else None

    def _pick(self, old: Placement | None, nodes: Mapping[NodeName, int]) -> Placement:
        """Choose GPU ids: first the job's own, then the lowest free ids."""
        own = dict(old.slices) if old is not None else {}
        picked: dict[NodeName, tuple[int, ...]] = {}
        for node, count in nodes.items():
            used = self.used.setdefault(node, set())
            mine = order_good_first(self.cluster, node, gpus=own.get(node, ()))[:count]
            fresh = [index for index in self.cluster.usable[node] if index not in used]
            picked[node] = (*mine, *fresh[: count - len(mine)])
        for node, gpus in own.items():
            self.used[node].difference_update(gpus)
        for node, gpus in picked.items():
            self.used[node].update(gpus)
        return Placement.of(picked, name_type(self.cluster, nodes))

    def _why_not(self, state: JobState, share: Share) -> Cause:
        code = CauseCode.NO_ROOM_ON_ONE_NODE
        if state.bound_to:
            code = CauseCode.CHECKPOINT_ELSEWHERE
        elif self.room.lacks_room_for_pod(state, share.gpus):
            code = CauseCode.NO_ROOM_FOR_POD
        return Cause(code, gpus=share.gpus)
