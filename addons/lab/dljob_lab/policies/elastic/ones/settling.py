"""From the best genome to shares: nodes decide how much of it fits."""

from collections.abc import Mapping

from dljob.core.contract import Share, View
from dljob.core.model import Cause, CauseCode, JobId, JobState, NodeName
from dljob.core.placement.counting import count_nodes, count_usable
from dljob.core.placement.free_gpus import Room, grow
from dljob_lab.policies.elastic.ones.memory import (
    Gene,
)
from dljob_lab.policies.elastic.ones.searching import (
    batch_of,
)

_ITS_TURN = Cause(CauseCode.ITS_TURN)
_MORE = Cause(CauseCode.FASTER_WITH_MORE)
_MAKES_ROOM = Cause(CauseCode.MAKES_ROOM)


def settle(view: View, room: Room, *, wanted: Mapping[JobState, Gene]) -> dict[JobId, Share]:
    """
    Make shares of a genome, and promise only shares for which there is room.

    First all that lose, then those that grow, then those that start: as far as nodes allow it,
    which a genome knows nothing of.
    """
    shares: dict[JobId, Share] = {}
    growing: list[tuple[JobState, int]] = []
    for state in view.running:
        placement = state.placement
        assert placement is not None
        gpus = wanted[state][2] if state in wanted else 0
        if gpus == 0 and placement.gpu_type in view.cluster.totals:
            room.give(count_usable(placement, view.cluster))
        elif gpus in (0, placement.gpus):
            shares[state.id] = Share(placement.gpus)
        elif gpus < placement.gpus:
            nodes = _shrink(view, room, state=state, gpus=gpus)
            batch = new_batch(state, gpus)
            shares[state.id] = Share(gpus, _MAKES_ROOM, nodes=nodes, batch_size=batch)
        else:
            growing.append((state, gpus))
    for state, gpus in growing:
        shares[state.id] = _grow(view, room, state=state, gpus=gpus)
    _start_wanted(room, wanted, shares=shares)
    return shares


def _shrink(view: View, room: Room, *, state: JobState, gpus: int) -> dict[NodeName, int]:
    """Keep the largest parts of a placement, and give back the rest."""
    assert state.placement is not None
    cluster = view.cluster
    have = count_nodes(state.placement)
    kept: dict[NodeName, int] = {}
    left = gpus
    for node in sorted(have, key=lambda node: (-have[node], node)):
        if left:
            kept[node] = min(left, have[node])
            left -= kept[node]
    usable = count_usable(state.placement, cluster)
    # Broken GPUs are given back first, and are no gain for others.
    freed = {node: n - min(kept.get(node, 0), n) for node, n in usable.items()}
    room.give({node: n for node, n in freed.items() if n})
    return kept


def _grow(view: View, room: Room, *, state: JobState, gpus: int) -> Share:
    """Grow as far as there is room."""
    placement, cluster = state.placement, view.cluster
    assert placement is not None
    have, usable = count_nodes(placement), count_usable(placement, cluster)
    for more in reversed([n for n in state.job.gpus.options if placement.gpus < n <= gpus]):
        nodes = grow(room, state, have, placement.gpu_type, more)
        if nodes is not None:
            room.give(usable)
            if room.has(nodes):
                room.take(nodes, state)
                return Share(more, _MORE, nodes=nodes, batch_size=new_batch(state, more))
            room.take(usable)
    return Share(placement.gpus)


def _start_wanted(
    room: Room, wanted: Mapping[JobState, Gene], *, shares: dict[JobId, Share]
) -> None:
    for state, (_, kind, gpus) in wanted.items():
        if state.placement is not None:
            continue
        for fewer in reversed([n for n in state.job.gpus.options if n <= gpus]):
            fit = room.find(state, fewer, kind)
            if fit is not None:
                room.take(fit.nodes, state)
                batch = new_batch(state, fewer)
                shares[state.id] = Share(fewer, _ITS_TURN, kind, fit.nodes, batch_size=batch)
                break


def new_batch(state: JobState, gpus: int) -> int | None:
    """The batch that a job is to have with ``gpus`` GPUs, if it differs from its present one."""
    batch = batch_of(state, gpus)
    present = state.batch_size or state.job.training.batch_size
    return batch if batch != present else None


def present_gene(state: JobState) -> Gene:
    """The gene of a job that keeps its GPUs."""
    assert state.placement is not None
    return state.id, state.placement.gpu_type, state.placement.gpus
