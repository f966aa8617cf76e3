"""
One search of ONES: from the jobs of a view and the old population to a better population.

Called by :mod:`dljob_lab.policies.elastic.ones.policy` at each update of the schedule. The budget is counted
in evaluated genomes, so that a smaller one costs quality and a slow machine costs nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dljob.core.contract import View
from dljob.core.model import JobState
from dljob.core.placement.largest import acceptable_types, largest_possible
from dljob.core.predicting.growths import usual_growth
from dljob_lab.policies.elastic.ones import genomes
from dljob_lab.policies.elastic.ones.genomes import Floats, GenomeSpace, Ints
from dljob_lab.policies.elastic.ones.memory import Gene
from dljob_lab.policies.elastic.ones.progress import draw_left
from dljob_wire.messages import Shape

BY_GENERATION = 4
"""A generation evaluates, of as many genomes as the population has: the refreshed ones, two
children for each, and one mutant for each."""

MOST_GENOMES = 256
"""The population is kept in a store, and one of thousands would be megabytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A job that the search may give GPUs."""

    state: JobState
    limit: int
    """How many GPUs it may have at most."""
    ran_seconds: float
    epoch: float
    """Iterations in an epoch."""
    alpha: float
    beta: float
    """Its progress, as a Beta distribution."""
    is_new: bool


def batch_of(state: JobState, gpus: int) -> int | None:
    """
    The global batch of an elastic job with ``gpus`` GPUs; ``None`` for one whose batch is fixed.

    A GPU takes what it takes when the job trains its own batch on the GPUs that it requests.
    """
    job = state.job
    own, batch = job.training.batch_size, job.batch
    if not batch.elastic or not own:
        return None
    return max(1, min(own * gpus // job.gpus.requested, max(batch.maximum, own)))


def most_gpus(state: JobState, view: View, *, kind: str) -> int:
    """Return how many GPUs of a type the job can ever use; 0 if it cannot run there at all."""
    most = largest_possible(state, view.cluster, gpu_type=kind)
    return max((gpus for gpus in state.job.gpus.options if gpus <= most), default=0)


class Speeds:
    """Iterations a second, of a job's own batch, by number of GPUs: each asked for once."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._known: dict[tuple[object, ...], float] = {}

    def find(self, state: JobState, gpus: int, *, kind: str) -> float:
        """Return how fast the job would be, packed, with the batch that it would have there."""
        shape = self._view.predictor.shape(gpus, kind)
        speed = self._speed(state, shape)
        placement = state.placement
        if placement is None or state.adjusting or state.speed <= 0.0:
            return speed
        # Its measured speed corrects the predictions for its other numbers of GPUs.
        here = self._speed(state, placement.shape)
        return speed * state.speed / here if here > 0.0 else speed

    def _speed(self, state: JobState, shape: Shape) -> float:
        batch = batch_of(state, shape.gpus)
        key = (state.job.type, state.least, state.job.training.batch_size, batch, shape)
        known = self._known.get(key)
        if known is None:
            known = self._view.predictor.speed_with(state.job, shape, batch_size=batch)
            if known <= 0.0:
                known = usual_growth(state.least, shape.gpus)
            self._known[key] = known
        return known


def make_space(
    view: View, candidates: Sequence[Candidate], *, speeds: Speeds, taken: Mapping[str, int]
) -> tuple[GenomeSpace, Ints]:
    """
    Set up the space, and return by item the fewest GPUs of a job, 0 where it cannot be.

    ``taken`` are the GPUs by type that other jobs keep.
    """
    kinds = view.cluster.types
    free = [max(0, view.cluster.totals[kind] - taken[kind]) for kind in kinds]
    sizes = np.array(free, dtype=np.int64)
    widest = max((each.limit for each in candidates), default=0)
    width = min(widest, int(sizes.max(initial=0))) + 1
    items = len(candidates) * len(kinds)
    floors = np.zeros((items, width), dtype=np.int64)
    rates = np.zeros((items, width))
    least = np.zeros(items, dtype=np.int64)
    for place, candidate in enumerate(candidates):
        for kind in _kinds_of(candidate.state, view):
            number = kinds.index(kind)
            item = place * len(kinds) + number
            # It cannot get the GPUs that other jobs keep, however large the cluster is.
            useful = _find_useful(candidate, kind, view=view, speeds=speeds, most=free[number])
            for gpus, speed in useful.items():
                floors[item, gpus:] = gpus
                rates[item, gpus] = gpus / speed
                least[item] = least[item] or gpus
    space = GenomeSpace(
        sizes=sizes,
        floors=floors,
        rates=rates,
        ran_seconds=np.array([each.ran_seconds for each in candidates]),
        ranks=np.array([each.state.order for each in candidates], dtype=np.int64),
    )
    return space, least


