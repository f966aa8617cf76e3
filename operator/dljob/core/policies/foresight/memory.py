"""
The memory of ``foresight`` from one decision to the next, also over a restart of the controller.

:mod:`.policy` reads it with :func:`recall` at the beginning of each decision, and returns
:class:`State` at the end. A state is a dict of values that JSON can hold, because only such a one is
written to the store.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from dljob.core.contract import View
from dljob.core.model import JobId
from dljob_wire.messages import Shape

FORM = 3
"""Raised when the plain value changes its meaning; another one is not read."""

SHORTEST_TENURE_S = 1.0

NOVELTY = 0.05
"""The part that the latest tenure has in the usual one."""


class Progress(NamedTuple):
    """
    How far a job was when it was last seen, in seconds on one GPU, and how fast it went on.

    The GPU is of the first type that the job can be given, not of the one that it had.
    """

    attained: float
    pace: float
    submitted_at: float


class Tenure(NamedTuple):
    """The GPUs of a job, and since when it has them."""

    shape: Shape
    since: float
    has_trained: bool = False


class Memory(NamedTuple):
    """The policy's memory."""

    at: float
    levels: Mapping[str, float] = {}
    """The recent worth of a GPU of each type, smoothed."""
    progress: Mapping[JobId, Progress] = {}
    lengths: Mapping[JobId, float] = {}
    """How long the latest jobs were, in seconds on one GPU, in order of their ends."""
    spans: Mapping[JobId, float] = {}
    """How many seconds passed from the submission to the end of each of these jobs."""
    tenures: Mapping[JobId, Tenure] = {}
    usual_tenure: float = 0.0
    """How long jobs usually keep their GPUs, in seconds; 0 before that is known."""


class State(dict[str, Any]):
    """A memory as a plain dict, with the memory itself for the next decision of the same process."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(_write(memory))
        self.memory = memory


def recall(view: View) -> Memory:
    """The memory that a view brings along; an empty one if it has none that can be read."""
    state = view.state
    if isinstance(state, State):
        return state.memory
    if not isinstance(state, Mapping) or state.get("form") != FORM:
        return Memory(view.now)
    try:
        return _read(state)
    except (KeyError, TypeError, ValueError):
        # It was damaged in the store. All that it holds can be learnt again.
        return Memory(view.now)


def _write(memory: Memory) -> dict[str, Any]:
    return {
        "form": FORM,
        "at": memory.at,
        "levels": dict(memory.levels),
        "progress": {job: tuple(each) for job, each in memory.progress.items()},
        "lengths": dict(memory.lengths),
        "spans": dict(memory.spans),
        "tenures": {
            job: (*each.shape, each.since, each.has_trained) for job, each in memory.tenures.items()
        },
        "usual_tenure": memory.usual_tenure,
    }


def _read(plain: Mapping[str, Any]) -> Memory:
    return Memory(
        float(plain["at"]),
        {str(kind): float(level) for kind, level in plain["levels"].items()},
        {JobId(job): Progress(*map(float, each)) for job, each in plain["progress"].items()},
        {JobId(job): float(length) for job, length in plain["lengths"].items()},
        {JobId(job): float(span) for job, span in plain["spans"].items()},
        {
            JobId(job): Tenure(
                Shape(int(gpus), int(nodes), str(gpu_type)), float(since), bool(has_trained)
            )
            for job, (gpus, nodes, gpu_type, since, has_trained) in plain["tenures"].items()
        },
        float(plain["usual_tenure"]),
    )


# --- for how long a change of GPUs is expected to last ------------------------------------


def expect_tenure(known: Tenure | None, usual: float, *, now: float) -> float:
    """
    Return for how many seconds a change is expected to last; infinite if nothing limits it.

    The gain of a change has to pay for its cost before the next change follows. A job that was changed a
    moment ago will likely be changed again soon, because the cause of that change is still in motion. So a
    change of a running job is expected to last as long as the job has had its GPUs, or as long as jobs
    usually keep theirs: the geometric mean of both.
    """
    if known is None or usual <= 0.0:
        return math.inf
    return math.sqrt(max(SHORTEST_TENURE_S, now - known.since) * usual)


def remember_tenures(memory: Memory, view: View) -> tuple[Mapping[JobId, Tenure], float]:
    """Return since when each running job has its GPUs, and for how long jobs usually keep theirs."""
    tenures: dict[JobId, Tenure] = {}
    for state in (*view.running, *view.beside):
        assert state.placement is not None
        known, shape = memory.tenures.get(state.id), state.placement.shape
        if known is None or known.shape != shape:
            known = Tenure(shape, view.now)
        elif not known.has_trained and not state.adjusting:
            known = known._replace(has_trained=True)
        tenures[state.id] = known
    usual = memory.usual_tenure
    # The end of a job is no change: each bid has its own, and that of one job says nothing about others.
    stopped = view.find_there([job for job in memory.tenures if job not in tenures])
    for job, known in memory.tenures.items():
        is_over = job in stopped or (job in tenures and tenures[job].since != known.since)
        # A job that is changed while it still starts was given its GPUs too early, not for too long.
        if is_over and known.has_trained:
            lasted = max(SHORTEST_TENURE_S, view.now - known.since)
            usual = usual ** (1.0 - NOVELTY) * lasted**NOVELTY if usual > 0.0 else lasted
    return tenures, usual
