"""
Sentences for people, made from the causes that programs read.

A :class:`~dljob.core.model.Cause` holds only facts that stay true while a job waits. This module looks up the
numbers of the moment (free GPUs, and which jobs release some and when) for ``dljob why``, for the
Event about a step, and for the condition of a job. Nothing in a decision depends on this module, so
it may take its time.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite
from operator import attrgetter
from typing import assert_never

from dljob.core import sharing
from dljob.core.explaining.comparing import Worths, compare_ends, compare_with_running
from dljob.core.explaining.needs import describe_supply, need_of, nodes_of, out_of_service
from dljob.core.explaining.phrases import between, count_gpus, duration, enumerated, named_place
from dljob.core.model import Cause, CauseCode, Job, JobId, JobState, Node, Placement, Snapshot
from dljob.core.placement.amounts import Amounts, lacking, show
from dljob.core.placement.largest import acceptable_types, largest_possible
from dljob.core.placement.limits import namespace_of
from dljob.core.placement.needs import Needs
from dljob.core.planning import Move, Plan, Reshape, Start, Step, Stop, Wait, settle
from dljob.core.predicting.predictor import Predictor
from dljob.core.predicting.spans import span_remaining
from dljob.core.profiles import CostTerm

UNSAID: Worths = {}

Amount = Callable[[Node], Amounts | None]

SHOWN = 3
"""The number of nodes or reasons that a sentence names; it counts the others."""


def sentence_for_wait(
    snapshot: Snapshot, state: JobState, *, cause: Cause, worths: Worths = UNSAID
) -> str:
    """Return why a job waits, with the numbers of this snapshot and the policy's worths."""
    if cause.job is not None and _find(snapshot, cause.job) is None:
        cause = cause._replace(job=None)  # The other job has ended since.
    write = _WAITS.get(cause.code)
    reason = write(snapshot, state, cause) if write else _REASONS[cause.code](cause)
    if cause.code in _WEIGHED:
        reason += compare_with_running(snapshot, state, worths=worths)
    return f"waits: {reason}"


def sentences_for(
    snapshot: Snapshot, plan: Plan, borrowed: Mapping[JobId, int]
) -> dict[JobId, str]:
    """Return the effect and the reason of each step; jobs wait for GPUs that the other steps leave."""
    settled = settle(snapshot, plan.steps)
    sentences = {}
    for step in plan.steps:
        before = settled if isinstance(step, Wait) else snapshot
        told = sentence_for_step(before, step, worths=plan.worths)
        if isinstance(step, Start | Reshape | Move) and (lent := borrowed.get(step.job)):
            new = step.placement if isinstance(step, Start) else step.new
            told += f"; {describe_lent(lent, new)}"
        sentences[step.job] = told
    return sentences


def sentence_for_step(snapshot: Snapshot, step: Step, *, worths: Worths = UNSAID) -> str:
    """Return what a step does and why. ``snapshot`` is the one that its plan was made from."""
    state = _find(snapshot, step.job)
    match step:
        case Wait():
            if state is None:
                return f"waits: {_REASONS[step.cause.code](step.cause)}"
            return sentence_for_wait(snapshot, state, cause=step.cause, worths=worths)
        case Stop():
            return (
                f"gives back {count_gpus(step.old.gpus)}: {_why(snapshot, state, cause=step.cause)}"
            )
        case Start():
            done = f"starts on {named_place(step.placement)}"
        case Reshape():
            done = f"goes from {step.old.gpus} to {named_place(step.new)}"
        case Move():
            done = f"moves from {named_place(step.old)} to {named_place(step.new)}"
        case _:
            assert_never(step)
    present = (state.batch_size or state.job.training.batch_size) if state is not None else 0
    done += _describe_batch(step.batch_size, before=present)
    return f"{done}: {_reason_for(snapshot, state, step=step)}"


def _describe_batch(batch_size: int | None, *, before: int) -> str:
    """Return the new global batch size, if it differs from a known one."""
    if batch_size is None or before in (0, batch_size):
        return ""
    return f" with batches of {batch_size} instead of {before}"


