"""How a job that waits compares with those that run, where a policy weighs jobs against each other."""

from collections.abc import Mapping, Sequence

from dlcore.explaining.needs import (
    free_by_node,
    held_by_node,
    least_need,
)
from dlcore.explaining.phrases import (
    enumerated,
)
from dlcore.model import (
    JobId,
    JobState,
    Snapshot,
)
from dlcore.placement.largest import acceptable_types

Worths = Mapping[JobId, float]
"""The worth of a GPU to each job at the latest decision, where the policy states it."""


def compare_with_running(snapshot: Snapshot, state: JobState, *, worths: Worths) -> str:
    """Compare the worth of the missing GPUs to the jobs that could give them up most easily."""
    own = worths.get(state.id, 0.0)
    if own <= 0.0:
        return ""
    missing = state.least - least_need(snapshot, state).most(free_by_node(snapshot))
    rivals, worth, taken = list[JobId](), 0.0, 0
    for each, gpus, rival in _rank_rivals(snapshot, state, worths=worths):
        if taken >= missing:
            break
        counted = min(gpus, missing - taken)
        worth, taken = worth + each * counted, taken + counted
        rivals.append(rival)
    if taken < max(1, missing):
        return ""
    return f"; {_write_comparison(worth / taken / own, rivals)}"


def _rank_rivals(
    snapshot: Snapshot, state: JobState, *, worths: Worths
) -> list[tuple[float, int, JobId]]:
    """List running jobs that have GPUs which the job accepts, those first to which one is worth least."""
    kinds = acceptable_types(state, snapshot.cluster)
    by_name = snapshot.cluster.by_name
    found: list[tuple[float, int, JobId]] = []
    for rival in snapshot.running:
        counts = held_by_node(snapshot.cluster, rival)
        gpus = sum(count for node, count in counts if by_name[node].gpu_type in kinds)
        worth = worths.get(rival.id, 0.0)
        if gpus and worth > 0.0:
            found.append((worth, gpus, rival.id))
    return sorted(found)


def _write_comparison(ratio: float, rivals: Sequence[JobId]) -> str:
    """``ratio``: how many times as much a GPU is worth to these as to the job that waits."""
    names, verb = enumerated(rivals), "runs" if len(rivals) == 1 else "run"
    if ratio >= _CLEARLY_MORE:
        return f"a GPU is worth {ratio:.2g} times as much to {names} now, which {verb}"
    if ratio * _CLEARLY_MORE > 1.0:
        return f"a GPU is worth as much to {names} now, which {verb}"
    return (
        f"a GPU is worth {1.0 / ratio:.2g} times as much to it as to {names}, which {verb}, but"
        " no exchange that gives it enough of them pays as a whole"
    )


_CLEARLY_MORE = 1.05
"""Below this ratio the sentence calls two worths equal, because rounding would make them so."""
