"""Coach's job handler: measure by mini-epochs, fit, and choose workers and servers again after each epoch."""

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple

from dljob.core.assuming import Assumes, Knowledge
from dljob.core.checking import Law
from dljob.core.contract import Decision, Share, View
from dljob.core.model import Cause, CauseCode, JobId, JobState
from dljob.core.options import check, declare
from dljob.core.policies.common.counting import Counts
from dljob.core.policies.common.ordering import BEHIND, NO_ROOM, keep
from dljob.core.predicting.predictor import SUPPOSED_S
from dljob_lab import marginal_utility, roles
from dljob_lab.marginal_utility import Sample, Utility
from dljob_lab.roles import Split

_ITS_TURN = Cause(CauseCode.ITS_TURN)
_EXPLORING = Cause(CauseCode.EXPLORING)
_FASTER_WITH_MORE = Cause(CauseCode.FASTER_WITH_MORE)
_FASTER_WITH_FEWER = Cause(CauseCode.FASTER_WITH_FEWER)
_WITHIN_BUDGET = Cause(CauseCode.WITHIN_BUDGET)
_MAKES_ROOM = Cause(CauseCode.MAKES_ROOM)

SLACK = 1e-6
"""An epoch counts as finished although rounding says that this part of an iteration is missing."""
SOONEST_S = 1.0
"""No decision is asked for sooner than that after another, because of an epoch."""
LATEST = 3.0
"""A mini-epoch without a known speed goes on for this many times its length, and is given up then."""
MOST_SAMPLES = 64
"""The number of its latest epochs that is remembered of a job."""


class Course(NamedTuple):
    """How far a job is in its present epoch or mini-epoch."""

    gpus: int
    ends_at: float
    """After which iteration an epoch ends, or at which time a mini-epoch does."""
    is_mini: bool
    tried: tuple[int, ...] = ()
    """The numbers of GPUs whose mini-epoch began."""
    samples: tuple[Sample, ...] = ()
    """The speeds of its epochs and mini-epochs, in iterations a second."""


_NO_COURSE = Course(0, 0.0, is_mini=False)


class Memory(NamedTuple):
    """The policy's memory from one decision to the next."""

    courses: Mapping[JobId, Course]


