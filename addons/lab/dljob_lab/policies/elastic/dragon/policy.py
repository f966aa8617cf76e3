"""
DRAGON: gangs on few nodes, made smaller for jobs that wait long and larger when GPUs stay idle.

Lin, Yeh and Chou, "DRAGON: A Dynamic Scheduling and Scaling Controller for Managing Distributed
Deep Learning Jobs in Kubernetes Cluster" (CLOSER 2019), section 3.3 and Figure 5.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, NamedTuple

from dljob.core.checking import Law
from dljob.core.contract import Decision, Share, View
from dljob.core.model import JobId, JobState, NodeName
from dljob.core.options import check, declare
from dljob.core.placement.free_gpus import Fit, Room
from dljob.core.policies.common import ordering
from dljob_lab.policies.elastic.dragon.surplus import Surplus, enlarge, note_idle


class DragonState(NamedTuple):
    """The policy's memory from one decision to the next."""

    idle: Mapping[NodeName, tuple[float, ...]]
    """For each node with free GPUs: since when at least one of them is free, at least two, …"""
    waiting: Mapping[int, float]
    """Since when jobs wait that had GPUs before, by their place in the order of arrival."""


_NOTHING = DragonState({}, {})


@dataclass(frozen=True, slots=True)
class Dragon:
    """
    Scale down for the smallest urgent job, start what fits, scale up what idles.

    The control flow of Figure 5, at each decision:

    1. **Scale-down alarm.** A job is urgent when it has waited longer than ``urgent_seconds``
       (τ). Urgent jobs are served smallest first. Where the free GPUs do not suffice,
    2. **victims** give up GPUs, those with the most surplus (held less minimum) first. If the
       smallest urgent job cannot be launched, no larger one can, and none is tried.
    3. **Scheduling** (AFCFS): the first job in order of arrival that fits in what is free starts,
       on the fewest nodes, then the next one. A gang starts whole or not at all.
    4. **Scale-up alarm.** GPUs of a node that have been idle longer than ``idle_seconds`` (λ)
    5. go to jobs that **already run on that node**, up to their maximum.

    Where the paper leaves room:

    - It gives no thresholds. The defaults are those of the code that the authors released
      (NTHU-LSALAB/DRAGON, v0.9.1): 30 s and 60 s.
    - The size of a waiting job is the fewest GPUs it can run on (the minimum number of workers),
      then the number of its auxiliary pods: parameter servers belong to the gang, and their number
      is its user's. Jobs of equal size come in order of arrival.
    - An urgent job gets as many GPUs as are free for it up to its request; where not even its
      minimum is free, room is made for its minimum only. So does the released code.
    - A victim gives only the GPUs that the urgent job lacks on the node concerned, as far as its optional
      numbers allow, because each scaling restarts the job and the paper wants few of them. A victim
      on several nodes gives up its smallest parts first. The node is that of the job with the most
      surplus, of those on which the jobs together can free enough.
    - Idle GPUs go to the job that is the least fulfilled, (held - minimum) / (maximum - minimum), which
      is the order of an earlier version of the authors' code (ChanYiLin/tf-operator-Dragon); one
      optional number at a time, ties by arrival, and first on the node where it has most GPUs.
    - Idle time is counted by node: since when at least one of its GPUs has been free without
      interruption, at least two, and so on. Which GPUs these are is not the policy's business.
    - A job's waiting time counts from its submission; when it loses its GPUs with a node, from then.
    - Priorities are not heeded: the paper names them as a possible extension.
    """

    name: ClassVar[str] = "dragon"
    paper: ClassVar[str] = "DRAGON (Lin et al.), 3.3, Figure 5"
    needs: ClassVar[str] = "nothing"
    breaks: ClassVar[frozenset[Law]] = frozenset()

    urgent_seconds: float = declare(30.0, at_least=0.0)
    """How long a job waits before running jobs are made smaller for it (τ)."""
    idle_seconds: float = declare(60.0, at_least=0.0)
    """How long GPUs are idle before jobs on their nodes may have them (λ)."""

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        """Go through the five steps of Figure 5."""
        memory = view.state if isinstance(view.state, DragonState) else _NOTHING
        waiting = _Waiting(view, memory.waiting)
        filling = ordering.Filling(view, view.running)
        _serve_urgent(filling, waiting.iter_urgent(self.urgent_seconds, view.now))
        _start_fitting(filling)
        idle = note_idle(filling.room, memory.idle, now=view.now)
        enlarge(filling, idle, after=self.idle_seconds)
        idle = note_idle(filling.room, idle, now=view.now)
        alarms = [
            *waiting.iter_alarms(filling.shares, self.urgent_seconds, now=view.now),
            *_iter_alarms(idle, filling.room, after=self.idle_seconds),
        ]
        return Decision(
            filling.shares,
            waits=filling.waits,
            wait=ordering.NO_ROOM,
            wake_at=min((alarm for alarm in alarms if alarm > view.now), default=None),
            state=DragonState(idle, waiting.since),
        )


