"""
The paper's offline profiling: a job runs for a while on each number of GPUs, and what is learnt of
it there is its profile (``dljob profiles measure``). With ``--mini-epochs`` it runs Coach's plan
(:mod:`dlcore.predicting.mini_epochs`) instead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dlcore.documents import jobfile
from dlcore.model import JobId
from dlcore.predicting import mini_epochs
from dlcore.profiles import JobType, Profile, Speed
from dllocal.measuring import Bench


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The course of a job's measurements."""

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
    *,
    course: Course,
    watch: Callable[[str], None] = lambda _: None,
) -> Profile:
    """Take the job through the course; ``watch`` is called with each activity. May raise StuckError."""
    kind = jobfile.parse(document, require_template=True).type
    job = bench.put(document, course.counts[0])
    for gpus in [*course.counts] * course.rounds:
        on = _name(gpus)
        watch(f"{job} starts on {on}")
        await bench.have(job, gpus, course.patience_s)
        watch(f"{job} trains on {on}")
        for _ in range(course.samples):
            await _measure_speed(bench, job, patience_s=course.patience_s)
    return await _end(bench, job, kind, course.patience_s, watch)


async def profile_in_mini_epochs(
    bench: Bench,
    document: dict[str, Any],
    *,
    seconds: float,
    patience_s: float,
    watch: Callable[[str], None] = lambda _: None,
) -> Profile:
    """Take the job through Coach's mini-epochs, each as long as that on its fewest GPUs."""
    parsed = jobfile.parse(document, require_template=True)
    options = parsed.gpus.options
    job = bench.put(document, options[0])
    watch(f"{job} starts on {_name(options[0])}")
    await bench.have(job, options[0], patience_s)
    watch(f"{job} shows how much it trains in {seconds:g} s")
    per_s = await _measure_speed(bench, job, patience_s=patience_s)
    for epoch in mini_epochs.plan(options, per_s, seconds=seconds):
        await bench.have(job, epoch.gpus, patience_s)
        watch(f"{job} trains {epoch.iterations} iterations on {_name(epoch.gpus)}")
        before = _seen(bench, job)
        await bench.train(job, epoch.iterations, patience_s)
        # A mini-epoch that was over too soon to be measured goes on until it is.
        if _seen(bench, job) == before:
            await _measure_speed(bench, job, patience_s=patience_s)
    return await _end(bench, job, parsed.type, patience_s, watch)


def _name(gpus: int) -> str:
    return f"{gpus} GPU{'s' if gpus != 1 else ''}"


async def _end(
    bench: Bench, job: JobId, kind: JobType, patience_s: float, watch: Callable[[str], None]
) -> Profile:
    watch(f"{job} ends")
    await bench.take_down(job, patience_s)
    return bench.running.memory.profiles()[kind]


async def _measure_speed(bench: Bench, job: JobId, *, patience_s: float) -> float:
    """Return the speed in the present shape when it was measured once more."""
    before = _seen(bench, job).seen_at
    await bench.until(
        job,
        lambda: _seen(bench, job).seen_at > before,
        "train long enough to be measured",
        patience_s,
    )
    return _seen(bench, job).iterations_per_s


def _seen(bench: Bench, job: JobId) -> Speed:
    """Return the latest speed in the job's present shape; 0 if none was measured, or it has no GPUs."""
    placement = bench.entry(job).status.placement
    if placement is None:
        # It has ended, or waits after a failure: `Bench.until` says so with the reason.
        return Speed(0.0, 0.0)
    profile = bench.running.memory.profiles().get(bench.entry(job).job.type)
    speed = profile.speeds.get(placement.shape) if profile is not None else None
    return speed if speed is not None else Speed(0.0, 0.0)
