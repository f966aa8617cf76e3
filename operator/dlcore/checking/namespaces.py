"""The check that after a plan the jobs of a namespace stay within its limit."""

from collections.abc import Iterator, Sequence

from dlcore.checking.laws import Breach, Law
from dlcore.model import JobState, Snapshot
from dlcore.placement.limits import namespace_of
from dlcore.planning import Start, Step, Stop, Wait


def find_excess(steps: Sequence[Step], snapshot: Snapshot) -> Iterator[Breach]:
    """Find jobs that get more GPUs in a namespace that exceeds its limit after the plan."""
    limits = snapshot.limits
    before = {state.id: _gpus_of(state) for state in snapshot.running}
    after = dict(before)
    for step in steps:
        if isinstance(step, Stop):
            after.pop(step.job, None)
        elif not isinstance(step, Wait):
            whole = step.placement if isinstance(step, Start) else step.new
            after[step.job] = max(whole.gpus, step.gang)
    # Count all jobs of a namespace, including the jobs that the plan does not change.
    totals: dict[str, int] = {}
    for job, gpus in after.items():
        namespace = namespace_of(job)
        totals[namespace] = totals.get(namespace, 0) + gpus
    for job, gpus in after.items():
        namespace = namespace_of(job)
        limit, has = limits.gpus_of(namespace), totals[namespace]
        if limit is not None and has > limit and gpus > before.get(job, 0):
            which = f"namespace {namespace or '(none)'} may have {limit}"
            message = f"gets more GPUs, but {which} and has {has}"
            yield Breach(Law.NAMESPACE_LIMIT, job, message)


def _gpus_of(state: JobState) -> int:
    return max(state.gang, state.placement.gpus) if state.placement is not None else 0
