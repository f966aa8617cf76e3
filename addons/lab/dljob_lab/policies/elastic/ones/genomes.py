"""
The genomes of ONES and the four operations on them (paper, section 3.2.2), on whole populations.

A genome names for each GPU the *item* that has it: a job on one type of GPU. A population is a
matrix with a row for each genome, and most of the work is done on its *counts*, the number of GPUs
of each item. :mod:`dljob_lab.policies.elastic.ones.searching` calls this with one :class:`GenomeSpace` a decision.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GenomeSpace:
    """
    The jobs and types that the genomes of one decision are about.

    Item ``job * kinds + kind`` is a job on a type of GPU; the items after those stand for idle
    GPUs of each type.
    """

    sizes: Ints
    """The number of GPUs of each type."""
    floors: Ints
    """By item and number of GPUs: the largest number that the item may have within it."""
    rates: Floats
    """By item and number of GPUs: GPU-seconds for one iteration, 0 for no GPU."""
    ran_seconds: Floats
    """By job: how long it has trained."""
    ranks: Ints
    """By job: its place in the order of arrival."""

    @property
    def kinds(self) -> int:
        return len(self.sizes)

    @property
    def jobs(self) -> int:
        return len(self.ranks)

    @property
    def items(self) -> int:
        return self.jobs * self.kinds

    @property
    def total(self) -> int:
        return int(self.sizes.sum())


def count(genomes: Ints, space: GenomeSpace) -> Ints:
    """The number of GPUs that each item has in each genome; idle GPUs are left out."""
    width = space.items + space.kinds
    shifted = genomes + width * np.arange(len(genomes))[:, None]
    counts = np.bincount(shifted.ravel(), minlength=width * len(genomes))
    return counts.reshape(len(genomes), width)[:, : space.items].astype(np.int64)


def trim(counts: Ints, space: GenomeSpace) -> Ints:
    """
    Leave each job one type of GPU and a number that it may have.

    A crossover can give a job GPUs of several types, more than its limit, or a number that is not
    among its options: what is beyond becomes idle.
    """
    if space.kinds > 1:
        by_job = counts.reshape(len(counts), space.jobs, space.kinds)
        best = by_job.argmax(axis=2)[:, :, None] == np.arange(space.kinds)
        counts = np.where(best, by_job, 0).reshape(counts.shape)
    return _floor(counts, space)


def find_idle(counts: Ints, space: GenomeSpace) -> Ints:
    """The number of idle GPUs of each type in each genome."""
    by_kind: Ints = counts.reshape(len(counts), space.jobs, space.kinds).sum(axis=1)
    return space.sizes - by_kind


def fill(counts: Ints, space: GenomeSpace, *, left: Floats, barred: Flags | None = None) -> Ints:
    """
    Give idle GPUs to jobs, those with the smallest gain in utilisation first.

    The gain of a job is what its remaining GPU-time becomes larger by when it is raised to its
    limit: ``delta phi * Y`` of the paper. ``left`` holds by genome and job the iterations left,
    drawn for this purpose; ``barred`` the jobs that must get nothing.
    """
    counts, idle = counts.copy(), find_idle(counts, space)
    rows = np.arange(len(counts))
    room = np.repeat(idle[:, None, :], space.jobs, axis=1).reshape(counts.shape)
    wanted = _floor(counts + room, space)
    gains = _rate(wanted, space) - _rate(counts, space)
    gains *= np.repeat(left, space.kinds, axis=1)
    gains[wanted <= counts] = np.inf
    if barred is not None:
        gains[np.repeat(barred, space.kinds, axis=1)] = np.inf
    order = np.argsort(gains, axis=1, kind="stable")
    reach = int(np.isfinite(gains).sum(axis=1).max(initial=0))
    for place in range(reach):
        if not idle.any():
            break
        item = order[:, place]
        kind, job = item % space.kinds, item // space.kinds
        have = counts[rows, item]
        most = np.minimum(have + idle[rows, kind], space.floors.shape[1] - 1)
        new = np.maximum(space.floors[item, most], have)
        new = np.where(np.isfinite(gains[rows, item]), new, have)
        if space.kinds > 1:
            whole = counts.reshape(len(counts), space.jobs, space.kinds)[rows, job].sum(axis=1)
            new = np.where(whole > have, have, new)
        counts[rows, item] = new
        idle[rows, kind] -= new - have
    return counts


def admit(counts: Ints, space: GenomeSpace, *, newcomers: Sequence[int], least: Ints) -> Ints:
    """
    Give each new job its fewest GPUs, taken from the jobs that have trained longest if none is idle.

    ``least`` holds the fewest GPUs by item; 0 where the job cannot have that type.
    """
    counts = counts.copy()
    # The GPUs of a former newcomer are not taken for the next.
    age = np.repeat(space.ran_seconds, space.kinds)
    is_new = np.zeros(space.jobs, dtype=bool)
    is_new[list(newcomers)] = True
    victims = np.flatnonzero(~np.repeat(is_new, space.kinds))
    victims = victims[np.argsort(-age[victims], kind="stable")]
    for job in newcomers:
        own = job * space.kinds
        possible = np.flatnonzero(least[own : own + space.kinds])
        if not len(possible):
            continue
        idle = find_idle(counts, space)
        # All candidates agree on the type with most idle GPUs among them.
        kind = int(possible[idle[:, possible].sum(axis=0).argmax()])
        need = int(least[own + kind])
        lacking = np.maximum(need - idle[:, kind], 0)
        from_kind = victims[victims % space.kinds == kind]
        there = counts[:, from_kind]
        before = there.cumsum(axis=1) - there
        taken = np.clip(lacking[:, None] - before, 0, there)
        is_enough = taken.sum(axis=1) >= lacking
        counts[:, from_kind] -= taken * is_enough[:, None]
        counts[:, own + kind] = np.where(is_enough, need, counts[:, own + kind])
    return counts


def pack(counts: Ints, space: GenomeSpace, *, former: Ints | None = None) -> Ints:
    """
    Write counts as genomes with the GPUs of each job side by side: the reorder operation.

    Jobs come in the order in which they occur in the ``former`` genomes, new ones behind them by
    arrival.
    """
    size, width = len(counts), space.items + space.kinds
    first = np.full((size, width), space.total, dtype=np.int64)
    if former is not None:
        rows, places = np.arange(size)[:, None], np.arange(space.total)
        np.minimum.at(first, (rows, former), places)
    kind = np.concatenate([np.arange(space.items) % space.kinds, np.arange(space.kinds)])
    arrival = np.concatenate([np.repeat(space.ranks, space.kinds), np.zeros(space.kinds, int)])
    is_idle = np.arange(width) >= space.items
    keys = ((kind * 2 + is_idle)[None] * (space.total + 1) + first) * (width + 1)
    keys = keys + np.argsort(np.argsort(arrival, kind="stable"))[None]
    order = np.argsort(keys, axis=1, kind="stable")
    full = np.concatenate([counts, find_idle(counts, space)], axis=1)
    amounts = np.take_along_axis(full, order, axis=1)
    return np.repeat(order.ravel(), amounts.ravel()).reshape(size, space.total)


def cross(genomes: Ints, rng: np.random.Generator) -> Ints:
    """Uniform crossover: of as many pairs as there are genomes, two children each."""
    size = len(genomes)
    one, two = genomes[rng.integers(size, size=size)], genomes[rng.integers(size, size=size)]
    mask = rng.random(genomes.shape) < 0.5
    return np.concatenate([np.where(mask, one, two), np.where(mask, two, one)])


def cost(counts: Ints, space: GenomeSpace, *, left: Floats) -> tuple[Ints, Floats]:
    """
    Return the cost that the paper minimises (Eq. 8), and the number of idle GPUs, which its Eq. 4 wants to be none.

    ``left`` holds by draw and job the iterations left; the costs come by draw and genome.
    """
    by_job = _rate(counts, space).reshape(len(counts), space.jobs, space.kinds).sum(axis=2)
    return find_idle(counts, space).sum(axis=1), left @ by_job.T


def _floor(counts: Ints, space: GenomeSpace) -> Ints:
    within = np.clip(counts, 0, space.floors.shape[1] - 1)
    found: Ints = space.floors[np.arange(space.items), within]
    return found


def _rate(counts: Ints, space: GenomeSpace) -> Floats:
    found: Floats = space.rates[np.arange(space.items), counts]
    return found
