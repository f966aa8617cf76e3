"""
The share of the GPUs that each user is owed, and the return of GPUs that were lent.

Called by :func:`dljob.core.cycle.schedule`. A user is a namespace. The owed shares are weighted max-min shares, in whole GPUs,
of the GPUs that the jobs of the users can use. A GPU that cannot be divided, and GPUs for a job that needs more than the
share of its user, go in turns to the user with the least use per weight.

The policy is asked first as if there were no shares. Only if a user lacks GPUs that it is owed, and another has more than
it is owed, ceilings bound the jobs of the other, and the policy is asked again. So idle GPUs are lent, the policy
decides within a share, and the jobs that started last give GPUs back first.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from math import ceil, inf
from typing import Final, Protocol

from dljob.core import keeping
from dljob.core.model import (
    Cause,
    CauseCode,
    Ceiling,
    GpuRef,
    JobId,
    JobState,
    NodeName,
    Snapshot,
)
from dljob.core.placement.limits import Use, namespace_of, sum_by_namespace
from dljob.core.planning import Move, Plan, Reshape, Start, Step, Stop, count_after, settle
from dljob.core.queues import Queue

TURN_S: Final = 300.0
"""About how long a user keeps a GPU that cannot be divided."""
_EXACT: Final = 1e-6
_HALVINGS: Final = 50


class _Claim:
    """The GPUs that the jobs of one user can have, and those that they are given so far."""

    def __init__(self, states: Iterable[JobState], most: int) -> None:
        shown = sorted(map(keeping.show_rigid, states), key=_rank)
        # Only the end of such a job gives these back.
        self.given = {s.id: s.least for s in shown if s.placement and keeping.remains(s)}
        self.jobs: dict[JobId, list[int]] = {}
        """The numbers of GPUs of each job, without jobs that others alike leave nothing for."""
        alike: Counter[int] = Counter()
        for state in shown:
            alike[state.least] += 1
            if alike[state.least] * state.least <= most or state.id in self.given:
                self.jobs[state.id] = [n for n in state.job.gpus.options if n <= most]
        usable = sum(options[-1] for options in self.jobs.values() if options)
        self.most = max(self.gpus, min(most, usable))

    @property
    def gpus(self) -> int:
        return sum(self.given.values())

    def grow(self, left: float) -> int:
        """Give the first job that fits its next number of GPUs; return how many more it is, and 0 if none fits."""
        left = min(left, self.most - self.gpus) + _EXACT
        for job in sorted(self.jobs, key=self.given.__contains__):
            has = self.given.get(job, 0)
            more = next((n - has for n in self.jobs[job] if n > has), None)
            if more is not None and more <= left:
                self.given[job] = has + more
                return more
        return 0


def _rank(state: JobState) -> tuple[float, int, int]:
    """Order jobs so that those that wait come last, and before them those that started last."""
    started = (state.started_at or 0.0) if state.placement is not None else inf
    return started, -state.job.priority, state.order


# --- what is owed -------------------------------------------------------------------------


@lru_cache(maxsize=4)
def find_owed(snapshot: Snapshot) -> Mapping[str, int]:
    """Return the GPUs that each user with jobs is owed, of those that its jobs can use."""
    limits, total = snapshot.limits, snapshot.cluster.total
    claims = {}
    for user, states in _by_user(snapshot).items():
        limit = limits.gpus_of(user)
        claims[user] = _Claim(states, total if limit is None else min(total, limit))
    due = _pour(total, claims, weights={user: limits.weight_of(user) for user in claims})
    used, held = snapshot.use.at(snapshot.now), count_gpus(snapshot)

    def turn(user: str) -> float:
        # One that has more than its share now keeps it for a while.
        keeps = TURN_S * max(0.0, held.get(user, 0) - due[user])
        weight = limits.weight_of(user)
        return (used.get(user, 0.0) - keeps) / weight if weight else inf

    in_turn = sorted(claims, key=turn)
    left = total - sum(claim.gpus for claim in claims.values())
    for user in in_turn:
        claim = claims[user]
        while more := claim.grow(min(left, due[user] - claim.gpus)):
            left -= more
        if not claim.gpus and limits.weight_of(user):
            # Its jobs need more than its share.
            left -= claim.grow(left)
    has_grown = True
    while has_grown:
        has_grown = False
        for user in in_turn:
            more = claims[user].grow(left)
            left -= more
            has_grown = has_grown or more > 0
    return {user: claim.gpus for user, claim in claims.items()}


def _by_user(snapshot: Snapshot) -> dict[str, list[JobState]]:
    """Return the jobs that can have GPUs."""
    jobs: dict[str, list[JobState]] = {}
    for state in (*snapshot.running, *snapshot.pending):
        if not state.job.suspend and not state.lacks_quota:
            jobs.setdefault(namespace_of(state.id), []).append(state)
    return jobs


def _pour(
    total: int, claims: Mapping[str, _Claim], *, weights: Mapping[str, int]
) -> dict[str, float]:
    """Return the weighted max-min shares, as if GPUs could be divided."""

    def fill(level: float) -> dict[str, float]:
        return {
            user: min(claim.most, max(claim.gpus, level * weights[user]))
            for user, claim in claims.items()
        }

    low, high = 0.0, float(total)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        if sum(fill(middle).values()) <= total:
            low = middle
        else:
            high = middle
    return fill(high)


def count_gpus(snapshot: Snapshot, plan: Plan | None = None) -> Counter[str]:
    """Return how many GPUs the jobs of each user have, after a plan if there is one."""
    gpus = count_after(snapshot.running, plan.steps if plan is not None else ())
    return sum_by_namespace(gpus.items())


def find_parts(snapshot: Snapshot) -> dict[str, float]:
    """Return the part of all GPUs that each user with jobs has by its weight, whether or not its jobs can use it."""
    weights = {user: snapshot.limits.weight_of(user) for user in find_owed(snapshot)}
    each = snapshot.cluster.total / max(1, sum(weights.values()))
    return {user: weight * each for user, weight in weights.items()}


def find_borrowed(snapshot: Snapshot, plan: Plan | None = None) -> dict[JobId, int]:
    """
    Return how many of its GPUs each job borrows, after a plan if there is one; nothing where users have no shares.

    Borrowed are the GPUs that a user has beyond its part of all GPUs, and of these first those of the job that started last.
    """
    if not any(snapshot.limits.shares.values()):
        return {}
    gpus = count_after(snapshot.running, plan.steps if plan is not None else ())
    over = sum_by_namespace(gpus.items())
    over.subtract({user: ceil(part - _EXACT) for user, part in find_parts(snapshot).items()})
    begun = gpus.keys() - {state.id for state in snapshot.running}
    states = (*snapshot.running, *snapshot.queue.select(begun).values())
    borrowed: dict[JobId, int] = {}
    for state in sorted(states, key=_rank, reverse=True):
        user = namespace_of(state.id)
        lent = max(0, min(gpus.get(state.id, 0), over[user]))
        over[user] -= lent
        if state.ceiling is None:
            borrowed[state.id] = lent
    return borrowed


# --- giving it back -----------------------------------------------------------------------


class Decide(Protocol):
    """Asks the policy about a snapshot; ``enough`` newcomers suffice, 0: all."""

    def __call__(self, snapshot: Snapshot, /, enough: int = 0) -> Plan: ...


def share_out(snapshot: Snapshot, decide: Decide, *, enough: int = 0) -> Plan:
    """Return the plan of a policy under which no user lacks GPUs that it is owed while another has more than it is owed."""
    owed, total = find_owed(snapshot), snapshot.cluster.total
    best = plan = decide(snapshot, enough)
    if enough and _find_over(count_gpus(snapshot, plan), owed):
        best = plan = decide(snapshot)
    bounded, wished = snapshot, dict[str, Mapping[JobId, int]]()
    while over := _find_over(count_gpus(snapshot, plan), owed) - wished.keys():
        wished |= _ask_alone(snapshot, over, most=owed, decide=decide)
        bounded = _bound(snapshot, wished, most=owed)
        plan = decide(bounded)
    if wished:
        met, lost = _count_met(count_gpus(snapshot, best), owed), _find_lost(snapshot, best)
        has = count_gpus(snapshot, plan)
        if _count_met(has, owed) <= met and plan.steps:
            # A policy that takes no GPUs of running jobs gives these to others in its next decision.
            then = settle(bounded, plan.steps)
            has = count_gpus(then, decide(then))
        if _count_met(has, owed) > met and _find_lost(snapshot, plan) <= lost:
            best = plan
        idle = total - has.total()
        if best is plan and idle > 0:
            # The policy does not use all that is given back: lend it again.
            more = {user: gpus + idle for user, gpus in owed.items()}
            wished = _ask_alone(snapshot, wished, most=more, decide=decide)
            plan = decide(_bound(snapshot, wished, most=more))
            is_met = _count_met(count_gpus(snapshot, plan), owed) >= _count_met(has, owed)
            if is_met and _find_lost(snapshot, plan) <= lost:
                best = plan
    now, wake_at = snapshot.now, best.wake_at
    if len(owed) > 1 and sum(owed.values()) >= total:
        wake_at = min(now + TURN_S, inf if wake_at is None else wake_at)
    after = count_gpus(snapshot, best)
    use = Use(now, snapshot.use.at(now), dict(after))
    return replace(best, steps=_name_successors(snapshot, best, after), wake_at=wake_at, use=use)


def _name_successors(snapshot: Snapshot, plan: Plan, after: Mapping[str, int]) -> tuple[Step, ...]:
    """Give each job that stops within the share of its user the job that gets GPUs in its place as the reason."""
    gains: dict[str, dict[GpuRef, JobId]] = {}
    for step in plan.steps:
        if isinstance(step, Start | Reshape | Move):
            had = () if isinstance(step, Start) else step.old.refs()
            new = step.placement if isinstance(step, Start) else step.new
            more = dict.fromkeys((ref for ref in new.refs() if ref not in had), step.job)
            gains.setdefault(namespace_of(step.job), {}).update(more)
    before = count_gpus(snapshot)
    # No share explains why these stop.
    bound = {state.id for state in snapshot.running if state.exceeds_quota}
    steps = list(plan.steps)
    for place, step in enumerate(steps):
        user = namespace_of(step.job)
        taken = gains.get(user)
        if not taken or after[user] < before[user] or step.job in bound:
            continue
        if isinstance(step, Stop) and step.cause.code is CauseCode.QUEUE_QUOTA:
            first = next(iter(taken.values()))
            job = next((taken[ref] for ref in step.old.refs() if ref in taken), first)
            steps[place] = replace(step, cause=Cause(CauseCode.OUTRANKED, job))
    return tuple(steps)


def _find_over(has: Mapping[str, int], owed: Mapping[str, int]) -> set[str]:
    """Return the users with more than they are owed, if another has less."""
    is_due = any(has[user] < gpus for user, gpus in owed.items())
    return {user for user, gpus in owed.items() if has[user] > gpus} if is_due else set()


def _count_met(has: Mapping[str, int], owed: Mapping[str, int]) -> int:
    """Return how many of the owed GPUs the users have."""
    return sum(min(has[user], gpus) for user, gpus in owed.items())


def _ask_alone(
    snapshot: Snapshot,
    users: Iterable[str],
    *,
    most: Mapping[str, int],
    decide: Decide,
) -> dict[str, Mapping[JobId, int]]:
    """Return the GPUs that the policy would give the jobs of each of these users, if its share were all there is."""
    wished: dict[str, Mapping[JobId, int]] = {}
    for user in users:
        alone = _show_alone(snapshot, user, gpus=most[user])
        wished[user] = count_after(alone.running, decide(alone).steps)
    return wished


def _show_alone(snapshot: Snapshot, user: str, *, gpus: int) -> Snapshot:
    """Show the policy the jobs of one user and its share of the GPUs: first those of the jobs that started first."""
    running = tuple(s for s in snapshot.running if namespace_of(s.id) == user)
    held = [ref for s in sorted(running, key=_rank) if s.placement for ref in s.placement.refs()]
    there = [GpuRef(node, gpu) for node, some in snapshot.cluster.usable.items() for gpu in some]
    ready = set(there)
    usable = [ref for ref in dict.fromkeys((*held, *there)) if ref in ready]
    taken: dict[NodeName, dict[int, str]] = {}
    for ref in usable[gpus:]:
        taken.setdefault(ref.node, {})[ref.number] = "another user is owed it"
    return replace(
        snapshot,
        cluster=keeping.leave_out(snapshot.cluster, taken),
        running=running,
        pending=Queue.of(s for s in snapshot.pending if namespace_of(s.id) == user),
        whole=snapshot,
    )


def _find_lost(snapshot: Snapshot, plan: Plan) -> set[JobId]:
    """Return the jobs that lose work which no checkpoint saves."""
    kept = {state.id: state for state in snapshot.running if keeping.remains(state)}
    return {
        step.job
        for step in plan.steps
        if step.job in kept
        and (
            isinstance(step, Stop)
            or (
                isinstance(step, Reshape | Move)
                and kept[step.job].unsaved_from is not None
                and not kept[step.job].keeps_work_on(step.new)
            )
        )
    }


def _bound(
    snapshot: Snapshot, wished: Mapping[str, Mapping[JobId, int]], *, most: Mapping[str, int]
) -> Snapshot:
    """Bound the jobs of these users by their numbers in the policy's answer, and those of a user together by ``most``."""
    ceilings: dict[JobId, int] = {}
    for user, states in _by_user(snapshot).items():
        if user not in wished:
            continue
        given: dict[JobId, int] = {}
        # First as much as the jobs have now, so that no job shrinks for a new one of its user.
        for held in (True, False):
            chosen = [_narrow(s, wished[user].get(s.id, 0), held=held) for s in states]
            claim = _Claim(filter(None, chosen), most[user])
            claim.given |= given
            while claim.grow(inf):
                pass
            given = claim.given
        ceilings |= {state.id: given.get(state.id, 0) for state in states}

    def bound(state: JobState) -> JobState:
        gpus = ceilings.get(state.id)
        if gpus is None or gpus >= state.job.gpus.options[-1]:
            return state
        ceiling = Ceiling(gpus)
        return replace(state, job=ceiling.over(state.job), ceiling=ceiling)

    pending = Queue.of(map(bound, snapshot.pending))
    return replace(snapshot, running=tuple(map(bound, snapshot.running)), pending=pending)


def _narrow(state: JobState, gpus: int, *, held: bool) -> JobState | None:
    """Show the job with at most this number of GPUs, and than it has if ``held``; ``None`` if it cannot run on them."""
    has = max(state.gang, state.placement.gpus) if state.placement is not None else 0
    if keeping.remains(state):
        gpus = max(gpus, has)
    if held:
        gpus = min(gpus, has)
    if gpus < state.least:
        return None
    return replace(state, job=replace(state.job, gpus=state.job.gpus.within(gpus)))
