"""
The fastest progress that a job makes in a shape, over all batches that a policy may give it.

:mod:`dljob_lab.bounding.demands` asks. Progress is counted in iterations of the job's own batch, each
weighed by the worth of its samples where the noise of the training is highest, so no moment of
the training is faster than this progress.

A job may be allowed thousands of batches, and nearly all of them lie between two others that bound
them: an iteration takes no less time when its batch is larger, so between two batches ``low`` and
``high`` progress is at most ``high / low`` times the progress with ``low``. Only intervals that may
hold more than the best so far are halved, until they can exceed it by :data:`SLACK` at most.
"""

import math
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import pairwise

from dljob.core.model import Job
from dljob.core.predicting.predictor import Predictor
from dljob.sim.jobs.workloads import TracedJob
from dljob_wire.messages import Shape

SLACK = 0.01
"""By what share the result may be above the progress with the best batch; never below it."""

Progress = Callable[[int], float]
"""Iterations of the own batch a second, by batch."""


def find_progress(traced: TracedJob, shape: Shape, *, truth: Predictor) -> float:
    """Find the most progress a second that any allowed batch gives in this shape, or a little more."""
    job = traced.job
    own = job.training.batch_size
    unchanged = truth.speed(job, shape)
    if not job.batch.elastic or not own:
        return unchanged
    noise = traced.noise

    def progress_with(batch: int) -> float:
        worth = (
            1.0
            if noise is None
            else max(noise.worth(batch, own=own, progress=begin) for begin in noise.begins)
        )
        return truth.speed_with(job, shape, batch_size=batch) * worth

    return max(unchanged, _find_most(progress_with, sorted(_edges(job, truth))))


def _edges(job: Job, truth: Predictor) -> set[int]:
    """
    The batches between which speeds follow one rule.

    Those are the least and the largest, the job's own, those at which the model was measured, and
    the middle between two of these, where prediction turns from one measurement to the other.
    """
    largest = max(job.batch.maximum, job.training.batch_size)
    measured = sorted(
        {kind.batch_size for kind in truth.profiles if kind.model == job.type.model} - {0}
    )
    middles = (math.sqrt(one * two) for one, two in pairwise(measured))
    turns = {end for middle in middles for end in (math.floor(middle), math.floor(middle) + 1)}
    wanted = {1, largest, job.training.batch_size, *measured, *turns}
    return {batch for batch in wanted if 1 <= batch <= largest}


def _find_most(progress: Progress, edges: list[int]) -> float:
    """Find the most progress at the edges and between them, or at most :data:`SLACK` more."""
    known = {batch: progress(batch) for batch in edges}
    best = max(known.values())
    intervals = [_bounded(known[low], low, high=high) for low, high in pairwise(edges)]
    heapify(intervals)
    # The interval that may hold most comes first, so the others hold no more either.
    while intervals and -intervals[0][0] > best * (1.0 + SLACK):
        _, low, high = heappop(intervals)
        middle = min(max(math.isqrt(low * high), low + 1), high - 1)
        known[middle] = progress(middle)
        best = max(best, known[middle])
        for interval in _halves(known, low, middle=middle, high=high):
            heappush(intervals, interval)
    return max(best, -intervals[0][0]) if intervals else best


def _halves(
    known: dict[int, float], low: int, *, middle: int, high: int
) -> Iterator[tuple[float, int, int]]:
    yield _bounded(known[low], low, high=middle)
    yield _bounded(known[middle], middle, high=high)


def _bounded(progress: float, low: int, *, high: int) -> tuple[float, int, int]:
    """An interval behind the most that the batches inside it can give, negated for the heap."""
    # The batch ``high`` itself is known, so the largest inside is one less.
    return -progress * (high - 1) / low, low, high