def sentence_for_training(snapshot: Snapshot, state: JobState) -> str:
    """Return the progress of a training job and its remaining time."""
    assert state.placement is not None
    now, total = snapshot.now, state.iterations_total
    told = f"trains on {named_place(state.placement)}"
    told += _describe_batch(state.batch_size, before=state.job.training.batch_size)
    if state.speed > 0.0:
        told += f" at {state.speed:.3g} iterations/s"
    if state.unsaved_from is not None and len(state.job.gpus.options) > 1:
        is_ending = state.remaining_at(now) <= 0.0
        why = "until it ends" if is_ending else "as long as no checkpoint saves its work"
        kept = "these GPUs"
        if state.may_change_live:
            more = (
                "or get others live"
                if state.may_be_joined
                else "others live, but on several nodes get none"
            )
            kept = f"some of these GPUs, and may lose {more},"
        told += f"; it keeps {kept} {why}"
    if not isfinite(total) or total <= 0.0:
        return f"{told}; it is not known yet how many iterations it needs"
    if state.iterations_done > total:
        done = f"it has done {state.iterations_done:,.0f} iterations and goes on"
        return f"{told}; {done}, where {total:,.0f} were expected"
    # Do not round up to 100 % before the end.
    told += f"; {min(99.9, 100.0 * (state.iterations_at(now) / total)):.3g} % is done"
    left = span_remaining(Predictor.of(snapshot), state, now=now)
    return (
        f"{told}, and {between(left.low, left.high)} is left" if isfinite(left.expected) else told
    )


def describe_lent(borrowed: int, placement: Placement) -> str:
    """Return how many GPUs of a job its user has beyond its part of all GPUs."""
    return f"borrows {borrowed or 'none'} of {count_gpus(placement.gpus)}"


def describe_shares(snapshot: Snapshot) -> dict[JobId, str]:
    """Return the borrowed GPUs of each job, and the part of its user; nothing where users are owed nothing."""
    borrowed, told = sharing.find_borrowed(snapshot), dict[JobId, str]()
    parts, has = sharing.find_parts(snapshot), sharing.count_gpus(snapshot)
    for state in snapshot.running:
        if state.placement is not None and state.id in borrowed:
            user, lent = namespace_of(state.id), describe_lent(borrowed[state.id], state.placement)
            share = f"a share of {parts.get(user, 0.0):.3g}"
            told[state.id] = f"{lent}: {user} has {count_gpus(has[user])}, and {share}"
    return told


# --- the reasons --------------------------------------------------------------------------


def _named(job: JobId | None) -> str:
    return "another job" if job is None else job


