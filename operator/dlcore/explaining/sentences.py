"""
Sentences for people, made from the causes that programs read.

A :class:`~dlcore.model.Cause` says only what stays true while a job waits. The numbers of the
moment – what is free, who releases something and when – are looked up here, when somebody asks:
``dljob why``, the event that tells of a step, the condition of a job. Nothing in a decision depends
on this module, so it may take its time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import chain
from math import inf, isfinite
from typing import assert_never

from dlcore.explaining.pods import why_no_node
from dlcore.model import (
    Cause,
    CauseCode,
    Cluster,
    GpuRef,
    Job,
    JobId,
    JobState,
    NodeName,
    Placement,
    Snapshot,
)
from dlcore.placement.free_gpus import acceptable_types, largest_possible
from dlcore.placement.limits import namespace_of
from dlcore.planning import Move, Reshape, Start, Step, Stop, Wait
from dlcore.predicting.predictor import Predictor
from dlcore.profiles import CostTerm
from dlwire.messages import Shape

Free = Mapping[NodeName, int]

SHORTEST = 0.95
"""Less than so many seconds is less than one."""


Worths = Mapping[JobId, float]
"""What a GPU is worth to each job at the latest decision, where the policy says it."""

UNSAID: Worths = {}


def sentence_for_wait(
    snapshot: Snapshot, state: JobState, cause: Cause, worths: Worths = UNSAID
) -> str:
    """Say why a job waits, with the numbers of this snapshot and what the policy weighed."""
    write = _WAITS.get(cause.code)
    reason = write(snapshot, state, cause) if write else _REASONS[cause.code](cause)
    if cause.code in _WEIGHED:
        reason += _compare_with_running(snapshot, state, worths)
    return f"waits: {reason}"


def sentences_for(
    snapshot: Snapshot, steps: Sequence[Step], worths: Worths = UNSAID
) -> dict[JobId, str]:
    """Say what each step of a plan does and why; who waits, waits for what the others leave."""
    settled = _settle(snapshot, steps)
    return {
        step.job: sentence_for_step(settled if isinstance(step, Wait) else snapshot, step, worths)
        for step in steps
    }


def _settle(snapshot: Snapshot, steps: Sequence[Step]) -> Snapshot:
    """Show the same instant as if these steps had been taken."""
    placed = {
        step.job: step.placement if isinstance(step, Start) else step.new
        for step in steps
        if isinstance(step, Start | Reshape | Move)
    }
    stopped = {step.job for step in steps if isinstance(step, Stop)}
    if not placed and not stopped:
        return snapshot
    states = (*snapshot.running, *snapshot.pending)
    changed = [
        replace(state, placement=placed.get(state.id), speed=0.0, adjusting=True)
        if state.id in placed or state.id in stopped
        else state
        for state in sorted(states, key=lambda state: state.order)
    ]
    return replace(
        snapshot,
        running=tuple(state for state in changed if state.placement is not None),
        pending=tuple(state for state in changed if state.placement is None),
    )


def sentence_for_step(snapshot: Snapshot, step: Step, worths: Worths = UNSAID) -> str:
    """Say what a step does and why. ``snapshot`` is the one that its plan was made from."""
    state = _find(snapshot, step.job)
    match step:
        case Wait():
            if state is None:
                return f"waits: {_REASONS[step.cause.code](step.cause)}"
            return sentence_for_wait(snapshot, state, step.cause, worths)
        case Stop():
            return f"gives back {_gpus(step.old.gpus)}: {_REASONS[step.cause.code](step.cause)}"
        case Start():
            return f"starts on {_where(step.placement)}: {_reason_for(snapshot, state, step)}"
        case Reshape():
            done = f"goes from {step.old.gpus} to {_where(step.new)}"
            return f"{done}: {_reason_for(snapshot, state, step)}"
        case Move():
            done = f"moves from {_where(step.old)} to {_where(step.new)}"
            return f"{done}: {_reason_for(snapshot, state, step)}"
        case _:
            assert_never(step)


def sentence_for_training(snapshot: Snapshot, state: JobState) -> str:
    """Say how a job that trains does, how far it is and how long it will take yet."""
    assert state.placement is not None
    now, total = snapshot.now, state.iterations_total
    told = f"trains on {_where(state.placement)}"
    if state.unsaved_from is not None and len(state.job.gpus.options) > 1:
        told += ", which it keeps as long as no checkpoint saves its work"
    if state.speed > 0.0:
        told += f" at {state.speed:.3g} iterations/s"
    if not isfinite(total) or total <= 0.0:
        return f"{told}; nobody can say yet how many iterations it needs"
    if state.iterations_done > total:
        done = f"it has done {state.iterations_done:,.0f} iterations and goes on"
        return f"{told}; {done}, where {total:,.0f} were expected"
    told += f"; {_percent(state.iterations_at(now) / total)} is done"
    left = Predictor.of(snapshot).remaining_span(state, now)
    return (
        f"{told}, and {between(left.low, left.high)} is left" if isfinite(left.expected) else told
    )


def _percent(fraction: float) -> str:
    # All is done only when it is.
    return f"{min(99.9, 100.0 * fraction):.3g} %"


# --- the reasons --------------------------------------------------------------------------


def _named(job: JobId | None) -> str:
    return "another job" if job is None else job


def _worth(cause: Cause) -> str:
    """Say by how much the change pays, where the policy weighs jobs against each other."""
    if cause.worth <= 0.0:
        return ""
    return f", because a GPU is worth {cause.worth:g} times as much there now"


_REASONS: Mapping[CauseCode, Callable[[Cause], str]] = {
    CauseCode.ITS_TURN: lambda _: "it is its turn",
    CauseCode.IDLE_GPUS: lambda _: "these GPUs would be idle",
    CauseCode.FASTER_WITH_MORE: lambda _: "it is done sooner with more GPUs",
    CauseCode.FASTER_WITH_FEWER: lambda _: "it is done sooner with fewer GPUs",
    CauseCode.FAIR_SHARE: lambda cause: (
        f"{cause.job} is due its fair share" if cause.job else "the shares are fair so"
    ),
    CauseCode.EXPLORING: lambda _: "its speed there is not known yet, and is worth knowing",
    CauseCode.FASTER_TYPE: lambda _: "it trains faster on this type of GPU",
    CauseCode.PACKING: lambda _: "it is on fewer nodes then, or leaves one free for others",
    CauseCode.MAKES_ROOM: lambda cause: f"it makes room for {_named(cause.job)}{_worth(cause)}",
    CauseCode.OUTRANKED: lambda cause: f"{_named(cause.job)} comes before it{_worth(cause)}",
    CauseCode.SUSPENDED: lambda _: "it is suspended, until spec.suspend is false again",
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
    CauseCode.PRIORITY_NOT_ALLOWED: lambda _: "its namespace may not use its priority",
}


def _reason_for(snapshot: Snapshot, state: JobState | None, step: Start | Reshape | Move) -> str:
    reason = _REASONS[step.cause.code](step.cause)
    if state is not None and not isinstance(step, Start):
        reason += _gain(snapshot, state, step)
    if isinstance(step, Start) and step.gang > step.placement.gpus:
        reason += f"; it needs {step.gang} to begin, and they idle until then"
    if step.after:
        has = "has" if len(step.after) == 1 else "have"
        reason += f"; it begins once {_enumerated(step.after)} {has} released them"
    return reason


def _gain(snapshot: Snapshot, state: JobState, step: Reshape | Move) -> str:
    """Compare the ends with and without the change, where it is made for the sake of the end."""
    if step.cause.code not in (CauseCode.FASTER_WITH_MORE, CauseCode.FASTER_WITH_FEWER):
        return ""
    predictor = Predictor.of(snapshot)
    moves = not set(step.new.nodes) <= set(step.old.nodes)
    before = predictor.remaining(state, snapshot.now)
    after = predictor.remaining_after(state, step.new.shape, snapshot.now, moves=moves)
    if not after < before < inf or not isfinite(state.iterations_total):
        return ""
    cost = _cost_of_change(predictor, state.job, step.new.shape)
    return f", in {duration(after)} instead of {duration(before)}; {cost}"


def _cost_of_change(predictor: Predictor, job: Job, shape: Shape) -> str:
    """Say how long the change takes, as far as that was measured: what was not is no short time."""
    seconds, untimed = predictor.change_cost(job, shape), predictor.untimed(job)
    if CostTerm.PROCESS_INITIALIZATION in untimed:
        return "how long the change takes has not been measured yet"
    if untimed:
        return (
            f"the change takes {duration(seconds)} and its checkpoint, which has not been timed yet"
        )
    return f"the change takes {duration(seconds)}"


# --- what a waiting job needs, and who has it ---------------------------------------------


@dataclass(frozen=True, slots=True)
class _Need:
    """So many GPUs at once, on nodes that go together."""

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


def _need(snapshot: Snapshot, state: JobState, cause: Cause) -> _Need:
    need = _least_need(snapshot, state)
    most = need.most(_free(snapshot))
    if cause.gpus:
        need = replace(need, gpus=cause.gpus)
    elif most >= need.gpus:
        # Who waits although there is enough for its smallest option waits for what it requested.
        need = replace(need, gpus=state.job.gpus.requested)
    if cause.code is CauseCode.NO_ROOM_ON_ONE_NODE and most >= need.gpus:
        # The job itself would spread, so it is the policy that wants it on one node.
        return replace(need, limit=1)
    return need


def _least_need(snapshot: Snapshot, state: JobState) -> _Need:
    demand, cluster = state.job.gpus, snapshot.cluster
    if state.bound_to:
        here = tuple(node for node in state.bound_to if node in cluster.by_name)
        return _Need(state.least, (here,), limit=1)
    kinds = acceptable_types(state, cluster)
    apart = tuple(_nodes_of(cluster, (kind,)) for kind in kinds)
    groups = (_nodes_of(cluster, kinds),) if demand.mixed else apart
    return _Need(state.least, groups, demand.max_nodes)


def _nodes_of(cluster: Cluster, kinds: Sequence[str]) -> tuple[NodeName, ...]:
    return tuple(node.name for node in cluster.nodes if node.gpu_type in kinds)


def _free(snapshot: Snapshot) -> dict[NodeName, int]:
    """How many GPUs of each node nobody has."""
    free = {node: len(usable) for node, usable in snapshot.cluster.usable.items()}
    for state in snapshot.running:
        for node, count in _held(snapshot.cluster, state):
            free[node] -= count
    return free


def _held(cluster: Cluster, state: JobState) -> Iterator[tuple[NodeName, int]]:
    """How many GPUs of each node others could have if the job ended."""
    slices = state.placement.slices if state.placement is not None else ()
    for node, gpus in slices:
        # A node may have been lost, and a GPU may have been cordoned under the job.
        if node in cluster.usable:
            yield node, len(set(gpus).intersection(cluster.usable[node]))


def _supply(snapshot: Snapshot, need: _Need) -> str:
    """Say what is free now, and who will have released enough when."""
    most = need.most(_free(snapshot))
    if most >= need.gpus:
        return f"{_are(most)} free by now"
    now = f"the most free{need.where} is {most}" if most and need.where else f"{_are(most)} free"
    out = _out_of_service(snapshot, chain.from_iterable(need.groups))
    return f"{now}, {_release(snapshot, need, most)}{out}"


def _release(snapshot: Snapshot, need: _Need, most: int) -> str:
    predictor = Predictor.of(snapshot)
    free = _free(snapshot)
    reached = most
    helpful: list[JobId] = []
    for seconds, state in _iter_ends(snapshot, predictor):
        for node, count in _held(snapshot.cluster, state):
            free[node] += count
        after = need.most(free)
        if after > reached:
            helpful.append(state.job.id)
            reached = after
        if reached >= need.gpus:
            verb = "releases" if len(helpful) == 1 else "release"
            return f"{_enumerated(helpful)} {verb} {reached - most} more in {duration(seconds)}"
    return "and nobody can say when there will be enough"


def _out_of_service(snapshot: Snapshot, names: Iterable[NodeName]) -> str:
    """Say how many GPUs of these nodes are given to nobody, and why the first of them."""
    nodes = [snapshot.cluster.by_name[name] for name in dict.fromkeys(names)]
    out = [(node, gpu) for node in nodes for gpu in node.gpus if gpu.unavailable_because]
    if not out:
        return ""
    node, gpu = out[0]
    whole = all(each.unavailable_because == gpu.unavailable_because for each in node.gpus)
    where = node.name if whole else GpuRef(node.name, gpu.index)
    return f"; {_are(len(out))} out of service ({where}: {gpu.unavailable_because})"


def _iter_ends(snapshot: Snapshot, predictor: Predictor) -> Iterator[tuple[float, JobState]]:
    """Every running job whose end can be predicted, with the seconds until then, soonest first."""
    # Half a gang does not train, so it does not end either; nor is told what is only supposed.
    known = [state for state in snapshot.running if isfinite(state.iterations_total)]
    training = [state for state in known if not _is_incomplete(state)]
    ends = [(predictor.remaining(state, snapshot.now), state) for state in training]
    yield from sorted(
        ((seconds, state) for seconds, state in ends if isfinite(seconds)),
        key=lambda end: (end[0], end[1].order),
    )


def _is_incomplete(state: JobState) -> bool:
    return state.placement is not None and state.gang > state.placement.gpus


# --- why a job waits ----------------------------------------------------------------------


def _no_room(snapshot: Snapshot, state: JobState, cause: Cause) -> str:
    need = _need(snapshot, state, cause)
    return f"needs {_gpus(need.gpus)}{need.where}; {_supply(snapshot, need)}"


def _behind(snapshot: Snapshot, state: JobState, cause: Cause) -> str:
    ahead = _find(snapshot, cause.job) if cause.job is not None else None
    if ahead is None:
        behind = f"{_named(cause.job)} is ahead of it in the queue"
        return f"{behind}; {_no_room(snapshot, state, cause)}"
    need = _need(snapshot, ahead, Cause(CauseCode.NO_ROOM))
    needs = f"needs {_gpus(need.gpus)}{need.where}"
    return f"{ahead.job.id} is ahead of it in the queue and {needs}; {_supply(snapshot, need)}"


def _too_large(snapshot: Snapshot, state: JobState, cause: Cause) -> str:
    wanted = state.job.gpus.types
    if wanted and not acceptable_types(state, snapshot.cluster):
        there = ", ".join(kind for kind in snapshot.cluster.types if kind) or "none of a known type"
        return f"needs GPUs of type {' or '.join(wanted)}; this cluster has {there}"
    least = cause.gpus or state.least
    if not any(node.gpus for node in snapshot.cluster.nodes):
        return f"needs at least {_gpus(least)}; no node of this cluster has a GPU to give"
    most = largest_possible(state, snapshot.cluster)
    kind = f" of type {' or '.join(wanted)}" if wanted else ""
    limit = state.job.gpus.max_nodes
    spread = "" if limit is None else " on one node" if limit == 1 else f" on {limit} nodes"
    kinds = acceptable_types(state, snapshot.cluster)
    return (
        f"needs at least {_gpus(least)}{kind}; even empty, this cluster could give it"
        f" {most or 'none'}{spread}{_out_of_service(snapshot, _nodes_of(snapshot.cluster, kinds))}"
    )


def _incomplete(snapshot: Snapshot, state: JobState, cause: Cause) -> str:
    needed = cause.gpus or state.gang or state.least
    has = state.placement.gpus if state.placement is not None else 0
    need = _need(snapshot, state, Cause(CauseCode.NO_ROOM, gpus=max(1, needed - has)))
    return f"has {has} of the {_gpus(needed)} that it needs to begin; {_supply(snapshot, need)}"


def _checkpoint_elsewhere(snapshot: Snapshot, state: JobState, cause: Cause) -> str:
    need = _need(snapshot, state, cause)
    where = " or ".join(state.bound_to) or "a node that is gone"
    return (
        f"needs {_gpus(need.gpus)} on {where}, where its checkpoint is; {_supply(snapshot, need)}"
    )


def _no_room_for_pod(snapshot: Snapshot, state: JobState, cause: Cause) -> str:
    return why_no_node(snapshot, state, cause.gpus or state.least, alone=False)


def _pod_fits_nowhere(snapshot: Snapshot, state: JobState, cause: Cause) -> str:
    return why_no_node(snapshot, state, cause.gpus or state.least, alone=True)


def _namespace_limit(snapshot: Snapshot, state: JobState, _: Cause) -> str:
    namespace = namespace_of(state.id)
    limit = snapshot.limits.gpus_of(namespace)
    if limit is None:
        return f"needs {_gpus(state.least)}, which its namespace may have by now"
    has = sum(
        other.placement.gpus
        for other in snapshot.running
        if other.placement is not None and namespace_of(other.id) == namespace
    )
    return (
        f"needs at least {_gpus(state.least)}; the jobs of namespace {namespace or '(none)'} may"
        f" have {_gpus(limit)} together, and have {has}"
    )


def _priority_not_allowed(snapshot: Snapshot, state: JobState, _: Cause) -> str:
    namespace = namespace_of(state.id)
    highest = snapshot.limits.priority_of(namespace)
    allowed = "any" if highest is None else f"at most {highest}"
    return (
        f"its priority is {state.job.priority}, and jobs of namespace {namespace or '(none)'} may"
        f" have {allowed}; lower spec.priority, or ask for a higher limit"
    )


Write = Callable[[Snapshot, JobState, Cause], str]


def _until(moment: str) -> Write:
    """Say for which moment a job waits, and what it needs then."""
    return lambda *found: f"for {moment}; it {_no_room(*found)}"


_WAITS: Mapping[CauseCode, Write] = {
    CauseCode.NO_ROOM: _no_room,
    CauseCode.NO_ROOM_ON_ONE_NODE: _no_room,
    CauseCode.BEHIND: _behind,
    CauseCode.TOO_LARGE: _too_large,
    CauseCode.GANG_INCOMPLETE: _incomplete,
    CauseCode.CHECKPOINT_ELSEWHERE: _checkpoint_elsewhere,
    CauseCode.NO_ROOM_FOR_POD: _no_room_for_pod,
    CauseCode.POD_FITS_NOWHERE: _pod_fits_nowhere,
    CauseCode.NAMESPACE_LIMIT: _namespace_limit,
    CauseCode.PRIORITY_NOT_ALLOWED: _priority_not_allowed,
    CauseCode.NEXT_ROUND: _until("the next round, in which the policy shares out all GPUs"),
    CauseCode.NEXT_LEASE: _until(
        "the end of a lease, when the policy shares out the GPUs of that job"
    ),
}


_WEIGHED = frozenset({CauseCode.NO_ROOM, CauseCode.NO_ROOM_ON_ONE_NODE, CauseCode.BEHIND})
"""For these reasons a job waits although a policy could take GPUs from others."""


def _compare_with_running(snapshot: Snapshot, state: JobState, worths: Worths) -> str:
    """Say how much the GPUs that a job lacks are worth to the jobs that could give them up most easily."""
    own = worths.get(state.id, 0.0)
    if own <= 0.0:
        return ""
    missing = state.least - _least_need(snapshot, state).most(_free(snapshot))
    rivals, worth, taken = list[JobId](), 0.0, 0
    for each, gpus, rival in _rank_rivals(snapshot, state, worths):
        if taken >= missing:
            break
        counted = min(gpus, missing - taken)
        worth, taken = worth + each * counted, taken + counted
        rivals.append(rival)
    if taken < max(1, missing):
        return ""
    return f"; {_write_comparison(worth / taken / own, rivals)}"


def _rank_rivals(
    snapshot: Snapshot, state: JobState, worths: Worths
) -> list[tuple[float, int, JobId]]:
    """List running jobs that have GPUs which the job accepts, those first to which one is worth least."""
    kinds = acceptable_types(state, snapshot.cluster)
    by_name = snapshot.cluster.by_name
    found: list[tuple[float, int, JobId]] = []
    for rival in snapshot.running:
        counts = _held(snapshot.cluster, rival)
        gpus = sum(count for node, count in counts if by_name[node].gpu_type in kinds)
        worth = worths.get(rival.id, 0.0)
        if gpus and worth > 0.0:
            found.append((worth, gpus, rival.id))
    return sorted(found)


def _write_comparison(ratio: float, rivals: Sequence[JobId]) -> str:
    """``ratio``: how many times as much a GPU is worth to these as to the job that waits."""
    names, verb = _enumerated(rivals), "runs" if len(rivals) == 1 else "run"
    if ratio >= _CLEARLY_MORE:
        return f"a GPU is worth {ratio:.2g} times as much to {names} now, which {verb}"
    if ratio * _CLEARLY_MORE > 1.0:
        return f"a GPU is worth as much to {names} now, which {verb}"
    return (
        f"a GPU is worth {1.0 / ratio:.2g} times as much to it as to {names}, which {verb}, but"
        " no exchange that gives it enough of them pays as a whole"
    )


_CLEARLY_MORE = 1.05
"""Below this ratio two worths are told as equal, since they would be rounded to that."""


# --- words --------------------------------------------------------------------------------


def _find(snapshot: Snapshot, job: JobId) -> JobState | None:
    waiting = snapshot.queue.select({job})
    if waiting:
        return waiting[job]
    return next((state for state in snapshot.running if state.id == job), None)


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return {0: "none is", 1: "1 is"}.get(count, f"{count} are")


def _where(placement: Placement) -> str:
    return f"{_gpus(placement.gpus)} on {_enumerated(placement.nodes)}"


def _enumerated(names: Sequence[str]) -> str:
    """Name one or two, and count the others."""
    if len(names) <= 2:
        return " and ".join(names)
    return f"{names[0]} and {len(names) - 1} others"


def between(low: float, high: float) -> str:
    """Say between which bounds a duration is, or just how long it is where that says the same."""
    if not isfinite(high):
        return f"{duration(low)} or more"
    shortest, longest = duration(low), duration(high)
    if shortest == longest:
        return longest
    if low < SHORTEST:
        return f"at most {longest.removeprefix('about ')}"
    least, unit = shortest.removeprefix("about ").split(" ")
    most, other = longest.removeprefix("about ").split(" ")
    return f"about {least} to {most} {unit}" if unit == other else f"{shortest} to {most} {other}"


def duration(seconds: float) -> str:
    """Say it as people do who do not need it exactly."""
    if seconds < SHORTEST:
        return "less than 1 s"
    if seconds < 90:
        return f"about {seconds:.0f} s"
    if seconds < 90 * 60:
        return f"about {seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"about {seconds / 3600:.1f} h"
    return f"about {seconds / 86400:.0f} days"
