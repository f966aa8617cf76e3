"""ONES: evolve a population of schedules, and deploy the best after every epoch."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

import numpy as np

from dljob.core.assuming import GUESSES, USUAL_CURVE, Assumes, Knowledge
from dljob.core.checking import Law
from dljob.core.contract import Decision, Share, View
from dljob.core.model import Cause, CauseCode, JobId
from dljob.core.options import check, declare
from dljob.core.placement.counting import count_usable
from dljob.core.placement.free_gpus import Room
from dljob_lab.policies.elastic.ones.epochs import Epochs
from dljob_lab.policies.elastic.ones.memory import Gene, Memory
from dljob_lab.policies.elastic.ones.searching import (
    Budget,
    Candidate,
    Search,
    Speeds,
)
from dljob_lab.policies.elastic.ones.settling import new_batch, present_gene, settle
from dljob_lab.policies.elastic.ones.trainees import Trainees

_NO_ROOM = Cause(CauseCode.NO_ROOM)
_ITS_TURN = Cause(CauseCode.ITS_TURN)


@dataclass(frozen=True, slots=True)
class Ones:
    """
    Evolve schedules, and deploy the best after all running jobs have finished an epoch.

    ONES (Bian et al., SC '21), section 3. The operations are in ``genomes``, the search in
    ``searching``, the Beta regression in ``progress``, the four limits in ``memory``, and their use
    in ``trainees``. The learning rate follows the batch linearly (3.3.2); the controller hands it to
    the process.

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
      Loss and accuracy are those that a job reports, as ``loss`` and ``accuracy`` or as the metric of its
      target. Until history says otherwise such a job is expected to train for ``epochs`` epochs more. Of a
      job that reports neither, its declared length says how many are expected, unless ``declared=false``.
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
        Knowledge.LENGTH: "learns from jobs that ended how many epochs to expect, by loss and accuracy",
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
    """True if the iterations that a job declares stand for its loss and accuracy while it reports neither."""

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        """Deploy the best schedule if it is time, and else let waiting jobs have idle GPUs."""
        round_ = _Round(self, view)
        shares = round_.update() if round_.is_due() else _keep_running(view)
        round_.start_waiting(shares)
        memory = round_.remember(shares)
        return Decision(shares, wait=_NO_ROOM, wake_at=round_.find_wake(), state=memory.to_plain())


class _Round:
    """One decision."""

    def __init__(self, policy: Ones, view: View) -> None:
        self._policy = policy
        self._view = view
        self._speeds = Speeds(view)
        self._epochs = Epochs(view, self._speeds, per_job=policy.epochs, declared=policy.declared)
        memory = Memory.from_plain(view.state)
        self._newest = max((s.order for s in (*view.running, *view.pending[-1:])), default=-1)
        if memory.first_order < 0 <= self._newest:
            # Jobs that are here already are no measure of how fast they come.
            memory = replace(memory, first_at=view.now, first_order=self._newest)
        known = view.pending.select(memory.trainees.keys())
        living = view.find_there(memory.trainees)
        self._memory = memory.forget_ended(living, view.now)
        self._stopped = known
        """Jobs that have had GPUs and wait."""
        self._trainees = Trainees(self._memory, view, stopped=known.values(), epochs=self._epochs)
        self._updated = False
        self._population: tuple[tuple[Gene, ...], ...] = self._memory.population
        seed = [view.seed & 0xFFFFFFFF, self._memory.decisions]
        self._rng = np.random.default_rng(seed)
        placements = [state.placement for state in view.running if state.placement is not None]
        self._room = Room(view.cluster, placements)

    # --- when

    def is_due(self) -> bool:
        """Return whether every job of the present schedule has finished an epoch; so it is where none runs."""
        trainees = self._trainees
        return all(
            trainees.has_finished(state)
            for state in self._view.running
            if trainees.has_run_since_update(state)
        )

    def find_wake(self) -> float | None:
        """Return when the last job of the schedule will have finished its epoch."""
        times = []
        for state in self._view.running:
            if not self._updated and not self._trainees.has_run_since_update(state):
                continue
            missing = 0.0 if self._updated else 1.0 - self._trainees.count_epochs(state)
            speed = state.speed
            if speed <= 0.0 and state.placement is not None:
                # It starts, and its first step may come without an event.
                shape = state.placement.shape
                speed = self._speeds.find(state, shape.gpus, kind=shape.gpu_type)
            epoch = self._epochs.measure(state)
            times.append((missing if missing > 0.0 else 1.0) * epoch / speed)
        # Never at once again, regardless of rounding.
        return self._view.now + max(1e-3, *times) if times else None

    # --- between updates

    def start_waiting(self, shares: dict[JobId, Share]) -> None:
        """Give idle GPUs to jobs that wait and fit within their limits, by priority and arrival."""
        waiting = sorted(self._view.pending, key=lambda state: (-state.job.priority, state.order))
        for state in waiting:
            if not self._room.total:
                return
            if state.id in shares or state.least > self._room.total:
                continue
            limit = self._trainees.limit_waiting(state)
            for gpus in reversed([n for n in state.job.gpus.options if n <= limit]):
                fit = self._room.find(state, gpus)
                if fit is not None:
                    self._room.take(fit.nodes, state)
                    batch = new_batch(state, gpus)
                    shares[state.id] = Share(
                        gpus, _ITS_TURN, fit.gpu_type, fit.nodes, batch_size=batch
                    )
                    break

    # --- an update

    def update(self) -> dict[JobId, Share]:
        """Search for the best schedule, and say what it makes of the jobs."""
        self._updated = True
        view, policy = self._view, self._policy
        frozen = [s for s in view.running if not self._trainees.has_finished(s)]
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
        wanted |= {state: present_gene(state) for state in frozen}
        return settle(self._view, self._room, wanted=wanted)

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
        rate = self._memory.arrival_rate(view.now, self._newest)
        penalty = self._policy.penalty * rate
        limits = [self._trainees.raise_limit(state, penalty=penalty) for state in states]
        features = [self._trainees.look_at(state) for state in states]
        betas = self._memory.line.epochs_left(features)
        return [
            Candidate(
                state,
                limit,
                self._trainees.ran_seconds(state.id),
                self._epochs.measure(state),
                max(known.processed, 1.0),
                float(beta),
                state.id in names and state.id not in self._trainees,
            )
            for state, limit, known, beta in zip(states, limits, features, betas, strict=True)
        ]

    # --- what is remembered

    def remember(self, shares: Mapping[JobId, Share]) -> Memory:
        """The state for the next decision."""
        updated, known = self._updated, self._memory.trainees
        return replace(
            self._memory,
            decisions=self._memory.decisions + 1,
            newest_order=max(self._newest if updated else -1, self._memory.newest_order),
            updated_at=self._view.now if updated else self._memory.updated_at,
            # Jobs that the policy is not asked about now stay known.
            trainees={**known, **self._trainees.remember(shares, is_update=updated)},
            population=self._population,
        )


def _keep_running(view: View) -> dict[JobId, Share]:
    """Let all that run go on untouched."""
    return {
        state.id: Share(state.placement.gpus)
        for state in view.running
        if state.placement is not None
    }