_REASONS: Mapping[CauseCode, Callable[[Cause], str]] = {
    CauseCode.ITS_TURN: lambda _: "it is its turn",
    CauseCode.IDLE_GPUS: lambda _: "these GPUs would be idle",
    CauseCode.FASTER_WITH_MORE: lambda _: "it is done sooner with more GPUs",
    CauseCode.FASTER_WITH_FEWER: lambda _: "it is done sooner with fewer GPUs",
    CauseCode.WITHIN_BUDGET: lambda _: "it stays within its budget with fewer GPUs",
    CauseCode.FAIR_SHARE: lambda cause: (
        f"{cause.job} is due its fair share" if cause.job else "the shares are fair so"
    ),
    CauseCode.EXPLORING: lambda _: "its speed there is not known yet, and is worth knowing",
    CauseCode.FASTER_TYPE: lambda _: "it trains faster on this type of GPU",
    CauseCode.PACKING: lambda _: "it is on fewer nodes then, or leaves one free for others",
    CauseCode.MAKES_ROOM: lambda cause: f"it makes room for {_named(cause.job)}",
    CauseCode.OUTRANKED: lambda cause: f"{_named(cause.job)} comes before it",
    CauseCode.SUSPENDED: lambda _: "it is suspended, until dljob resume (spec.suspend: false)",
    CauseCode.GPUS_GONE: lambda _: (
        "the node has fewer GPUs now, and some that it had are not among them"
    ),
    CauseCode.NODE_LOST: lambda _: "a node that it ran on is lost, or has to be left",
    CauseCode.SPEC_CHANGED: lambda _: "its spec does not allow these GPUs any longer",
    CauseCode.TWO_MASTERS: lambda cause: f"{_named(cause.job)} was found to have a GPU of its own",
    CauseCode.NO_ROOM: lambda _: "too few GPUs are free",
    CauseCode.NO_ROOM_ON_ONE_NODE: lambda _: "too few GPUs are free together",
    CauseCode.BEHIND: lambda cause: f"{_named(cause.job)} is ahead of it in the queue",
    CauseCode.TOO_LARGE: lambda _: "this cluster could never give it enough GPUs",
    CauseCode.GANG_INCOMPLETE: lambda _: "not all of its pods have their GPUs yet",
    CauseCode.CHECKPOINT_ELSEWHERE: lambda _: "its checkpoint is on another node only",
    CauseCode.NEXT_ROUND: lambda _: "this policy shares GPUs out at intervals only",
    CauseCode.NEXT_LEASE: lambda _: "this policy shares GPUs out when their leases end",
    CauseCode.NO_ROOM_FOR_POD: lambda _: "no node with enough GPUs has room for its pod",
    CauseCode.POD_FITS_NOWHERE: lambda _: "no node of this cluster could take its pod",
    CauseCode.NAMESPACE_LIMIT: lambda _: "its namespace may not have more GPUs",
    CauseCode.QUEUE_QUOTA: lambda _: "its queue admits fewer GPUs",
    CauseCode.PRIORITY_NOT_ALLOWED: lambda _: "its namespace may not use its priority",
}


def _why(snapshot: Snapshot, state: JobState | None, *, cause: Cause) -> str:
    """Return a reason; that of a quota in the words of the program that keeps it, or those of the share of its user."""
    if cause.code is CauseCode.QUEUE_QUOTA and state is not None:
        if snapshot.limits.shares and not state.exceeds_quota:
            return _why_not_owed(snapshot, state)
        if state.ceiling is not None:
            return state.ceiling.told
    return _REASONS[cause.code](cause)


def _why_not_owed(snapshot: Snapshot, state: JobState) -> str:
    """Return to which users GPUs of the job are given back; else the share of its own user."""
    owed, held = sharing.find_owed(snapshot), sharing.count_gpus(snapshot)
    user = namespace_of(state.id)
    takers = [
        f"{other}, which is owed {count_gpus(gpus)}"
        for other, gpus in owed.items()
        if other != user and held[other] < gpus
    ]
    if state.placement is not None and takers:
        return f"given back to {' and '.join(takers)}"
    return f"{user} is owed {count_gpus(owed.get(user, 0))} and has {held[user]}"


def _reason_for(snapshot: Snapshot, state: JobState | None, *, step: Start | Reshape | Move) -> str:
    reason = _why(snapshot, state, cause=step.cause)
    if state is not None and not isinstance(step, Start):
        reason += _gain(snapshot, state, step=step)
        if step.cause.code in (CauseCode.MAKES_ROOM, CauseCode.OUTRANKED):
            other = _find(snapshot, step.cause.job) if step.cause.job is not None else None
            reason += compare_ends(snapshot, state, step=step, other=other)
    if isinstance(step, Start) and step.gang > step.placement.gpus:
        reason += f"; it needs {step.gang} to begin, and they idle until then"
    if step.after:
        has = "has" if len(step.after) == 1 else "have"
        reason += f"; it begins once {enumerated(step.after)} {has} released them"
    return reason


