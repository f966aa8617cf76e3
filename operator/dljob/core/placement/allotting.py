"""
How much of its namespace's limit each job may use, so that no policy has to think of limits.

Called by :func:`dljob.core.cycle.schedule` before the policy is asked and after it has answered.
Before, the policy sees every job of a limited namespace with only those numbers of GPUs that its
allotment permits. Allotments add up to the limit, so every decision of the policy keeps the limit.
A job that has more than its allotment may keep it until another job of its namespace actually gets
the GPUs that it lacks: then the first job shrinks, but is never stopped.

An allotment is the least that a job can run on, for those that have GPUs first and then for
newcomers by priority and arrival, as far as the limit goes. The rest goes to those that have
more already, and then to all, evenly.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dljob.core.contract import Decision, Share
from dljob.core.model import Cause, CauseCode, JobId, JobState
from dljob.core.placement.limits import NamespaceLimits, namespace_of, sum_by_namespace
from dljob.core.queues import Queue

_LIMIT = Cause(CauseCode.NAMESPACE_LIMIT)
_PRIORITY = Cause(CauseCode.PRIORITY_NOT_ALLOWED)


@dataclass(frozen=True, slots=True)
class Allotted:
    """The jobs as the policy may see them, and the allotment of each."""

    running: tuple[JobState, ...]
    pending: Queue[JobState]
    set_aside: Mapping[JobId, Cause] = field(default_factory=dict)
    """The jobs that cannot have GPUs within the limits, and why."""
    allotments: Mapping[JobId, int] = field(default_factory=dict)
    """The GPUs allotted to each job; only jobs in limited namespaces are here."""


def allot(
    running: tuple[JobState, ...], pending: Queue[JobState], *, limits: NamespaceLimits
) -> Allotted:
    """Return the allotment of each job."""
    if not limits.max_gpus and not limits.max_priority:
        return Allotted(running, pending)
    set_aside: dict[JobId, Cause] = {}
    allotments: dict[JobId, int] = {}
    newcomers: dict[str, list[JobState]] = {}
    for state in pending:
        namespace = namespace_of(state.id)
        highest = limits.priority_of(namespace)
        if highest is not None and state.job.priority > highest:
            set_aside[state.id] = _PRIORITY
        elif limits.gpus_of(namespace) is not None:
            newcomers.setdefault(namespace, []).append(state)
    having: dict[str, list[JobState]] = {}
    for state in running:
        having.setdefault(namespace_of(state.id), []).append(state)
    for namespace in {**having, **newcomers}:
        limit = limits.gpus_of(namespace)
        if limit is not None:
            those = having.get(namespace, [])
            found = _allot_one(limit, those, newcomers=newcomers.get(namespace, []))
            allotments.update(found)
            others = (s.id for s in newcomers.get(namespace, ()) if s.id not in found)
            set_aside.update(dict.fromkeys(others, _LIMIT))
    return Allotted(
        tuple(_shown(state, allotments, limits=limits) for state in running),
        _shown_queue(pending, set_aside, allotments=allotments, limits=limits),
        set_aside,
        allotments,
    )


def _allot_one(
    limit: int, having: Sequence[JobState], *, newcomers: Iterable[JobState]
) -> dict[JobId, int]:
    allotted = {state.id: state.least for state in having}
    left = limit - sum(allotted.values())
    let_in = []
    for state in sorted(newcomers, key=lambda s: (-s.job.priority, s.order)):
        if state.least <= left:
            allotted[state.id] = state.least
            left -= state.least
            let_in.append(state)
    left = _raise(allotted, having, left=left, most=_held)
    _raise(allotted, (*having, *let_in), left=left, most=lambda state: state.job.gpus.options[-1])
    return allotted


def _held(state: JobState) -> int:
    return max(state.gang, state.placement.gpus) if state.placement is not None else 0


def _raise(
    allotted: dict[JobId, int],
    states: Iterable[JobState],
    *,
    left: int,
    most: Callable[[JobState], int],
) -> int:
    """Raise these to the next number that they can run on, the poorest first; return what is left."""
    heap = [(allotted[state.id], -state.job.priority, state.order, state) for state in states]
    heapq.heapify(heap)
    while heap and left > 0:
        has, priority, order, state = heapq.heappop(heap)
        more = (n for n in state.job.gpus.options if has < n <= min(has + left, most(state)))
        higher = next(more, None)
        if higher is not None:
            left -= higher - has
            allotted[state.id] = higher
            heapq.heappush(heap, (higher, priority, order, state))
    return left


# --- what the policy sees -----------------------------------------------------------------


def _shown_queue(
    pending: Queue[JobState],
    set_aside: Mapping[JobId, Cause],
    *,
    allotments: Mapping[JobId, int],
    limits: NamespaceLimits,
) -> Queue[JobState]:
    shown = []
    is_changed = False
    for state in pending:
        seen = None if state.id in set_aside else _shown(state, allotments, limits=limits)
        is_changed = is_changed or seen is not state
        if seen is not None:
            shown.append(seen)
    return Queue.of(shown) if is_changed else pending


def _shown(
    state: JobState, allotments: Mapping[JobId, int], *, limits: NamespaceLimits
) -> JobState:
    job, most = state.job, allotments.get(state.id)
    highest = limits.priority_of(namespace_of(state.id))
    if highest is not None and job.priority > highest:
        job = replace(job, priority=highest)
    if most is not None:
        demand = job.gpus.within(max(most, _held(state)))
        job = job if demand is job.gpus else replace(job, gpus=demand)
    return state if job is state.job else replace(state, job=job)


# --- what it answers ----------------------------------------------------------------------


def keep_within(decision: Decision, allotted: Allotted, *, limits: NamespaceLimits) -> Decision:
    """
    Let those shrink that have more than is allotted to them, where their namespace has too many.

    A job that has to grow, because its spec does not allow its present number, loses all GPUs if
    that is not enough.
    """
    excess = _find_excess(decision.shares, limits)
    if not excess:
        return decision
    shares = dict(decision.shares)
    for state in allotted.running:
        share = shares.get(state.id)
        most = allotted.allotments.get(state.id)
        if share is None or most is None or namespace_of(state.id) not in excess:
            continue
        if share.gpus > most:
            shares[state.id] = Share(most, _LIMIT)
    growing = (s for s in allotted.running if s.id in shares and not s.has_allowed_size)
    for state in growing:
        grows = shares[state.id].gpus > _held(state)
        if grows and namespace_of(state.id) in _find_excess(shares, limits):
            del shares[state.id]
    return replace(decision, shares=shares)


def _find_excess(shares: Mapping[JobId, Share], limits: NamespaceLimits) -> set[str]:
    if not limits.max_gpus:
        return set()
    wanted = sum_by_namespace((job, max(each.gpus, each.gang)) for job, each in shares.items())
    return {
        namespace
        for namespace, gpus in wanted.items()
        if (limit := limits.gpus_of(namespace)) is not None and gpus > limit
    }
