"""
The SideCar paper's offline profiling (``dljob profiles measure``): a job runs for a while on each number of GPUs, and the
controller learns its profile. With ``--mini-epochs`` the job follows Coach's plan
(:mod:`dljob.core.predicting.mini_epochs`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dljob.core.documents import jobfile
from dljob.core.model import JobId
from dljob.core.predicting import mini_epochs
from dljob.core.profiles import JobType, Profile, Speed
from dljob.local.measuring import Bench


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The measurements of a job."""

    counts: Sequence[int]
    """The numbers of GPUs, in order."""
    rounds: int = 1
    samples: int = 1
    """The number of speeds that are measured on each number of GPUs."""
    patience_s: float = 600.0


async def profile_job(
    bench: Bench,
    document: dict[str, Any],
    *,
    course: Course,
    watch: Callable[[str], None] = lambda _: None,
) -> Profile:
    """Measure a job; ``watch`` is called with each activity. Raises :class:`StuckError`."""
    kind = jobfile.parse(document, require_template=True).type
    job = bench.put(document, course.counts[0])
    for gpus in [*course.counts] * course.rounds:
        on = _name(gpus)
        watch(f"{job} starts on {on}")
        await bench.have(job, gpus, patience_s=course.patience_s)
        watch(f"{job} trains on {on}")
        for _ in range(course.samples):
            await _measure_speed(bench, job, patience_s=course.patience_s)
    return await _end(bench, job, kind=kind, patience_s=course.patience_s, watch=watch)


async def profile_in_mini_epochs(
    bench: Bench,
    document: dict[str, Any],
    *,
    seconds: float,
    patience_s: float,
    watch: Callable[[str], None] = lambda _: None,
) -> Profile:
    """Measure a job in Coach's mini-epochs, which take ``seconds`` each on the fewest GPUs."""
    parsed = jobfile.parse(document, require_template=True)
    options = parsed.gpus.options
    job = bench.put(document, options[0])
    watch(f"{job} starts on {_name(options[0])}")
    await bench.have(job, options[0], patience_s=patience_s)
    watch(f"{job} shows how much it trains in {seconds:g} s")
    per_s = await _measure_speed(bench, job, patience_s=patience_s)
    for epoch in mini_epochs.plan(options, per_s, seconds=seconds):
        await bench.have(job, epoch.gpus, patience_s=patience_s)
        watch(f"{job} trains {epoch.iterations} iterations on {_name(epoch.gpus)}")
        before = _seen(bench, job)
        await bench.train(job, epoch.iterations, patience_s)
        # The mini-epoch was too short to be measured.
        if _seen(bench, job) == before:
            await _measure_speed(bench, job, patience_s=patience_s)
    return await _end(bench, job, kind=parsed.type, patience_s=patience_s, watch=watch)


def _name(gpus: int) -> str:
    return f"{gpus} GPU{'s' if gpus != 1 else ''}"


async def _end(
    bench: Bench, job: JobId, *, kind: JobType, patience_s: float, watch: Callable[[str], None]
) -> Profile:
    watch(f"{job} ends")
    await bench.take_down(job, patience_s)
    return bench.running.memory.profiles()[kind]


async def _measure_speed(bench: Bench, job: JobId, *, patience_s: float) -> float:
    """Return the next measured speed in the present shape."""
    before = _seen(bench, job).seen_at
    await bench.until(
        job,
        lambda: _seen(bench, job).seen_at > before,
        "train long enough to be measured",
        patience_s,
    )
    return _seen(bench, job).iterations_per_s


def _seen(bench: Bench, job: JobId) -> Speed:
    """Return the latest speed in the job's present shape; 0 if there is none."""
    placement = bench.entry(job).status.placement
    if placement is None:
        # The job has ended or waits after a failure, which `Bench.until` reports.
        return Speed(0.0, 0.0)
    profile = bench.running.memory.profiles().get(bench.entry(job).job.type)
    speed = profile.speeds.get(placement.shape) if profile is not None else None
    return speed if speed is not None else Speed(0.0, 0.0)