def _kinds_of(state: JobState, view: View) -> tuple[str, ...]:
    """The types of GPU that the job may have: a running job keeps its own."""
    if state.placement is None:
        return acceptable_types(state, view.cluster)
    held = state.placement.gpu_type
    return (held,) if held in view.cluster.totals else ()


def _find_useful(
    candidate: Candidate, kind: str, *, view: View, speeds: Speeds, most: int
) -> dict[int, float]:
    """The numbers of GPUs that the job may have, but for those with which it is no faster."""
    state, useful = candidate.state, dict[int, float]()
    most = min(most, candidate.limit, most_gpus(state, view, kind=kind))
    for gpus in (n for n in state.job.gpus.options if n <= most):
        speed = speeds.find(state, gpus, kind=kind)
        if speed > max(useful.values(), default=0.0):
            useful[gpus] = speed
    return useful


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much a search may cost, and how bold it is."""

    population: int
    generations: int
    mutation: float

    @classmethod
    def of(
        cls, gpus: int, *, population: int, generations: int, evaluations: int, mutation: float
    ) -> "Budget":
        """As many genomes as GPUs, unless they are given or the evaluations are too few for it."""
        size = min(population or gpus, MOST_GENOMES, max(1, evaluations // BY_GENERATION))
        size = max(1, size)
        return cls(
            population=size,
            generations=max(1, min(generations, evaluations // (BY_GENERATION * size))),
            mutation=mutation,
        )


class Search:
    """The evolution of one decision."""

    def __init__(
        self,
        view: View,
        candidates: Sequence[Candidate],
        *,
        speeds: Speeds,
        budget: Budget,
        rng: np.random.Generator,
        taken: Mapping[str, int],
    ) -> None:
        self._candidates = candidates
        self._kinds = view.cluster.types
        self._board, self._least = make_space(view, candidates, speeds=speeds, taken=taken)
        self._budget = budget
        self._rng = rng
        self._alpha = np.array([each.alpha for each in candidates])
        self._beta = np.array([each.beta for each in candidates])
        self._epochs = np.array([each.epoch for each in candidates])

    def run(self, old: Sequence[Sequence[Gene]]) -> tuple[Mapping[int, Gene], list[list[Gene]]]:
        """Return the best genome, by candidate, and the new population, the best first."""
        space = self._board
        if not space.jobs or not space.total:
            return {}, []
        counts = self._remember(old) if old else self._initialise()
        counts = self._refresh(counts, space.total)
        rows = genomes.pack(counts, space)
        for _ in range(self._budget.generations):
            rows, counts = self._evolve(rows)
        best = dict(self._read(counts[0]))
        return best, [[gene for _, gene in self._read(row)] for row in counts]

    def _initialise(self) -> Ints:
        """The first population: a random job on each GPU, as far as its limit allows."""
        space, size = self._board, self._budget.population
        drawn = self._rng.random((size, space.jobs))
        empty = np.zeros((size, space.items), dtype=np.int64)
        # Filling in the order of random gains is giving GPUs to random jobs.
        return genomes.fill(empty, space, left=drawn / np.maximum(self._mean_rate(), 1e-12))

    def _mean_rate(self) -> Floats:
        """By job, what its utilisation gains by its first start; used to even gains out."""
        by_item = self._board.rates.max(axis=1, initial=0.0)
        by_job: Floats = by_item.reshape(self._board.jobs, self._board.kinds).max(axis=1)
        return by_job

    def _remember(self, old: Sequence[Sequence[Gene]]) -> Ints:
        """*Refresh*, first part: genomes of old, without the jobs that have ended."""
        space, size = self._board, self._budget.population
        index = {each.state.id: place for place, each in enumerate(self._candidates)}
        counts = np.zeros((size, space.items), dtype=np.int64)
        for row in range(size):
            for job, kind, gpus in old[row % len(old)]:
                if job in index and kind in self._kinds:
                    counts[row, index[job] * space.kinds + self._kinds.index(kind)] = gpus
        return self._squeeze(genomes.trim(counts, space))

    def _squeeze(self, counts: Ints) -> Ints:
        """Return where GPUs are gone from the cluster, take the last jobs from genomes with too many."""
        by_job = counts.reshape(len(counts), self._board.jobs, self._board.kinds)
        fits = by_job.cumsum(axis=1) <= self._board.sizes
        return np.where(fits, by_job, 0).reshape(counts.shape)

    def _refresh(self, counts: Ints, most: int) -> Ints:
        """*Refresh*, the rest: limits are heeded, new jobs come in, idle GPUs are filled."""
        space = self._board
        counts = genomes.trim(counts, space)
        new = [place for place, each in enumerate(self._candidates) if each.is_new][:most]
        counts = genomes.admit(counts, space, newcomers=new, least=self._least)
        counts = genomes.trim(counts, space)
        return genomes.fill(counts, space, left=self._draw(len(counts)))

    def _evolve(self, rows: Ints) -> tuple[Ints, Ints]:
        """One generation: operate, evaluate, select."""
        space, size = self._board, len(rows)
        counts = genomes.count(rows, space)
        crossed = genomes.cross(rows, self._rng)
        children = genomes.trim(genomes.count(crossed, space), space)
        children = genomes.fill(children, space, left=self._draw(len(children)))
        chosen = self._rng.integers(size, size=size)
        mutants = self._mutate(counts[chosen])
        everyone = np.concatenate([counts, children, mutants])
        former = np.concatenate([rows, crossed, rows[chosen]])
        best = self._select(everyone, size)
        # Workers of one job come to be side by side: the reorder operation.
        return genomes.pack(everyone[best], space, former=former[best]), everyone[best]

    def _mutate(self, counts: Ints) -> Ints:
        """*Uniform mutation*: preempt each job with the mutation rate, and let others in."""
        space = self._board
        barred = self._rng.random((len(counts), space.jobs)) < self._budget.mutation
        kept = np.where(np.repeat(barred, space.kinds, axis=1), 0, counts)
        return genomes.fill(kept, space, left=self._draw(len(kept)), barred=barred)

    def _draw(self, draws: int) -> Floats:
        left: Floats = draw_left(self._alpha, self._beta, rng=self._rng, draws=draws) * self._epochs
        return left

    def _select(self, counts: Ints, size: int) -> Ints:
        """
        The best genomes by probability sampling: each draw of all jobs' progress has a winner.

        The genome that wins most draws is the schedule; where fewer have won than survive, the
        best on the average follow. Fewer idle GPUs come before any gain.
        """
        idle, costs = genomes.cost(counts, self._board, left=self._draw(size))
        ranked = np.lexsort((costs.mean(axis=0), idle))
        fullest = np.flatnonzero(idle == idle[ranked[0]])
        winners = fullest[costs[:, fullest].argmin(axis=1)]
        won = np.bincount(winners, minlength=len(counts))
        places = np.empty(len(counts), dtype=np.int64)
        places[ranked] = np.arange(len(counts))
        order = np.lexsort((places, -won))
        # One of several equal genomes is enough.
        _, first = np.unique(counts[order], axis=0, return_index=True)
        distinct = order[np.sort(first)]
        return np.concatenate([distinct, order])[:size]

    def _read(self, counts: Ints) -> list[tuple[int, Gene]]:
        """A genome in the words of the memory."""
        found = []
        for item in np.flatnonzero(counts):
            place, kind = divmod(int(item), self._board.kinds)
            job = self._candidates[place].state.id
            found.append((place, (job, self._kinds[kind], int(counts[item]))))
        return found