@dataclass(frozen=True, slots=True)
class Coach:
    """
    Mini-epochs, then workers and servers by marginal utility after each epoch, of the free GPUs.

    Coach, sections 4.1 to 4.3 (steps 3 to 9 of Figure 1), for each job at its own pace:

    1. **Mini-epochs** on one and two workers with one and two servers, each for ``mini_seconds``. A choice whose speed
       is known already, from jobs of the same type, needs none.
    2. **f(w, s)** is fitted to the speeds of all its epochs, and of other jobs of its type on choices that it has not
       had (:mod:`dljob_lab.marginal_utility`).
    3. **After each epoch** the job begins with its smallest choice again, and gets another worker or another server,
       what raises f more, for as long as f rises and GPUs are free. Jobs that choose at the same time take turns: the
       largest gain in epochs a second first, as in the author's program.
    4. A step is left out if a worker would have fewer than ``samples`` samples of an epoch (the guard against too small
       a data set), or if the job's remaining iterations would cost more than is left of its budget.

    Jobs come in the order of the gang scheduler (Algorithm 1): by priority, then by arrival; a gang starts whole, and
    the first that does not fit holds up those behind it. No job loses GPUs within an epoch.

    Where the thesis leaves room, and where this differs:

    - **Workers and servers** are numbers of GPUs: :mod:`dljob_lab.roles`. Servers of a job without the label are its
      auxiliaries, whose number is the user's, and only the workers are chosen.
    - "One more" is the next larger number that the job allows.
    - **Samples** are the speeds in iterations, in place of epochs, a second. Coach counts each response of a worker, and
      also its tuning runs, which have other amounts of data (docs/reproduction/coach.md says what follows).
    - **An epoch** is what the job declares, else the ``epochs``-th part of its length.
    - **A budget** is the job's label ``coach.dljob.io/gpu-hours``. Coach ends a job over its budget; a policy cannot,
      and the job goes on with its smallest choice. The thesis's own experiments had the budget switched off.
    - The thesis's choice costs nothing, because its functions stay deployed. Here a change costs what it costs, and
      the policy does not count it, as the thesis does not.
    - Its minimum before an epoch starts, one pod of each role, and its timeout are the scheduler's: a gang is whole here.
    """

    name: ClassVar[str] = "coach"
    paper: ClassVar[str] = "Coach (Lövenvald), 4.1 to 4.3"
    needs: ClassVar[str] = "nothing: it measures speeds by mini-epochs"
    assumes: ClassVar[Assumes] = {
        Knowledge.SPEED: "measures it by mini-epochs",
        Knowledge.MEASURED: "uses a parabola fitted to the measured ones",
        Knowledge.EPOCH: "cuts its length into equal epochs, of which the option epochs is the number",
    }
    breaks: ClassVar[frozenset[Law]] = frozenset()

    mini_seconds: float = declare(30.0, at_least=1.0, at_most=3600.0)
    """How long a mini-epoch takes: the thesis has 20 to 40 seconds."""
    epochs: int = declare(20, at_least=1, at_most=10_000)
    """How many epochs a job has that declares none."""
    samples: int = declare(10, at_least=1, at_most=1_000_000)
    """How many samples of an epoch each worker has at least: the fewest that the author's program tries."""

    def __post_init__(self) -> None:
        check(self)

    def allocate(self, view: View) -> Decision:
        """Let jobs within an epoch go on, and choose for the others."""
        memory = view.state if isinstance(view.state, Memory) else Memory({})
        handling = _Handling(self, view, memory.courses)
        handling.keep_busy()
        head = handling.give_least()
        handling.begin_mini_epochs()
        handling.give_best()
        handling.spare()
        waits = {} if head is None else {head: NO_ROOM}
        courses = dict(handling.iter_courses())
        wake_at = min(handling.iter_ends(courses), default=None)
        return Decision(handling.shares, waits, BEHIND, wake_at, Memory(courses))


@dataclass(eq=False)
class _Chooser:
    """A job that chooses its workers and servers now."""

    state: JobState
    now: Split
    splits: Mapping[Split, int]
    samples: list[Sample]
    utility: Utility | None
    """``None`` while no speed is known."""
    epoch: float
    """Iterations."""
    closed: set[Split] = field(default_factory=set)
    """The choices that no GPUs are left for."""
    mini: int = 0
    """The GPUs of its mini-epoch, if it begins one."""

    @property
    def gpus(self) -> int:
        return self.splits[self.now]

    @property
    def held(self) -> int:
        return self.state.placement.gpus if self.state.placement is not None else 0


class _Step(NamedTuple):
    """A larger choice of a job; the best step is the least."""

    loss: float
    order: int
    split: Split
    job: "_Chooser"


