"""Optimal schedules of small cases, computed without the code of the bound."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np
from scipy.optimize import linprog


def hesrpt_total(sizes: Sequence[float], gpus: int, power: float) -> float:
    """
    The least sum of completion times of jobs that are all present and scale as ``k ** power``.

    The closed form of heSRPT (Berg, Vesilo, Harchol-Balter 2020, arXiv 1903.09346, theorem 3).
    """
    c = 1.0 / (1.0 - power)
    ranked = enumerate(sorted(sizes, reverse=True), start=1)
    total = math.fsum(size * (rank**c - (rank - 1) ** c) ** (1.0 / c) for rank, size in ranked)
    return total / math.pow(gpus, power)


@dataclass(frozen=True)
class Small:
    """A job of a small case."""

    submitted_at: float
    work: float
    speeds: Mapping[int, float]


def least_total(jobs: Sequence[Small], gpus: int) -> float:
    """
    The least sum of completion times that any schedule without costs reaches, by brute force.

    For every order in which jobs may come and end, a linear programme chooses for how long each
    allocation of whole GPUs is in force between one event and the next.
    """
    found = [_least_in_order(jobs, gpus, order) for order in _orders(jobs)]
    return min(total for total in found if total is not None)


Event = tuple[str, int]


def _orders(jobs: Sequence[Small]) -> Iterator[tuple[Event, ...]]:
    events = [(kind, each) for each in range(len(jobs)) for kind in ("comes", "ends")]
    for order in permutations(events):
        came = [jobs[each].submitted_at for kind, each in order if kind == "comes"]
        if came == sorted(came) and all(
            order.index(("comes", each)) < order.index(("ends", each)) for each in range(len(jobs))
        ):
            yield order


def _least_in_order(jobs: Sequence[Small], gpus: int, order: Sequence[Event]) -> float | None:
    choices = [(0, *job.speeds) for job in jobs]
    allocations = [each for each in product(*choices) if sum(each) <= gpus]
    steps, width = len(order), len(allocations)
    variables = steps * width
    cost, fixed, fixed_to = np.zeros(variables), [], []
    work = np.zeros((len(jobs), variables))
    most = np.full(variables, np.inf)
    present: set[int] = set()
    for step, (kind, number) in enumerate(order):
        until = np.zeros(variables)
        until[: (step + 1) * width] = 1.0
        for place, allocation in enumerate(allocations):
            at = step * width + place
            if any(count and each not in present for each, count in enumerate(allocation)):
                most[at] = 0.0
            for each, count in enumerate(allocation):
                work[each, at] = jobs[each].speeds[count] if count else 0.0
        if kind == "comes":
            fixed.append(until)
            fixed_to.append(jobs[number].submitted_at)
            present.add(number)
        else:
            cost += until
            present.discard(number)
    solved = linprog(
        cost,
        A_ub=-work,
        b_ub=[-job.work for job in jobs],
        A_eq=np.array(fixed),
        b_eq=fixed_to,
        bounds=np.column_stack([np.zeros(variables), most]),
    )
    if solved.status != 0:
        return None
    return float(solved.fun) - sum(job.submitted_at for job in jobs)
