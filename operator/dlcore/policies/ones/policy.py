"""ONES: evolve a population of schedules, and deploy the best after every epoch."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

import numpy as np

from dlcore.assuming import GUESSES, USUAL_CURVE, Assumes, Knowledge
from dlcore.checking import Law
from dlcore.contract import Decision, Share, View
from dlcore.model import Cause, CauseCode, JobId, JobState, NodeName
from dlcore.options import check, declare
from dlcore.placement.free_gpus import (
    Room,
    acceptable_types,
    count_nodes,
    count_usable,
    grow,
)
from dlcore.policies.ones.memory import (
    MOST_LOGGED,
    Gene,
    Memory,
    Trainee,
    grow_limit,
    resume_limit,
    shrink_limit,
    start_limit,
)
from dlcore.policies.ones.searching import (
    Budget,
    Candidate,
    Search,
    Speeds,
    batch_of,
    most_gpus,
)
from dlcore.predicting.predictor import SUPPOSED_S

_NO_ROOM = Cause(CauseCode.NO_ROOM)
_ITS_TURN = Cause(CauseCode.ITS_TURN)
_MORE = Cause(CauseCode.FASTER_WITH_MORE)
_MAKES_ROOM = Cause(CauseCode.MAKES_ROOM)

SLACK = 1e-6
"""An epoch counts as finished although rounding says that this part of it is missing."""


@dataclass(frozen=True, slots=True)
class Ones:
    """
    Evolve schedules, and deploy the best after all running jobs have finished an epoch.

    ONES (Bian et al., SC '21), section 3. The operations are in ``genomes``, the search in
    ``searching``, the Beta regression in ``progress``, the four limits in ``memory``. The learning
    rate follows the batch linearly (3.3.2); the controller hands it to the process.

    Where the paper leaves room:

    * *Local batch.* A GPU takes its part of the job's own batch on the GPUs that its user requested.
      The global batch of an elastic job grows in step with its GPUs, up to ``batch.max``; beyond that
      the parts become smaller. The paper computes with a constant local batch in *refresh* as well.
      A job without ``batch.elastic`` keeps its batch, and the limits bound its GPUs alone. So R is
      kept as a number of GPUs. A number with which a job is known to be slower is not given.
    * *Numbers of GPUs* are options of the job; what a genome gives beyond one becomes idle and is
      filled again. A job has GPUs of one type, and a running job keeps its type.
    * *Scale up or down.* Both are stated for each epoch. A job that has trained for less than
      ``1 / sigma`` doubles; an older one has the penalty on the limit that it would have without,
      since repeating the penalty on its own result leaves nothing.
    * *sigma* is the rate of arrivals seen so far, times the option ``penalty``.
    * *Score.* Eq. 4 wants every GPU to be used: fewer idle GPUs come before any utilisation.
      The paper calls the winner once the highest and once the smallest score; the smallest is meant.
    * *Remaining work.* Alpha is at least 1, so a job in its first epoch counts with one processed.
      Loss and accuracy are not in a view: the epochs that are expected to be left stand for them;
      with ``declared=false`` every job is expected to train for ``epochs`` epochs.
    * *An epoch* is what the job declares, or else the ``epochs``-th part of its iterations.
    * *Between updates* idle GPUs are given to waiting jobs, which changes no job that runs. An
      update does not wait for the first epochs of those, or a steady stream of arrivals would put it
      off for ever; it leaves such a job as it is until its own first epoch is finished.
    * *Search budget.* The paper evolves while jobs train. Here each update evolves ``generations``
      and evaluates at most ``evaluations`` genomes; ``population`` is the number of GPUs unless
      given, and at most 256.
    * *Priority* is not in the paper: of the jobs that wait between updates the higher comes first.
    * *Placement.* Genomes are packed, and scored as packed; nodes are chosen as for all policies.
    """

    name: ClassVar[str] = "ones"
    paper: ClassVar[str] = "ONES (Bian et al., SC '21) 3"
    needs: ClassVar[str] = "speeds by GPUs and batch; learns sizes from jobs that have ended"
    assumes: ClassVar[Assumes] = {
        Knowledge.LENGTH: "learns from jobs that ended how many epochs to expect",
        Knowledge.SPEED: USUAL_CURVE,
        Knowledge.MEASURED: GUESSES,
        Knowledge.BATCH: GUESSES,
        Knowledge.EPOCH: "divides its length, or an hour on its fewest GPUs, into as many epochs as the option says",
    }
    breaks: ClassVar[frozenset[Law]] = frozenset()

    generations: int = declare(8, at_least=1, at_most=1000)
    """How many generations an update evolves at most; fewer cost quality, not time."""
    evaluations: int = declare(2048, at_least=1, at_most=1_000_000)
    """How many genomes it may evaluate: the population is smaller where they do not suffice."""
    population: int = declare(0, at_least=0, at_most=100_000)
    """How many genomes are kept; 0: as many as there are GPUs."""
    mutation: float = declare(0.1, at_least=0.0, at_most=1.0)
    """The mutation rate theta, which the paper does not give."""
    penalty: float = declare(1.0, at_least=0.0)
    """Sigma over the rate of arrivals: how soon long jobs are scaled down; 0 never."""
    epochs: int = declare(30, at_least=1, at_most=1_000_000)
    """Into how many epochs a job is cut that declares none."""
    declared: bool = True
    """Whether the iterations that a job declares are a feature of the regression."""

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        """Deploy the best schedule if it is time, and else let waiting jobs have idle GPUs."""
        round_ = _Round(self, view)
        shares = round_.update() if round_.is_due() else round_.keep()
        round_.start_waiting(shares)
        memory = round_.remember(shares)
        return Decision(shares, wait=_NO_ROOM, wake_at=round_.find_wake(), state=memory.to_plain())


class _Round:
    """One decision."""

    def __init__(self, policy: Ones, view: View) -> None:
        self._policy = policy
        self._view = view
        self._speeds = Speeds(view)
        memory = Memory.from_plain(view.state)
        self._newest = max((s.order for s in (*view.running, *view.pending[-1:])), default=-1)
        if memory.first_order < 0 <= self._newest:
            # Jobs that are here already are no measure of how fast they come.
            memory = replace(memory, first_at=view.now, first_order=self._newest)
        known = view.pending.select(memory.trainees.keys())
        living = {*known, *(state.id for state in view.running)}
        self._memory = memory.forget_ended(living, view.now)
        self._stopped = known
        """Jobs that have had GPUs and wait."""
        self._trainees = {
            state.id: self._find_trainee(state) for state in (*view.running, *known.values())
        }
        self._updated = False
        self._population: tuple[tuple[Gene, ...], ...] = self._memory.population
        seed = [view.seed & 0xFFFFFFFF, self._memory.decisions]
        self._rng = np.random.default_rng(seed)
        placements = [state.placement for state in view.running if state.placement is not None]
        self._room = Room(view.cluster, placements)

    def _find_trainee(self, state: JobState) -> Trainee:
        now = self._view.now
        known = self._memory.trainees.get(state.id)
        done = state.iterations_at(now)
        if known is None:
            held = state.placement.gpus if state.placement is not None else state.least
            return Trainee(limit=max(held, state.least), mark=done, since=now)
        if state.placement is None and known.since is not None:
            # It lost its GPUs by no decision of ours.
            return replace(known, since=None, ran_seconds=known.ran_at(now))
        if state.placement is not None and known.since is None:
            return replace(known, since=now, mark=done)
        # A failure may have taken it back behind the mark.
        return replace(known, mark=min(known.mark, done))

    # --- when

    def _epoch(self, state: JobState) -> float:
        """Iterations in an epoch of the job."""
        declared = state.job.training.iterations_per_epoch
        if declared:
            return float(declared)
        total = state.iterations_total
        if not 0.0 < total < math.inf or not self._policy.declared:
            kinds = acceptable_types(state, self._view.cluster)
            held = state.placement.gpu_type if state.placement is not None else ""
            kind = held or (kinds[0] if kinds else "")
            total = SUPPOSED_S * self._speeds.find(replace(state, speed=0.0), state.least, kind)
        return max(total / self._policy.epochs, SLACK)

    def _epochs_since(self, state: JobState) -> float:
        """Epochs finished since the schedule was updated."""
        done = state.iterations_at(self._view.now) - self._trainees[state.id].mark
        return done / self._epoch(state) + SLACK

    def is_due(self) -> bool:
        """Whether every job of the present schedule has finished an epoch; so it is where none runs."""
        return all(self._has_finished(state) for state in self._view.running if self._counts(state))

    def _has_finished(self, state: JobState) -> bool:
        """Whether it has finished an epoch, so that it may be changed."""
        return not state.adjusting and self._epochs_since(state) >= 1.0

    def _counts(self, state: JobState) -> bool:
        """Whether it ran at the last update: who was started since is not waited for."""
        since = self._trainees[state.id].since
        return since is not None and since <= self._memory.updated_at

    def find_wake(self) -> float | None:
        """When the last job of the schedule will have finished its epoch."""
        times = []
        for state in self._view.running:
            if not self._updated and not self._counts(state):
                continue
            missing = 0.0 if self._updated else 1.0 - self._epochs_since(state)
            speed = state.speed
            if speed <= 0.0 and state.placement is not None:
                # It starts, and its first step may come without an event.
                shape = state.placement.shape
                speed = self._speeds.find(state, shape.gpus, shape.gpu_type)
            times.append((missing if missing > 0.0 else 1.0) * self._epoch(state) / speed)
        # Never at once again, whatever rounding does.
        return self._view.now + max(1e-3, *times) if times else None

    # --- between updates

    def keep(self) -> dict[JobId, Share]:
        """Let all that run go on untouched."""
        return {
            state.id: Share(state.placement.gpus)
            for state in self._view.running
            if state.placement is not None
        }

    def start_waiting(self, shares: dict[JobId, Share]) -> None:
        """Give idle GPUs to jobs that wait and fit within their limits, by priority and arrival."""
        for state in self._iter_waiting():
            if not self._room.total:
                return
            if state.id in shares or state.least > self._room.total:
                continue
            limit = self._limit_waiting(state)
            for gpus in reversed([n for n in state.job.gpus.options if n <= limit]):
                fit = self._room.find(state, gpus)
                if fit is not None:
                    self._room.take(fit.nodes, state)
                    batch = _new_batch(state, gpus)
                    shares[state.id] = Share(
                        gpus, _ITS_TURN, fit.gpu_type, fit.nodes, batch_size=batch
                    )
                    break

    def _iter_waiting(self) -> Iterator[JobState]:
        waiting = self._view.pending
        return iter(sorted(waiting, key=lambda state: (-state.job.priority, state.order)))

    def _limit_waiting(self, state: JobState) -> int:
        trainee = self._trainees.get(state.id)
        return trainee.limit if trainee is not None else start_limit(state)

    # --- an update

    def update(self) -> dict[JobId, Share]:
        """Search for the best schedule, and say what it makes of the jobs."""
        self._updated = True
        view, policy = self._view, self._policy
        frozen = [state for state in view.running if not self._has_finished(state)]
        candidates = self._find_candidates({state.id for state in frozen})
        budget = Budget.of(
            view.cluster.total,
            population=policy.population,
            generations=policy.generations,
            evaluations=policy.evaluations,
            mutation=policy.mutation,
        )
        taken = dict.fromkeys(view.cluster.types, 0)
        for state in frozen:
            assert state.placement is not None
            for node, gpus in count_usable(state.placement, view.cluster).items():
                taken[view.cluster.by_name[node].gpu_type] += gpus
        search = Search(
            view, candidates, speeds=self._speeds, budget=budget, rng=self._rng, taken=taken
        )
        best, population = search.run(self._memory.population)
        self._population = tuple(tuple(genome) for genome in population)
        wanted = {candidates[place].state: gene for place, gene in best.items()}
        wanted |= {state: self._keep_gene(state) for state in frozen}
        return self._settle(wanted)

    @staticmethod
    def _keep_gene(state: JobState) -> Gene:
        assert state.placement is not None
        return state.id, state.placement.gpu_type, state.placement.gpus

    def _find_candidates(self, frozen: Collection[JobId]) -> list[Candidate]:
        """All that may be changed, those that were preempted, and of the others the first to come."""
        view = self._view
        total = view.cluster.total
        new = [s for s in view.pending[-total:] if s.order > self._memory.newest_order]
        waiting = {s.id: s for s in (*new, *self._stopped.values())}
        for state in islice(view.pending, 2 * total):
            waiting.setdefault(state.id, state)
        names = {state.id for state in new}
        running = (state for state in view.running if state.id not in frozen)
        states = [*running, *sorted(waiting.values(), key=lambda state: state.order)]
        limits = [self._limit(state) for state in states]
        line = self._memory.line
        known = [self._look_at(state) for state in states]
        table = np.array(known, dtype=float).reshape(-1, 3)
        betas = line.epochs_left(table[:, 0], table[:, 1], table[:, 2])
        return [
            Candidate(
                state,
                limit,
                self._ran(state),
                self._epoch(state),
                max(processed, 1.0),
                float(beta),
                state.id in names and state.id not in self._trainees,
            )
            for state, limit, (processed, _, _), beta in zip(
                states, limits, known, betas, strict=True
            )
        ]

    def _look_at(self, state: JobState) -> tuple[float, float, float]:
        """Epochs processed, epochs expected to be left, and samples in an epoch."""
        epoch = self._epoch(state)
        processed = state.iterations_at(self._view.now) / epoch
        left = float(self._policy.epochs)
        if self._policy.declared and state.iterations_total < math.inf:
            left = state.remaining_at(self._view.now) / epoch
        return processed, left, epoch * max(state.job.training.batch_size, 1)

    def _ran(self, state: JobState) -> float:
        trainee = self._trainees.get(state.id)
        return trainee.ran_at(self._view.now) if trainee is not None else 0.0

    def _limit(self, state: JobState) -> int:
        """The limit of a job by the four rules, and remember it without the penalty."""
        if state.placement is None:
            return self._limit_waiting(state)
        trainee = self._trainees[state.id]
        most = max(state.least, most_gpus(state, self._view, state.placement.gpu_type))
        limit = grow_limit(trainee.limit, int(self._epochs_since(state)), most=most)
        self._trainees[state.id] = replace(trainee, limit=limit)
        rate = self._memory.arrival_rate(self._view.now, self._newest)
        return shrink_limit(
            limit,
            ran_seconds=trainee.ran_at(self._view.now),
            penalty=self._policy.penalty * rate,
            least=state.least,
        )

    def _settle(self, wanted: Mapping[JobState, Gene]) -> dict[JobId, Share]:
        """
        Make shares of a genome, and promise only what there is room for.

        First all that lose, then those that grow, then those that start: as far as nodes allow it,
        which a genome knows nothing of.
        """
        shares: dict[JobId, Share] = {}
        growing: list[tuple[JobState, int]] = []
        for state in self._view.running:
            placement = state.placement
            assert placement is not None
            gpus = wanted[state][2] if state in wanted else 0
            if gpus == 0 and placement.gpu_type in self._view.cluster.totals:
                self._room.give(count_usable(placement, self._view.cluster))
            elif gpus in (0, placement.gpus):
                shares[state.id] = Share(placement.gpus)
            elif gpus < placement.gpus:
                nodes = self._shrink(state, gpus)
                batch = _new_batch(state, gpus)
                shares[state.id] = Share(gpus, _MAKES_ROOM, nodes=nodes, batch_size=batch)
            else:
                growing.append((state, gpus))
        for state, gpus in growing:
            shares[state.id] = self._grow(state, gpus)
        self._start_wanted(wanted, shares)
        return shares

    def _shrink(self, state: JobState, gpus: int) -> dict[NodeName, int]:
        """Keep the largest parts of a placement, and give back the rest."""
        assert state.placement is not None
        cluster = self._view.cluster
        have = count_nodes(state.placement)
        kept: dict[NodeName, int] = {}
        left = gpus
        for node in sorted(have, key=lambda node: (-have[node], node)):
            if left:
                kept[node] = min(left, have[node])
                left -= kept[node]
        usable = count_usable(state.placement, cluster)
        # Broken GPUs are given back first, and are no gain for others.
        freed = {node: n - min(kept.get(node, 0), n) for node, n in usable.items()}
        self._room.give({node: n for node, n in freed.items() if n})
        return kept

    def _grow(self, state: JobState, gpus: int) -> Share:
        """Grow as far as there is room."""
        placement, cluster = state.placement, self._view.cluster
        assert placement is not None
        have, usable = count_nodes(placement), count_usable(placement, cluster)
        for more in reversed([n for n in state.job.gpus.options if placement.gpus < n <= gpus]):
            nodes = grow(self._room, state, have, placement.gpu_type, more)
            if nodes is not None:
                self._room.give(usable)
                if self._room.has(nodes):
                    self._room.take(nodes, state)
                    return Share(more, _MORE, nodes=nodes, batch_size=_new_batch(state, more))
                self._room.take(usable)
        return Share(placement.gpus)

    def _start_wanted(self, wanted: Mapping[JobState, Gene], shares: dict[JobId, Share]) -> None:
        for state, (_, kind, gpus) in wanted.items():
            if state.placement is not None:
                continue
            for fewer in reversed([n for n in state.job.gpus.options if n <= gpus]):
                fit = self._room.find(state, fewer, kind)
                if fit is not None:
                    self._room.take(fit.nodes, state)
                    batch = _new_batch(state, fewer)
                    shares[state.id] = Share(fewer, _ITS_TURN, kind, fit.nodes, batch_size=batch)
                    break

    # --- what is remembered

    def remember(self, shares: Mapping[JobId, Share]) -> Memory:
        """The state for the next decision."""
        view, now = self._view, self._view.now
        trainees: dict[JobId, Trainee] = {}
        for state in (*view.running, *self._stopped.values()):
            trainees[state.id] = self._after(state, shares.get(state.id))
        for state in view.pending.select(shares.keys() - trainees.keys()).values():
            done = state.iterations_at(now)
            limit = max(start_limit(state), shares[state.id].gpus)
            trainees[state.id] = self._log(Trainee(limit=limit, mark=done, since=now), state)
        return replace(
            self._memory,
            decisions=self._memory.decisions + 1,
            newest_order=self._newest if self._updated else self._memory.newest_order,
            updated_at=now if self._updated else self._memory.updated_at,
            trainees=trainees,
            population=self._population,
        )

    def _after(self, state: JobState, share: Share | None) -> Trainee:
        trainee, now = self._trainees[state.id], self._view.now
        if share is None and state.placement is not None:
            # It may come back with what it had.
            return replace(
                trainee,
                limit=state.placement.gpus,
                since=None,
                ran_seconds=trainee.ran_at(now),
            )
        if share is None:
            limit = resume_limit(trainee.limit, least=state.least)
            return replace(trainee, limit=limit) if self._updated else trainee
        done = state.iterations_at(now)
        if state.placement is None:
            return replace(trainee, since=now, mark=done)
        if not self._updated or not self._has_finished(state):
            return trainee
        return self._log(replace(trainee, mark=done), state)

    def _log(self, trainee: Trainee, state: JobState) -> Trainee:
        """Note how far a job is, for the regression when it has ended."""
        processed, expected, epoch_size = self._look_at(state)
        logged = trainee.logged
        if processed > 0.0:
            logged = (*logged, (processed, expected))
        if len(logged) > MOST_LOGGED:
            logged = logged[::2]
        done = state.iterations_at(self._view.now)
        # Not JSON's: an infinite number is none of its numbers.
        total = state.iterations_total if state.iterations_total < math.inf else 1e300
        return replace(
            trainee,
            logged=logged,
            latest=(done, state.speed, total, self._epoch(state)),
            epoch_size=epoch_size,
            seen_at=self._view.now,
        )


def _new_batch(state: JobState, gpus: int) -> int | None:
    """The batch that a job is to have with so many GPUs, if that is another one than it has."""
    batch = batch_of(state, gpus)
    present = state.batch_size or state.job.training.batch_size
    return batch if batch != present else None