class _Handling:
    """One decision."""

    def __init__(self, coach: Coach, view: View, courses: Mapping[JobId, Course]) -> None:
        self._coach = coach
        self._view = view
        self._courses = courses
        self._counts = Counts(view, fastest_first=True)
        self._choosers: list[_Chooser] = []
        self.shares: dict[JobId, Share] = {}

    # --- who chooses

    def keep_busy(self) -> None:
        """Leave the GPUs to the jobs that are within an epoch."""
        for state in self._view.running:
            if self._is_busy(state):
                self._keep(state)

    def _is_busy(self, state: JobState) -> bool:
        course = self._courses.get(state.id)
        assert state.placement is not None
        if state.adjusting or (state.unsaved_from is not None and not state.may_change_live):
            return True
        if course is None or course.gpus != state.placement.gpus:
            return False
        if course.is_mini:
            # A job that reports rarely shows its speed late.
            late = 0.0 if state.speed > 0.0 else LATEST * self._coach.mini_seconds
            return self._view.now < course.ends_at + late
        return state.iterations_at(self._view.now) < course.ends_at - SLACK

    def _keep(self, state: JobState) -> None:
        assert state.placement is not None
        _ = self._counts.raise_to(state, state.placement.gpus)
        self.shares[state.id] = keep(state.placement.gpus)

    def give_least(self) -> JobId | None:
        """Give those that choose their smallest choice, in order; return the first that waits."""
        ready = [state for state in self._view.running if state.id not in self.shares]
        for state in sorted(ready, key=_order):
            if not self._admit(state):
                # None of its GPUs is in use any more, or all are promised.
                self._keep(state)
        for state in sorted(self._view.pending, key=_order):
            if not self._admit(state):
                return state.id
        return None

    def _admit(self, state: JobState) -> bool:
        if not self._counts.raise_to(state, state.least):
            return False
        splits = roles.list_splits(state.job)
        now = roles.split(state.job, state.least)
        epoch = self._measure_epoch(state)
        samples = self._list_samples(state)
        utility = marginal_utility.fit(samples) if samples else None
        self._choosers.append(_Chooser(state, now, splits, samples, utility, epoch))
        return True

    def _measure_epoch(self, state: JobState) -> float:
        """Iterations in an epoch of the job."""
        declared = state.job.training.iterations_per_epoch
        if declared:
            return float(declared)
        total = state.iterations_total
        if not 0.0 < total < math.inf:
            shape = self._view.predictor.shape(state.least, self._kind(state))
            total = SUPPOSED_S * self._view.predictor.speed(state.job, shape)
        return max(total / self._coach.epochs, 1.0)

    def _kind(self, state: JobState) -> str:
        return "+".join(sorted(self._counts.kinds[state.id]))

    # --- what is known

    def _list_samples(self, state: JobState) -> list[Sample]:
        """The speeds of the job's own epochs, and those of its type on choices that it has not had."""
        course, held = self._courses.get(state.id), state.placement
        own = list(course.samples) if course is not None else []
        if held is not None and state.speed > 0.0:
            own.append(Sample(*roles.split(state.job, held.gpus), state.speed))
        had = {each[:2] for each in own}
        profile = self._view.predictor.profiles.get(state.job.type)
        if profile is None:
            return own
        kind = held.gpu_type if held is not None else self._kind(state)
        found = marginal_utility.sample(profile, split=partial(roles.split, state.job))
        return own + [each for each in found.get(kind, ()) if each[:2] not in had]

    # --- what is chosen

    def begin_mini_epochs(self) -> None:
        """Let each job measure the next choice of unknown speed, if it fits now."""
        for job in self._choosers:
            known = {each[:2] for each in job.samples}
            course = self._courses.get(job.state.id)
            tried = course.tried if course is not None else ()
            for split in roles.list_mini_epochs(job.splits):
                gpus = job.splits[split]
                if (
                    split not in known
                    and gpus not in tried
                    and self._counts.raise_to(job.state, gpus)
                ):
                    job.now, job.mini = split, gpus
                    break

    def give_best(self) -> None:
        """Give what is free step by step to the job that gains most epochs a second."""
        steps = [step for job in self._choosers if not job.mini for step in self._best_step(job)]
        heapq.heapify(steps)
        while steps:
            _, _, split, job = heapq.heappop(steps)
            if self._counts.raise_to(job.state, job.splits[split]):
                job.now = split
            else:
                job.closed.add(split)
            for step in self._best_step(job):
                heapq.heappush(steps, step)

    def _best_step(self, job: _Chooser) -> Iterator[_Step]:
        """The larger choice by which f rises most, if it rises."""
        if job.utility is None:
            return
        allowed = [
            split
            for split in roles.list_next(job.now, job.splits)
            if split not in job.closed
            and self._has_data(job, split)
            and self._is_affordable(job, split)
        ]
        gains = {split: job.utility.gain(job.now, split) for split in allowed}
        best = max(allowed, key=gains.__getitem__, default=job.now)
        if gains.get(best, 0.0) > 0.0:
            yield _Step(-gains[best] / job.epoch, job.state.order, best, job)

    def _has_data(self, job: _Chooser, split: Split) -> bool:
        """Return whether each worker has enough of an epoch's samples."""
        samples = job.epoch * max(job.state.job.training.batch_size, 1)
        return samples >= self._coach.samples * split.workers

    def _is_affordable(self, job: _Chooser, split: Split) -> bool:
        """Return whether what is left of the job, an epoch if that is unknown, costs no more than is left of its budget."""
        budget = roles.read_budget(job.state.job)
        if budget == math.inf or job.utility is None:
            return True
        state, now = job.state, self._view.now
        left = state.remaining_at(now) if state.iterations_total < math.inf else job.epoch
        cost = job.splits[split] * left / job.utility.speed(*split)
        return state.service_at(now) + cost <= budget

    def spare(self) -> None:
        """Make the shares; GPUs that a job would lose for others, and that no other took, stay with it."""
        for job in self._choosers:
            cause = self._find_cause(job)
            if cause is _MAKES_ROOM:
                between = sorted(n for n in job.state.job.gpus.options if job.gpus < n <= job.held)
                kept = next(
                    (n for n in reversed(between) if self._counts.raise_to(job.state, n)), 0
                )
                job.now = roles.split(job.state.job, kept or job.gpus)
            kinds = self._counts.kinds[job.state.id]
            kind = kinds[0] if len(kinds) == 1 else None
            self.shares[job.state.id] = Share(job.gpus, cause, kind)

    def _find_cause(self, job: _Chooser) -> Cause:
        """Return why the job gets its choice."""
        if not job.held:
            return _ITS_TURN
        if job.mini:
            return _EXPLORING
        if job.gpus >= job.held:
            return _FASTER_WITH_MORE
        held = roles.split(job.state.job, job.held)
        if job.held in job.splits.values() and not self._is_affordable(job, held):
            return _WITHIN_BUDGET
        is_faster = job.utility is not None and job.utility.gain(held, job.now) >= 0.0
        return _FASTER_WITH_FEWER if is_faster else _MAKES_ROOM

    # --- when it chooses again

    def iter_courses(self) -> Iterator[tuple[JobId, Course]]:
        """The courses of all jobs that have GPUs now."""
        now = self._view.now
        chosen = {job.state.id for job in self._choosers}
        for state in self._view.running:
            course = self._courses.get(state.id)
            if course is None or state.id in chosen:
                continue
            # A mini-epoch begins when the job trains.
            waits = course.is_mini and state.adjusting
            yield (
                state.id,
                course._replace(ends_at=now + self._coach.mini_seconds) if waits else course,
            )
        for job in self._choosers:
            before = self._courses.get(job.state.id, _NO_COURSE)
            own = before.samples
            if job.held and job.state.speed > 0.0:
                own = (*own, Sample(*roles.split(job.state.job, job.held), job.state.speed))
            ends_at = job.state.iterations_at(now) + job.epoch
            if job.mini:
                ends_at = now + self._coach.mini_seconds
            tried = (*before.tried, job.mini) if job.mini else before.tried
            yield (
                job.state.id,
                Course(job.gpus, ends_at, bool(job.mini), tried, own[-MOST_SAMPLES:]),
            )

    def iter_ends(self, courses: Mapping[JobId, Course]) -> Iterator[float]:
        """When epochs and mini-epochs end."""
        now, states = self._view.now, {state.id: state for state in self._view.running}
        for job, course in courses.items():
            state, ends_at = states.get(job), math.inf
            if course.is_mini:
                ends_at = course.ends_at
            elif state is not None and state.speed > 0.0:
                ends_at = now + (course.ends_at - state.iterations_at(now)) / state.speed
            if course.is_mini or now < ends_at < math.inf:
                yield max(ends_at, now + SOONEST_S)
            else:
                # It does not train, or may not be changed yet.
                yield now + self._coach.mini_seconds


def _order(state: JobState) -> tuple[int, int]:
    return -state.job.priority, state.order