def _gain(snapshot: Snapshot, state: JobState, *, step: Reshape | Move) -> str:
    """Compare the ends with and without the change, where it is made for the sake of the end."""
    if step.cause.code not in (CauseCode.FASTER_WITH_MORE, CauseCode.FASTER_WITH_FEWER):
        return ""
    predictor = Predictor.of(snapshot)
    before = predictor.remaining(state, snapshot.now)
    after = predictor.remaining_on(state, step.new, snapshot.now)
    is_known = isfinite(state.iterations_total) and predictor.is_measured(state)
    if not is_known or not after < before < inf:
        return ""
    cost = _cost_of_change(predictor, state, new=step.new)
    return f", in {duration(after)} instead of {duration(before)}; {cost}"


def _cost_of_change(predictor: Predictor, state: JobState, *, new: Placement) -> str:
    """Return how long the change takes. Unmeasured parts are named, not counted as short."""
    if state.changes_live(new):
        pause = predictor.change_cost(state, new.shape)
        return f"its processes stay, and pause for {duration(pause)}"
    seconds = predictor.restart_cost(state.job, new.gpus)
    untimed = _find_untimed(predictor, state.job)
    if CostTerm.PROCESS_INITIALIZATION in untimed:
        return "how long the change takes has not been measured yet"
    if untimed:
        return (
            f"the change takes {duration(seconds)} and its checkpoint, which has not been timed yet"
        )
    return f"the change takes {duration(seconds)}"


def _find_untimed(predictor: Predictor, job: Job) -> tuple[CostTerm, ...]:
    """Name the parts of a change in place that are neither measured nor set: they count as nothing."""
    profile, costs = predictor.profiles.get(job.type), predictor.costs_of(job)
    measured = profile.cost_samples if profile is not None else {}
    known = {
        CostTerm.PROCESS_INITIALIZATION: costs.process_start(1),
        CostTerm.CHECKPOINT: costs.checkpoint if job.checkpoint.is_possible else inf,
    }
    return tuple(term for term, seconds in known.items() if seconds <= 0 and term not in measured)


# --- why a job waits ----------------------------------------------------------------------


def _no_room(snapshot: Snapshot, state: JobState, cause: Cause) -> str:
    need = need_of(snapshot, state, cause=cause)
    return f"needs {count_gpus(need.gpus)}{need.where}; {describe_supply(snapshot, need)}"


def _behind(snapshot: Snapshot, state: JobState, cause: Cause) -> str:
    ahead = _find(snapshot, cause.job) if cause.job is not None else None
    if ahead is None:
        behind = f"{_named(cause.job)} is ahead of it in the queue"
        return f"{behind}; {_no_room(snapshot, state, cause)}"
    need = need_of(snapshot, ahead, cause=Cause(CauseCode.NO_ROOM))
    needs = f"needs {count_gpus(need.gpus)}{need.where}"
    return (
        f"{ahead.job.id} is ahead of it in the queue and {needs}; {describe_supply(snapshot, need)}"
    )


def _too_large(snapshot: Snapshot, state: JobState, cause: Cause) -> str:
    wanted = state.job.gpus.types
    if wanted and not acceptable_types(state, snapshot.cluster):
        there = ", ".join(kind for kind in snapshot.cluster.types if kind) or "none of a known type"
        return f"needs GPUs of type {' or '.join(wanted)}; this cluster has {there}"
    least = cause.gpus or state.least
    if not any(node.gpus for node in snapshot.cluster.nodes):
        return f"needs at least {count_gpus(least)}; no node of this cluster has a GPU to give"
    most = largest_possible(state, snapshot.cluster)
    kind = f" of type {' or '.join(wanted)}" if wanted else ""
    limit = state.job.gpus.max_nodes
    spread = "" if limit is None else " on one node" if limit == 1 else f" on {limit} nodes"
    kinds = acceptable_types(state, snapshot.cluster)
    return (
        f"needs at least {count_gpus(least)}{kind}; even empty, this cluster could give it"
        f" {most or 'none'}{spread}{out_of_service(snapshot, nodes_of(snapshot.cluster, kinds))}"
    )


def _incomplete(snapshot: Snapshot, state: JobState, cause: Cause) -> str:
    needed = cause.gpus or state.gang or state.least
    has = state.placement.gpus if state.placement is not None else 0
    need = need_of(snapshot, state, cause=Cause(CauseCode.NO_ROOM, gpus=max(1, needed - has)))
    return f"has {has} of the {count_gpus(needed)} that it needs to begin; {describe_supply(snapshot, need)}"


