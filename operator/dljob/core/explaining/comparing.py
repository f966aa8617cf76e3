"""The gain of a job and the loss of others by an exchange of GPUs, in seconds."""

from collections.abc import Mapping
from math import inf, isfinite

from dljob.core.explaining.needs import find_release, free_by_node, held_by_node, least_need
from dljob.core.explaining.phrases import at_most, enumerated
from dljob.core.model import JobId, JobState, Snapshot
from dljob.core.placement.largest import acceptable_types
from dljob.core.planning import Move, Reshape
from dljob.core.predicting.predictor import Predictor

Worths = Mapping[JobId, float]
"""The worth of a GPU to each job at the latest decision, where the policy states it."""


# --- a job that waits -------------------------------------------------------------------------


def compare_with_running(snapshot: Snapshot, state: JobState, *, worths: Worths) -> str:
    """
    Return what a start now would save the job, and cost the jobs that could make room most easily.

    The times are bounds, because both may get more GPUs before they end. Nothing is said of a job of unknown speed.
    """
    own = worths.get(state.id, 0.0)
    if own <= 0.0 or not Predictor.of(snapshot).is_measured(state):
        return ""
    missing = state.least - least_need(snapshot, state).most(free_by_node(snapshot))
    worth, taken, lost = 0.0, 0, 0.0
    rivals = list[JobState]()
    for each, gpus, rival in _rank_rivals(snapshot, state, worths=worths):
        if taken >= missing:
            break
        counted = min(gpus, missing - taken)
        worth, taken = worth + each * counted, taken + counted
        lost += _find_loss(snapshot, rival, to=state, gpus=counted)
        rivals.append(rival)
    if taken < max(1, missing) or not isfinite(lost):
        return ""
    saved = _find_wait(snapshot, state)
    gain = f"save it {at_most(saved)} of waiting and " if isfinite(saved) else ""
    names = enumerated([f"{rival.id}{_show_priority(rival, above=state)}" for rival in rivals])
    told = f"; a start now would {gain}cost {names} {at_most(lost)}"
    if len(rivals) > 1:
        told += " together"
    if worth < own * taken:
        told += ", but no exchange that gives it enough GPUs pays as a whole"
    return told


def _rank_rivals(
    snapshot: Snapshot, state: JobState, *, worths: Worths
) -> list[tuple[float, int, JobState]]:
    """List running jobs that have GPUs which the job accepts, those first to which one is worth least."""
    kinds = acceptable_types(state, snapshot.cluster)
    by_name = snapshot.cluster.by_name
    found: list[tuple[float, int, JobState]] = []
    for rival in snapshot.running:
        counts = held_by_node(snapshot.cluster, rival)
        gpus = sum(count for node, count in counts if by_name[node].gpu_type in kinds)
        worth = worths.get(rival.id, 0.0)
        if gpus and worth > 0.0:
            found.append((worth, gpus, rival))
    return sorted(found, key=lambda each: (*each[:2], each[2].id))


def _find_loss(snapshot: Snapshot, rival: JobState, *, to: JobState, gpus: int) -> float:
    """Return by how many seconds a running job would end later without these GPUs; infinite if unknown."""
    predictor, now, placement = Predictor.of(snapshot), snapshot.now, rival.placement
    assert placement is not None
    if not _has_length(rival) or not predictor.is_measured(rival):
        return inf
    fewer = [n for n in rival.job.gpus.options if n <= placement.gpus - gpus]
    if fewer:
        shape = predictor.shape(max(fewer), placement.gpu_type)
        after = predictor.remaining_after(rival, shape, now=now)
        return after - predictor.remaining(rival, now)
    if not _has_length(to):
        return inf
    # It stops, and goes on when the other job is done.
    shape = predictor.shape(to.least, predictor.best_type(to.job, to.least))
    return predictor.completion(to, shape, now) + predictor.restart_cost(rival.job, placement.gpus)


# --- a job that makes room --------------------------------------------------------------------


def compare_ends(
    snapshot: Snapshot, state: JobState, *, step: Reshape | Move, other: JobState | None
) -> str:
    """Return how much sooner ``other`` starts, for which a step makes room, and how much later this job ends."""
    gain = _show_priority(other, above=state) if other is not None else ""
    predictor, now = Predictor.of(snapshot), snapshot.now
    if not all(predictor.is_measured(each) for each in (state, other) if each is not None):
        return gain
    if other is not None and other.placement is None:
        saved = _find_wait(snapshot, other)
        gain += f", which starts {at_most(saved)} sooner" if isfinite(saved) else ""
    before = predictor.remaining(state, now)
    after = predictor.remaining_on(state, step.new, now)
    if not before < after < inf or not _has_length(state):
        return gain
    return f"{gain}, and this job ends {at_most(after - before)} later"


def _find_wait(snapshot: Snapshot, state: JobState) -> float:
    """Return in how many seconds ends release enough GPUs for a waiting job; infinite if unknown."""
    release = find_release(snapshot, least_need(snapshot, state))
    return release.seconds if release is not None else inf


def _has_length(state: JobState) -> bool:
    return 0.0 < state.iterations_total < inf


def _show_priority(other: JobState, *, above: JobState) -> str:
    """Name the priority of a job where it is above that of the job concerned."""
    priority = other.job.priority
    return f" (priority {priority})" if priority > above.job.priority else ""
