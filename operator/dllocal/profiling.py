"""
The paper's offline profiling: a job runs for a while on each number of GPUs, and what is learnt of
it there is its profile (``dljob profiles measure``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dlcore import jobfile
from dlcore.model import JobId
from dlcore.profiles import Profile
from dllocal.measuring import Bench
from dlwire.messages import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a job has to go through."""

    counts: Sequence[int]
    """The numbers of GPUs, in this order."""
    rounds: int = 1
    samples: int = 1
    """How many speeds are measured each time."""
    patience_s: float = 600.0
    """How long each step may take."""


async def profile_job(
    bench: Bench,
    document: dict[str, Any],
    course: Course,
    watch: Callable[[str], None] = lambda _: None,
) -> Profile:
    """Take the job through the course; ``watch`` is told what it is doing. May raise Stuck."""
    kind = jobfile.parse(document, require_template=True).type
    job = bench.put(document, course.counts[0])
    for gpus in [*course.counts] * course.rounds:
        on = f"on {gpus} GPU{'s' if gpus != 1 else ''}"
        watch(f"{job} starts {on}")
        await bench.have(job, gpus, course.patience_s)
        watch(f"{job} trains {on}")
        for _ in range(course.samples):
            await _measure_speed(bench, job, course.patience_s)
    watch(f"{job} ends")
    await bench.take_down(job, course.patience_s)
    return bench.running.memory.profiles()[kind]


async def _measure_speed(bench: Bench, job: JobId, patience_s: float) -> None:
    """Return when the speed in the present shape was measured once more."""
    placement = bench.entry(job).status.placement
    assert placement is not None
    before = _seen_at(bench, job, placement.shape)
    await bench.until(
        job,
        lambda: _seen_at(bench, job, placement.shape) > before,
        "train long enough to be measured",
        patience_s,
    )


def _seen_at(bench: Bench, job: JobId, shape: Shape) -> float:
    """When a speed was measured last in this shape; 0 if never."""
    profile = bench.running.memory.profiles().get(bench.entry(job).job.type)
    speed = profile.speeds.get(shape) if profile is not None else None
    return speed.seen_at if speed is not None else 0.0