def _checkpoint_elsewhere(snapshot: Snapshot, state: JobState, cause: Cause) -> str:
    need = need_of(snapshot, state, cause=cause)
    where = " or ".join(state.bound_to) or "a node that is gone"
    told = f"needs {count_gpus(need.gpus)} on {where}, where its checkpoint is"
    there = snapshot.cluster.by_name
    gone = [node for node in state.bound_to if node not in there]
    cordoned = [node for node in state.bound_to if node in there and not there[node].schedulable]
    if not gone and not cordoned:
        return f"{told}; {describe_supply(snapshot, need)}"
    facts = [f"{node} is cordoned" for node in cordoned]
    facts += [f"{node} is gone or does not answer" for node in gone]
    remedies = ["uncordon it"] * bool(cordoned) + ["bring it back"] * bool(gone)
    return (
        f"{told}; {' and '.join(facts)}: {' or '.join(remedies)}, or set spec.checkpoint.shared to true, and"
        " the job begins on another node with the files in its checkpoint.path there"
    )


def _namespace_limit(snapshot: Snapshot, state: JobState, _: Cause) -> str:
    namespace = namespace_of(state.id)
    limit = snapshot.limits.gpus_of(namespace)
    if limit is None:
        return f"needs {count_gpus(state.least)}, which its namespace may have already"
    has = sum(
        other.placement.gpus
        for other in snapshot.running
        if other.placement is not None and namespace_of(other.id) == namespace
    )
    return (
        f"needs at least {count_gpus(state.least)}; the jobs of namespace {namespace or '(none)'} may"
        f" have {count_gpus(limit)} together, and have {has}"
    )


def _priority_not_allowed(snapshot: Snapshot, state: JobState, _: Cause) -> str:
    namespace = namespace_of(state.id)
    highest = snapshot.limits.priority_of(namespace)
    allowed = "any" if highest is None else f"at most {highest}"
    return (
        f"its priority is {state.job.priority}, and jobs of namespace {namespace or '(none)'} may"
        f" have {allowed}; lower spec.priority, or ask an administrator to grant it"
    )


Write = Callable[[Snapshot, JobState, Cause], str]


def _until(moment: str) -> Write:
    """Return the time for which a job waits, and its needs at that time."""
    return lambda *found: f"for {moment}; it {_no_room(*found)}"


_WAITS: Mapping[CauseCode, Write] = {
    CauseCode.NO_ROOM: _no_room,
    CauseCode.NO_ROOM_ON_ONE_NODE: _no_room,
    CauseCode.BEHIND: _behind,
    CauseCode.TOO_LARGE: _too_large,
    CauseCode.GANG_INCOMPLETE: _incomplete,
    CauseCode.CHECKPOINT_ELSEWHERE: _checkpoint_elsewhere,
    CauseCode.NO_ROOM_FOR_POD: lambda snapshot, state, cause: why_no_node(
        snapshot, state, gpus=cause.gpus or state.least, alone=False
    ),
    CauseCode.POD_FITS_NOWHERE: lambda snapshot, state, cause: why_no_node(
        snapshot, state, gpus=cause.gpus or state.least, alone=True
    ),
    CauseCode.NAMESPACE_LIMIT: _namespace_limit,
    CauseCode.PRIORITY_NOT_ALLOWED: _priority_not_allowed,
    CauseCode.QUEUE_QUOTA: lambda snapshot, state, cause: (
        f"needs at least {count_gpus(state.least)}; {_why(snapshot, state, cause=cause)}"
    ),
    CauseCode.NEXT_ROUND: _until("the next round, in which the policy shares out all GPUs"),
    CauseCode.NEXT_LEASE: _until(
        "the end of a lease, when the policy shares out the GPUs of that job"
    ),
}