# --- who waits, and since when ------------------------------------------------------------


class _Waiting:
    """The pending jobs by how long they wait; looked at block by block, for thousands may wait."""

    def __init__(self, view: View, known: Mapping[int, float]) -> None:
        self.blocks = view.pending.blocks
        returned = (order for block in self.blocks for order in block.ask(_list_returned))
        self.since: Mapping[int, float] = {order: known.get(order, view.now) for order in returned}

    def _since(self, state: JobState) -> float:
        return self.since.get(state.order, state.job.submitted_at)

    def iter_urgent(self, after: float, now: float) -> Iterator[JobState]:
        """The jobs that have waited for ``after`` seconds, the smallest first."""
        # Reckoned as the alarms are, so that no job is missed at its alarm by a rounding error.
        due = [b.ask(_sort_by_size) for b in self.blocks if b.ask(_earliest) + after <= now]
        return (
            state for state in heapq.merge(*due, key=_size) if self._since(state) + after <= now
        )

    def iter_alarms(
        self, served: Mapping[JobId, Share], after: float, *, now: float
    ) -> Iterator[float]:
        """The times when the jobs that were not served will have waited for ``after`` seconds."""
        for since in self.since.values():
            yield since + after
        # Most blocks hold only jobs whose alarm has rung.
        for block in (block for block in self.blocks if block.ask(_latest) + after > now):
            for state in block:
                if state.id not in served and state.order not in self.since:
                    yield state.job.submitted_at + after


def _list_returned(states: tuple[JobState, ...]) -> tuple[int, ...]:
    """The jobs that had GPUs before."""
    return tuple(state.order for state in states if state.started_at is not None)


def _earliest(states: tuple[JobState, ...]) -> float:
    return min(state.job.submitted_at for state in states)


def _latest(states: tuple[JobState, ...]) -> float:
    return max(state.job.submitted_at for state in states)


def _sort_by_size(states: tuple[JobState, ...]) -> tuple[JobState, ...]:
    return tuple(sorted(states, key=_size))


def _size(state: JobState) -> tuple[int, int, int]:
    """Return how much a job needs at least: GPUs, then auxiliary pods; ties by arrival."""
    return state.least, sum(role.replicas for role in state.job.roles), state.order


# --- steps 1 to 3 -------------------------------------------------------------------------


def _serve_urgent(filling: ordering.Filling, urgent: Iterable[JobState]) -> None:
    """Launch urgent jobs, the smallest first, until one cannot be."""
    surplus: Surplus | None = None
    hopeless: set[tuple[object, ...]] = set()
    for state in urgent:
        fit = _take_free(filling, state)
        if fit is not None:
            if surplus is not None:
                surplus.spare.take(fit.nodes, state)
            continue
        surplus = surplus or Surplus(filling)
        if state.least > filling.most + surplus.total:
            return
        # A result for the smallest job need not hold for one that may go elsewhere.
        kind = (state.needs, state.job.gpus.types, state.job.gpus.max_nodes, state.bound_to)
        if kind in hopeless:
            continue
        fit = surplus.make_room(state)
        if fit is not None:
            filling.give(state, state.least, fit=fit)
            surplus.spare.take(fit.nodes, state)
        elif kind == (None, (), None, ()):
            return
        else:
            hopeless.add(kind)


def _take_free(filling: ordering.Filling, state: JobState) -> Fit | None:
    """Give an urgent job as many of the free GPUs as it requested, or the most below that."""
    if state.least > filling.most:
        return None
    most = min(ordering.count_requested(state, filling.view), filling.most)
    for gpus in reversed([option for option in state.job.gpus.options if option <= most]):
        fit = ordering.find_packed(filling.room, state, gpus=gpus, view=filling.view)
        if fit is not None:
            filling.give(state, gpus, fit=fit)
            return fit
    return None


def _start_fitting(filling: ordering.Filling) -> None:
    """Start the jobs that fit into the free GPUs, in order of arrival, with the GPUs requested."""
    blocks = (
        block
        for block in filling.view.pending.blocks
        if block.ask(ordering.fewest_needed) <= filling.most
    )
    for state in chain.from_iterable(blocks):
        if filling.most == 0:
            return
        if state.id not in filling.shares and state.least <= filling.most:
            _ = filling.start(state)


# --- steps 4 and 5 ------------------------------------------------------------------------


def _iter_alarms(
    idle: Mapping[NodeName, tuple[float, ...]], room: Room, *, after: float
) -> Iterator[float]:
    """The times when GPUs on nodes with jobs will have been idle for ``after`` seconds."""
    for node, times in idle.items():
        if room.nodes[node] < len(room.cluster.usable[node]):
            for since in times:
                yield since + after
