"""
Shares by count, as if all GPUs of a type were alike: who is given how many of which type.

The common part of the policies that decide numbers and leave the places to
:mod:`dljob.core.placement.placing`: :mod:`dljob.core.policies.baselines.max_min` and :mod:`dljob_lab.policies.elastic.optimus_periodic`.
"""

from dljob.core.contract import View
from dljob.core.model import JobId, JobState
from dljob.core.placement.largest import acceptable_types, largest_possible, may_be_anywhere
from dljob.core.policies.common.ordering import rank_types


class Counts:
    """The GPUs of each type while they are given away."""

    def __init__(self, view: View, *, fastest_first: bool = False) -> None:
        self.view = view
        self.free = dict(view.cluster.totals)
        self.kinds: dict[JobId, tuple[str, ...]] = {}
        """The type of each job, or the types that it mixes."""
        self.gpus: dict[JobId, int] = {}
        """How many GPUs each job has."""
        self._fastest_first = fastest_first

    def raise_to(self, state: JobState, gpus: int) -> bool:
        """Let the job have this number of GPUs if enough are left and could ever be placed for it."""
        kinds = self.kinds.get(state.id) or self._choose_types(state)
        more = gpus - self.gpus.get(state.id, 0)
        if self.left_of(kinds) < more or not self._may_have(state, gpus, kinds=kinds):
            return False
        for kind in kinds:
            taken = min(more, self.free.get(kind, 0))
            self.free[kind] = self.free.get(kind, 0) - taken
            more -= taken
        self.gpus[state.id], self.kinds[state.id] = gpus, kinds
        return True

    def left_of(self, kinds: tuple[str, ...]) -> int:
        """Return how many GPUs of these types are left."""
        return sum(self.free.get(kind, 0) for kind in kinds)

    def _may_have(self, state: JobState, gpus: int, *, kinds: tuple[str, ...]) -> bool:
        """Return whether this number could be placed at all; the job would wait in vain for any other."""
        cluster = self.view.cluster
        if gpus <= cluster.largest_node.get(kinds[0], 0) and may_be_anywhere(state, cluster):
            return True
        return gpus <= largest_possible(
            state, cluster, gpu_type=kinds[0] if len(kinds) == 1 else None
        )

    def _choose_types(self, state: JobState) -> tuple[str, ...]:
        """One type, or for a job that can do with a mixture and needs it, all that it accepts."""
        if state.placement is not None:
            return tuple(state.placement.gpu_type.split("+"))
        kinds = acceptable_types(state, self.view.cluster)
        able = [kind for kind in kinds if self._may_have(state, state.least, kinds=(kind,))]
        if not able:
            return kinds
        if self._fastest_first:
            ranked = [
                kind for kind in rank_types(state, state.least, view=self.view) if kind in able
            ]
            return (max(ranked, key=lambda kind: self.free[kind] >= state.least),)
        return (max(able, key=lambda kind: self.free[kind]),)