_WEIGHED = frozenset({CauseCode.NO_ROOM, CauseCode.NO_ROOM_ON_ONE_NODE, CauseCode.BEHIND})
"""Reasons for waiting although the policy could take GPUs from other jobs."""


# --- why no node takes its pods ------------------------------------------------------------


def why_no_node(snapshot: Snapshot, state: JobState, *, gpus: int, alone: bool) -> str:
    """
    Return why no nodes with ``gpus`` GPUs take its pods now; or, ``alone``, ever could.

    Requests of other pods count in the first case, and not in the second.
    """
    needs = state.needs
    nodes = snapshot.cluster.nodes
    if state.bound_to:
        nodes = tuple(node for node in nodes if node.name in state.bound_to)
    if needs is None or not nodes:
        return f"needs {count_gpus(gpus)} on nodes that take its pods"
    open_to = [node for node in nodes if needs.nodes is None or node.name in needs.nodes]
    if not open_to:
        plural = "" if len(nodes) == 1 else "s"
        return (
            f"its pod may be on none of the {len(nodes)} node{plural} of the pool: {_barred(needs)}"
        )
    of: Amount = attrgetter("capacity" if alone else "free")
    roomy = [node for node in open_to if needs.fits(of(node))]
    if not roomy:
        return _too_little(needs, open_to, of=of, alone=alone) + _describe_others(needs)
    names = ", ".join(node.name for node in roomy[:SHOWN])
    more = f" and {len(roomy) - SHOWN} others" if len(roomy) > SHOWN else ""
    has = sum(len(node.usable) for node in roomy)
    where = (
        f"its pod ({_asked(needs)}) has room on {names}{more} only, with {count_gpus(has)} in all"
    )
    return f"needs {count_gpus(gpus)}, and {where}{_describe_others(needs)}"


def _too_little(needs: Needs, nodes: Sequence[Node], *, of: Amount, alone: bool) -> str:
    """Name the resources that are short on every node; else those of the node that lacks the fewest."""
    asked = dict(needs.amounts)
    short = [set(lacking(asked, of(node) or {})) for node in nodes]
    everywhere = sorted(set.intersection(*short))
    if not everywhere:
        some = ", ".join(
            f"{node.name} has too little {' and '.join(sorted(names))}"
            for node, names in list(zip(nodes, short, strict=True))[:SHOWN]
        )
        more = f", and so have {len(nodes) - SHOWN} others" if len(nodes) > SHOWN else ""
        return f"its pod asks {_asked(needs)}: {some}{more}"
    name = everywhere[0]
    best = max(nodes, key=lambda node: _there(node, of, name=name))
    most = show(name, max(0, _there(best, of, name=name)))
    has = "has at all" if alone else "has free"
    asks = show(name, asked[name])
    if name == "pods":
        return f"no node of the pool takes more pods; {best.name} {has} {most}"
    return f"its pod asks {asks}; the most that any node of the pool {has} is {most} ({best.name})"


def _barred(needs: Needs) -> str:
    reasons = sorted(needs.refusals, key=lambda each: (-each[1], each[0]))
    parts = [f"{count} {why}" for why, count in reasons[:SHOWN]]
    if len(reasons) > SHOWN:
        parts.append(f"{sum(count for _, count in reasons[SHOWN:])} for other reasons")
    return "; ".join(parts) or "no reason is known"


def _describe_others(needs: Needs) -> str:
    """Name the properties of the nodes that refuse the pods regardless of room."""
    return f"; of the others {_barred(needs)}" if needs.refusals else ""


def _asked(needs: Needs) -> str:
    amounts = [show(name, amount) for name, amount in needs.amounts if name != "pods"]
    return ", ".join(amounts[: SHOWN + 1]) or "nothing but its place"


def _there(node: Node, of: Amount, *, name: str) -> int:
    return (of(node) or {}).get(name, 0)


# --- words --------------------------------------------------------------------------------


def _find(snapshot: Snapshot, job: JobId) -> JobState | None:
    waiting = snapshot.queue.select({job})
    if waiting:
        return waiting[job]
    return next((state for state in snapshot.running if state.id == job), None)
