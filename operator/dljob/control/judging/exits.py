"""Describes how processes ended, by the reports of their SideCars."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.status import Ended, StartNumber, Status
from dljob.core.model import Job
from dljob_wire.messages import Failure, Phase, Saving, State

NOT_STARTED = frozenset(
    {"CannotStart", "CommandNotExecutable", "CommandNotFound", "TooManyProcesses", "UnknownGPUs"}
)
"""Reasons why processes could not be started at all; the message names the cause."""
LONGEST_EXCEPTION = 200
NOT_FOUND, NOT_EXECUTABLE = "CommandNotFound", "CommandNotExecutable"
EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE = 127, 126
"""The exit statuses of a shell for a command that it cannot run."""
KILLED = frozenset({"OutOfMemory"})
"""Reasons why the kernel killed a process; a signal alone does not show the reason."""


UNMATCHED = "ProgressNotMatched"
"""The problem that a SideCar reports when the job's expression has matched no line."""
ENDED_EARLY = "EndedEarly"
NEARLY = 0.9
"""The share of its work after which a training with only one report counts as done, because the
interval of its reports is unknown.
"""


class Ending(NamedTuple):
    """How a training ended whose processes all ended with status 0."""

    reason: str
    message: str


def describe_end(job: Job, status: Status, *, job_pods: Sequence[JobPod]) -> Ending:
    """Return how the training ended; ``status`` includes its last report."""
    total = job.training.iterations
    is_asked = bool(job.progress.log or job.progress.file or job.progress.http)
    if total is None or not is_asked:
        return Ending("Finished", "its training finished")
    if not status.iteration and not any(state.progress.begun for state in states_of(job_pods)):
        problems = (problem for state in states_of(job_pods) for problem in state.problems)
        source = "log" if job.progress.log else "file" if job.progress.file else "http"
        # The problem shows the last line that could have had an iteration.
        why = next((each.message for each in problems if each.name == UNMATCHED), "")
        why = f"because {why or f'progress.{source} reported no iteration'}"
        message = f"its training finished; how far it came is not known, {why}"
        return Ending("Finished", message)
    if job.training.target is not None or has_done_all(job, status, job_pods=job_pods):
        return Ending("Finished", "its training finished")
    if status.lap:
        why = f"its counter begins again after {status.lap:,} iterations"
        return Ending("Finished", f"its training finished; how far it came is not certain: {why}")
    last = status.iteration
    message = f"its training ended with exit status 0 after {last:,} of {total:,} iterations"
    return Ending(ENDED_EARLY, message)


def has_done_all(job: Job, status: Status, *, job_pods: Sequence[JobPod]) -> bool:
    """Return True if nothing is left to train by the job's own reports."""
    total, last = job.training.iterations, status.iteration
    if total is None or not last:
        return False
    interval = max((state.progress.interval for state in states_of(job_pods)), default=0)
    return last + interval >= total if interval else last >= NEARLY * total


def exited(job_pods: Iterable[JobPod]) -> list[JobPod]:
    """Return the pods whose processes all ended well, before the SideCar ended any of them."""
    return [
        job_pod
        for job_pod in job_pods
        if job_pod.state is not None and job_pod.state.released and job_pod.phase is Phase.EXITED
    ]


def exited_unasked(job_pods: Iterable[JobPod]) -> list[JobPod]:
    """Return those whose processes nothing had asked for a checkpoint, which may be their reason to end."""
    unasked: list[JobPod] = []
    for job_pod in exited(job_pods):
        state = job_pod.state
        change = state.change if state is not None else None
        if (
            state is None
            or change is None
            or change.generation <= state.held_generation
            or (change.saving is Saving.NONE and change.checkpoint_seconds <= 0.0)
        ):
            unasked.append(job_pod)
    return unasked


def ended_with_zero(job_pods: Iterable[JobPod]) -> list[JobPod]:
    """Return the pods whose processes all ended with status 0, on their own or on request.

    That does not show if the training was done: a training that saves and exits ends like this too.
    """
    return [
        job_pod
        for job_pod in job_pods
        if job_pod.state is not None
        and (job_pod.has_ended or (job_pod.state.released and job_pod.phase in _OVER))
        and job_pod.state.processes
        and all(process.exit_code == 0 for process in job_pod.state.processes)
    ]


_OVER = frozenset({Phase.EXITED, Phase.STOPPED})


def add_ends(before: Ended, gone: Sequence[JobPod]) -> Ended | None:
    """Add the pods that are ``gone`` to those of the same start before them; None if that adds nothing."""
    zero = ended_with_zero(gone)
    start = max((job_pod.start for job_pod in zero), default=StartNumber(0))
    if start < max(before.start, 1):
        return None
    if start > before.start:
        before = Ended(start)
    zero = [job_pod for job_pod in zero if job_pod.start == start]
    return before._replace(
        containers=before.containers + len(zero), unasked=before.unasked + len(exited_unasked(zero))
    )


def describe_failure(failed: Sequence[JobPod]) -> str:
    """Return a clause: the command that could not start, or how the first rank failed."""
    for state in states_of(failed):
        for problem in state.problems:
            if problem.name in NOT_STARTED:
                return problem.message
            if problem.name in KILLED:
                return f"{problem.message}; {problem.remedy}"
    process = find_culprit(failed)
    if process is None:
        return "its processes failed"
    why = f": {process.exception[:LONGEST_EXCEPTION]}" if process.exception else ""
    if process.signal is not None:
        return f"rank {process.rank} was ended by signal {process.signal}{why}"
    return f"rank {process.rank} exited with status {process.exit_code}{why}"


def find_culprit(failed: Sequence[JobPod]) -> Failure | None:
    """Return the process that failed first; the later failures are its consequences.

    Between nodes the clocks decide, which differ by less than the time in which a process notices
    the loss of a peer. A SideCar of an older release does not report the first process.
    """
    failures = [state.failure for state in states_of(failed) if state.failure is not None]
    if failures:
        return min(failures, key=lambda failure: failure.at)
    processes = (process for state in states_of(failed) for process in state.processes)
    bad = (one for one in processes if one.signal is not None or one.exit_code)
    first = next(bad, None)
    return None if first is None else Failure(first.rank, 0.0, first.exit_code, first.signal)


def states_of(job_pods: Sequence[JobPod]) -> Iterator[State]:
    return (job_pod.state for job_pod in job_pods if job_pod.state is not None)
