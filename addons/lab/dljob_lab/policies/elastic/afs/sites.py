"""
Where each job is to be while targets are being placed, and the shares that say so.

:class:`Sites` is the book that :mod:`dljob_lab.policies.elastic.afs.places` fills, in the order in which it
decides. It keeps the free GPUs in step with the GPUs of jobs, and gives each share its cause.
"""

from collections.abc import Mapping

from dljob.core.contract import Share, View
from dljob.core.model import Cause, CauseCode, JobId, JobState, NodeName
from dljob.core.placement.counting import count_nodes, count_usable
from dljob.core.placement.free_gpus import Room
from dljob.core.policies.common.clearing import Relocation
from dljob.core.policies.common.ordering import keep
from dljob_lab.policies.common.sharing import withdraw
from dljob_lab.policies.elastic.afs.sharing import Target

_STARTS = Cause(CauseCode.ITS_TURN)
_GROWS = Cause(CauseCode.FASTER_WITH_MORE)
_SHRINKS = Cause(CauseCode.FAIR_SHARE)
_FASTER_WITH_FEWER = Cause(CauseCode.FASTER_WITH_FEWER)
_MOVES = Cause(CauseCode.PACKING)

Nodes = Mapping[NodeName, int]


class Sites:
    """The nodes of each job, as far as it was decided."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.room = Room(view.cluster)
        self._at: dict[JobId, Nodes] = {}
        self._staying: dict[JobId, Share] = {}
        self._placed: dict[JobId, Share] = {}
        """In the order in which GPUs are given."""

    @property
    def most(self) -> int:
        """Return how many GPUs are left."""
        return self.room.total

    def shares(self) -> dict[JobId, Share]:
        """The answer: those that stay first, then the others in the order of their steps."""
        return {**self._staying, **self._placed}

    def nodes_of(self, job: JobId) -> Nodes | None:
        """Return where a job has GPUs; ``None`` if that was not decided."""
        return self._at.get(job)

    def hold(self, target: Target) -> None:
        """Let a running job have what it keeps in any case, until it is its turn to grow."""
        state, placement = target.state, target.state.placement
        assert placement is not None
        nodes = withdraw(placement, target.gpus)
        self._at[state.id] = nodes
        self.room.take(self.count_good(state, nodes))
        if target.gpus >= placement.gpus:
            self._staying[state.id] = keep(placement.gpus)
        else:
            cause = _FASTER_WITH_FEWER if self._is_slower(target) else _SHRINKS
            self._staying[state.id] = Share(target.gpus, cause, placement.gpu_type, nodes)

    def give(self, state: JobState, nodes: Nodes, *, kind: str) -> None:
        """Let a job have these GPUs in the place of those that were decided for it before."""
        held = state.placement
        old = self._at.get(state.id)
        if old is not None:
            self.room.give(self.count_good(state, old))
        self.room.take(self.count_good(state, nodes), state)
        self._at[state.id] = nodes
        gpus = sum(nodes.values())
        self._staying.pop(state.id, None)
        self._placed.pop(state.id, None)
        if held is None:
            kind = "+".join(sorted({self.view.cluster.by_name[n].gpu_type for n in nodes}))
            self._placed[state.id] = Share(gpus, _STARTS, kind, nodes)
        elif count_nodes(held) == nodes:
            self._staying[state.id] = keep(gpus)
        elif gpus == held.gpus:
            self._placed[state.id] = Share(gpus, _MOVES, kind, nodes)
        else:
            cause = _GROWS if gpus > held.gpus else _SHRINKS
            self._placed[state.id] = Share(gpus, cause, kind, nodes)

    def move(self, move: Relocation, kind: str) -> None:
        """Note that a job moves; the room counts it already."""
        job, nodes = move.state.id, {move.to: move.gpus}
        self._staying.pop(job, None)
        self._at[job] = nodes
        self._placed[job] = Share(move.gpus, _MOVES, kind, nodes)

    def count_good(self, state: JobState, nodes: Nodes) -> dict[NodeName, int]:
        """Return how many of these GPUs others could be given; a job gives up its bad ones first."""
        if self.view.cluster.flawless or state.placement is None:
            return dict(nodes)
        good = count_usable(state.placement, self.view.cluster)
        held = count_nodes(state.placement)
        return {
            node: min(good[node], count) if node in held else count for node, count in nodes.items()
        }

    def _is_slower(self, target: Target) -> bool:
        """Return whether the job is known to be slower with all that it has than with its target."""
        held, predictor = target.state.placement, self.view.predictor
        assert held is not None
        job, kind = target.state.job, target.gpu_type
        fast = predictor.speed(job, predictor.shape(target.gpus, kind))
        return predictor.speed(job, predictor.shape(held.gpus, kind)) < fast
