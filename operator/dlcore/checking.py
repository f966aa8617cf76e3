"""
The laws of a plan. Every plan of every policy passes through here, simulated or real.

The check knows nothing of how a plan was made: it replays the steps over the snapshot and refuses
the first thing that must never happen. A plan that breaks a law is a bug of ours or of a policy,
never of the user, so it ends the cycle with :class:`BrokenLaw` and nothing is carried out.

A baseline whose point is to show what happens without a law declares it in its ``breaks``.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from dlcore.model import OWN_REASONS, GpuRef, JobId, JobState, NodeName, Placement, Snapshot
from dlcore.planning import Move, Plan, Reshape, Start, Step, Stop, Wait


class Law(StrEnum):
    """What a plan must never do."""

    ONE_MASTER = "one-master"
    """A GPU belongs to one job."""
    REAL_GPUS = "real-gpus"
    """Only GPUs that exist, are healthy and of the told type are given."""
    ALLOWED_SHAPE = "allowed-shape"
    """A job gets a number, a type and a spread of GPUs that it said it can run on."""
    WHOLE_GANG = "whole-gang"
    """A job gets all the GPUs it needs to make progress, or none."""
    RELEASED_FIRST = "released-first"
    """What somebody holds is given only after a step that takes it from him, which is named."""
    CHECKPOINT_IN_REACH = "checkpoint-in-reach"
    """A job whose checkpoints only one node can read stays on that node."""
    PURPOSE = "purpose"
    """Every step changes something, is the only one of its job, and nobody loses for nothing."""


class BrokenLaw(Exception):
    """A plan that must not be carried out."""

    def __init__(self, law: Law, job: JobId, message: str) -> None:
        super().__init__(f"{law}: {job}: {message}")
        self.law = law
        self.job = job


def check(plan: Plan, snapshot: Snapshot, *, breaks: frozenset[Law] = frozenset()) -> None:
    """Raise :class:`BrokenLaw` at the first law that the plan breaks and ``breaks`` does not allow."""
    if all(isinstance(step, Wait) for step in plan.steps):
        _check_waits(plan.steps, snapshot)
        return
    _Replay(plan, snapshot, breaks).run()


def _check_waits(steps: Sequence[Step], snapshot: Snapshot) -> None:
    if not steps:
        return
    named = {step.job for step in steps}
    told = {job: state.waiting for job, state in snapshot.queue.select(named).items()}
    seen: set[JobId] = set()
    for step in steps:
        _check_wait(step, told, seen)


def _check_wait(step: Step, told: Mapping[JobId, object], seen: set[JobId]) -> None:
    if step.job not in told:
        raise BrokenLaw(Law.PURPOSE, step.job, "is told to wait but is not pending")
    if told[step.job] == step.cause:
        raise BrokenLaw(Law.PURPOSE, step.job, "is told again why it waits")
    if step.job in seen:
        raise BrokenLaw(Law.PURPOSE, step.job, "has more than one step")
    seen.add(step.job)


class _Replay:
    """One pass over the steps, keeping book of who has which GPU."""

    def __init__(self, plan: Plan, snapshot: Snapshot, breaks: frozenset[Law]) -> None:
        self.plan = plan
        self.cluster = snapshot.cluster
        self.breaks = breaks
        self.snapshot = snapshot
        named = {step.job for step in plan.steps}
        self.running = {state.id: state for state in snapshot.running if state.id in named}
        self.pending = snapshot.queue.select(named)
        self.told = {job: state.waiting for job, state in self.pending.items()}
        self.busy: dict[NodeName, set[int]] = {}
        self.released: dict[GpuRef, JobId] = {}
        self.given: dict[GpuRef, JobId] = {}
        self.losses: list[Reshape | Move | Stop] = []
        self.gained: set[JobId] = set()
        self.seen: set[JobId] = set()

    def run(self) -> None:
        self._occupy()
        for step in self.plan.steps:
            if isinstance(step, Wait):
                _check_wait(step, self.told, self.seen)
                continue
            if step.job in self.seen:
                raise BrokenLaw(Law.PURPOSE, step.job, "has more than one step")
            self.seen.add(step.job)
            self._take(step)
        for loss in self.losses:
            self._check_loss(loss)

    def _occupy(self) -> None:
        """Note which GPUs are in somebody's hands; whose they are is asked only in an error."""
        held = 0
        for state in self.snapshot.running:
            if state.placement is not None:
                held += state.placement.shape.gpus
                for node, gpus in state.placement.slices:
                    self.busy.setdefault(node, set()).update(gpus)
        if held != sum(map(len, self.busy.values())):
            self._find_double()

    def _find_double(self) -> None:
        owner: dict[GpuRef, JobId] = {}
        for state in self.snapshot.running:
            for ref in state.placement.refs() if state.placement is not None else ():
                other = owner.setdefault(ref, state.id)
                if other != state.id:
                    raise BrokenLaw(Law.ONE_MASTER, state.id, f"GPU {ref} is {other}'s already")

    def _take(self, step: Start | Reshape | Move | Stop) -> None:
        if isinstance(step, Start):
            state = self.pending.get(step.job)
            if state is None:
                raise BrokenLaw(Law.PURPOSE, step.job, "is started but is not pending")
            self._give(step, state, set(step.placement.refs()), step.placement)
            return
        state = self.running.get(step.job)
        if state is None or state.placement != step.old:
            raise BrokenLaw(Law.PURPOSE, step.job, "does not hold what the step takes from it")
        old = set(step.old.refs())
        if isinstance(step, Stop):
            self._release(step.job, old)
            self.losses.append(step)
            return
        self._change(step, state, old)

    def _change(self, step: Reshape | Move, state: JobState, old: set[GpuRef]) -> None:
        new = set(step.new.refs())
        same_batch = step.batch_size is None or step.batch_size == state.batch_size
        if old == new and same_batch:
            raise BrokenLaw(Law.PURPOSE, step.job, "is changed into what it is")
        stays = bool(set(step.old.nodes) & set(step.new.nodes))
        if stays != isinstance(step, Reshape):
            raise BrokenLaw(Law.PURPOSE, step.job, "a move keeps no node, a reshape keeps one")
        # What it gives up is free for later steps only: a job cannot wait for itself.
        self._give(step, state, new - old, step.new)
        self._release(step.job, old - new)
        if old - new and len(new) <= len(old):
            self.losses.append(step)

    def _give(
        self, step: Start | Reshape | Move, state: JobState, refs: set[GpuRef], whole: Placement
    ) -> None:
        self._check_gpus(step.job, refs, whole)
        for ref in sorted(refs):
            self._check_released(step, ref)
            self.busy.setdefault(ref.node, set()).add(ref.number)
        if refs:
            self.gained.add(step.job)
        self._check_shape(step, state, whole)

    def _check_gpus(self, job: JobId, refs: Iterable[GpuRef], whole: Placement) -> None:
        kinds = set(whole.gpu_type.split("+"))
        for ref in refs:
            if ref.number not in self.cluster.usable.get(ref.node, ()):
                raise BrokenLaw(Law.REAL_GPUS, job, f"GPU {ref} does not exist or may not be given")
            if self.cluster.by_name[ref.node].gpu_type not in kinds:
                raise BrokenLaw(Law.REAL_GPUS, job, f"GPU {ref} is not a {whole.gpu_type}")

    def _check_released(self, step: Start | Reshape | Move, ref: GpuRef) -> None:
        if ref.number in self.busy.get(ref.node, ()):
            law = Law.ONE_MASTER if ref in self.given else Law.RELEASED_FIRST
            raise BrokenLaw(law, step.job, f"GPU {ref} is {self._find_owner(ref)}'s still")
        former = self.released.get(ref)
        if former is not None and former not in step.after:
            raise BrokenLaw(Law.RELEASED_FIRST, step.job, f"does not wait for {former}'s {ref}")
        self.given[ref] = step.job

    def _find_owner(self, ref: GpuRef) -> JobId:
        if ref in self.given:
            return self.given[ref]
        placements = ((state.id, state.placement) for state in self.snapshot.running)
        return next(job for job, place in placements if place is not None and ref in place.refs())

    def _release(self, job: JobId, refs: Iterable[GpuRef]) -> None:
        for ref in refs:
            self.busy[ref.node].discard(ref.number)
            self.released[ref] = job

    def _check_shape(self, step: Start | Reshape | Move, state: JobState, whole: Placement) -> None:
        demand, shape = state.job.gpus, whole.shape
        if not whole.slices:
            raise BrokenLaw(Law.ALLOWED_SHAPE, step.job, "is given no GPU at all")
        complete = shape.gpus in demand.options and step.gang in (0, shape.gpus)
        if not complete and Law.WHOLE_GANG not in self.breaks:
            law = Law.WHOLE_GANG if step.gang > shape.gpus else Law.ALLOWED_SHAPE
            raise BrokenLaw(law, step.job, f"cannot run on {shape.gpus} GPUs")
        if not complete and (step.gang not in demand.options or shape.gpus > step.gang):
            raise BrokenLaw(Law.ALLOWED_SHAPE, step.job, f"cannot run on {step.gang} GPUs")
        self._check_kind(step.job, state, whole)

    def _check_kind(self, job: JobId, state: JobState, whole: Placement) -> None:
        demand = state.job.gpus
        kinds = whole.gpu_type.split("+")
        if len(kinds) > 1 and not demand.mixed:
            raise BrokenLaw(Law.ALLOWED_SHAPE, job, f"may not mix {whole.gpu_type}")
        if demand.types and not set(kinds) <= set(demand.types):
            raise BrokenLaw(Law.ALLOWED_SHAPE, job, f"cannot run on {whole.gpu_type}")
        if demand.max_nodes is not None and whole.shape.nodes > demand.max_nodes:
            raise BrokenLaw(
                Law.ALLOWED_SHAPE, job, f"may not spread over {whole.shape.nodes} nodes"
            )
        if state.bound_to and not set(whole.nodes) <= set(state.bound_to):
            raise BrokenLaw(Law.CHECKPOINT_IN_REACH, job, "its checkpoint is on another node")

    def _check_loss(self, step: Reshape | Move | Stop) -> None:
        if step.cause.code in OWN_REASONS:
            return
        if step.old.gpus not in self.running[step.job].job.gpus.options:
            return  # Its user has changed what it may have.
        if isinstance(step, Move | Reshape) and len(set(step.new.refs())) >= step.old.gpus:
            return
        if step.cause.job is None or step.cause.job not in self.gained:
            raise BrokenLaw(Law.PURPOSE, step.job, "loses GPUs and nobody in the plan gains")
