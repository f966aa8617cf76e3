"""
The replay of a plan: its steps are taken one after the other, and each is held against the laws.

:func:`dljob.core.cycle.schedule` calls :func:`check`. The order of the checks decides which law an error
names where a plan breaks several.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from dljob.core.checking import grants, reasons
from dljob.core.checking.grants import NewPods, find_excess
from dljob.core.checking.laws import Breach, BrokenLaw, Law
from dljob.core.model import GpuRef, JobId, JobState, NodeName, Placement, Snapshot
from dljob.core.planning import Move, Plan, Reshape, Start, Step, Stop, Wait


def check(
    plan: Plan, snapshot: Snapshot, *, policy: str, breaks: frozenset[Law] = frozenset()
) -> None:
    """
    Raise :class:`BrokenLaw` at the first law that the plan breaks and ``breaks`` does not allow.

    ``policy`` is the name of the policy that made it, for the error.
    """
    if plan.steps:
        _Replay(plan.steps, snapshot, policy=policy, breaks=breaks).run()


class _Replay:
    """One pass over the steps of a plan."""

    def __init__(
        self, steps: Sequence[Step], snapshot: Snapshot, *, policy: str, breaks: frozenset[Law]
    ) -> None:
        self.steps = steps
        self.snapshot = snapshot
        self.policy = policy
        self.breaks = breaks
        self.cluster = snapshot.cluster
        self.pending = snapshot.queue.select({step.job for step in steps})
        # Jobs that keep waiting take no GPUs, so the running jobs do not matter.
        is_still = all(isinstance(step, Wait) for step in steps)
        self.holders = Holders(() if is_still else snapshot.running)
        self.new_pods = NewPods(self.cluster.free)
        self.losses: list[Reshape | Move | Stop] = []

    def run(self) -> None:
        if self.holders.has_doubles:
            stopped = {step.job for step in self.steps if isinstance(step, Stop)}
            self._refuse_all(self.holders.find_doubles(stopped))
        seen: set[JobId] = set()
        for step in self.steps:
            if step.job in seen:
                self._refuse(Law.PURPOSE, step.job, "has more than one step")
            seen.add(step.job)
            if isinstance(step, Wait):
                self._refuse_all(reasons.find_idle_wait(step, self.pending.get(step.job)))
            elif isinstance(step, Start):
                self._start(step)
            else:
                self._take(step)
        # Check this last: the gainers of a lost GPU are known only after all steps.
        for loss in self.losses:
            gainers = self.holders.gainers_of(_lost_by(loss))
            self._refuse_all(
                reasons.find_vain_loss(loss, self.holders.states[loss.job], gainers=gainers)
            )
        for step in self.steps:
            if not isinstance(step, Wait | Start):
                self._check_work(step)
        if self.snapshot.limits.max_gpus:
            self._refuse_all(find_excess(self.steps, self.snapshot))

    def _refuse_all(self, breaches: Iterable[Breach]) -> None:
        for breach in breaches:
            self._refuse(*breach)

    def _refuse(self, law: Law, job: JobId, message: str) -> None:
        if law not in self.breaks:
            raise BrokenLaw(law, job, message, policy=self.policy, at_s=self.snapshot.now)

    def _start(self, step: Start) -> None:
        state = self.pending.get(step.job)
        if state is None:
            self._refuse(Law.PURPOSE, step.job, "is started but is not pending")
            return
        self._give(step, set(step.placement.refs()), whole=step.placement)
        self._check_grant(step, state, whole=step.placement)

    def _take(self, step: Reshape | Move | Stop) -> None:
        state = self.holders.states.get(step.job)
        if state is None or state.placement != step.old:
            self._refuse(Law.PURPOSE, step.job, "does not hold what the step takes from it")
        elif isinstance(step, Stop):
            self.holders.release(step.job, step.old.refs())
            self.losses.append(step)
        else:
            self._change(step, state)

    def _change(self, step: Reshape | Move, state: JobState) -> None:
        self._refuse_all(reasons.find_idle_change(step, state))
        old, new = set(step.old.refs()), set(step.new.refs())
        # Released GPUs are free for later steps only: a job cannot wait for itself.
        self._give(step, new - old, whole=step.new)
        self._check_grant(step, state, whole=step.new)
        self.holders.release(step.job, old - new)
        if old - new and len(new) < len(old):
            self.losses.append(step)

    def _give(self, step: Start | Reshape | Move, refs: set[GpuRef], *, whole: Placement) -> None:
        if len(set(whole.refs())) != whole.shape.gpus:
            self._refuse(Law.REAL_GPUS, step.job, "is given the same GPU twice")
        if step.after:
            self._check_after(step, refs)
        kinds = whole.gpu_type.split("+")
        for ref in sorted(refs):
            self._refuse_all(grants.find_unreal(step.job, ref, kinds=kinds, cluster=self.cluster))
            self._check_released(step, ref)
            self.holders.give(step.job, ref)

    def _check_after(self, step: Start | Reshape | Move, refs: set[GpuRef]) -> None:
        for idle in sorted(set(step.after) - self.holders.releasers_of(refs)):
            self._refuse(
                Law.RELEASED_FIRST, step.job, f"waits for job {idle}, which releases nothing to it"
            )

    def _check_released(self, step: Start | Reshape | Move, ref: GpuRef) -> None:
        if self.holders.is_busy(ref):
            owner = self.holders.owner_of(ref)
            law = Law.RELEASED_FIRST if self._gives_up(owner, ref) else Law.ONE_MASTER
            self._refuse(law, step.job, f"gets GPU {ref}, which job {owner} still holds")
        former = self.holders.releaser_of(ref)
        if former is not None and former not in step.after:
            self._refuse(
                Law.RELEASED_FIRST,
                step.job,
                f"gets GPU {ref} without waiting for job {former}, which releases it",
            )

    def _gives_up(self, owner: JobId, ref: GpuRef) -> bool:
        """Return whether a later step takes the GPU from its owner."""
        return any(
            isinstance(step, Stop)
            or (isinstance(step, Reshape | Move) and ref not in step.new.refs())
            for step in self.steps
            if step.job == owner
        )

    def _check_grant(
        self, step: Start | Reshape | Move, state: JobState, *, whole: Placement
    ) -> None:
        self._refuse_all(grants.find_breaches(step, state, whole=whole, cluster=self.cluster))
        if state.needs is not None:
            self._refuse_all(self.new_pods.add(state, whole))

    def _check_work(self, step: Reshape | Move | Stop) -> None:
        state = self.holders.states.get(step.job)
        if state is not None:
            gainer = self.pending.get(step.cause.job) if step.cause.job is not None else None
            self._refuse_all(reasons.find_lost_work(step, state, gainer=gainer))


def _lost_by(step: Reshape | Move | Stop) -> Iterable[GpuRef]:
    kept = () if isinstance(step, Stop) else set(step.new.refs())
    return (ref for ref in step.old.refs() if ref not in kept)


class Holders:
    """The busy, released and newly given GPUs."""

    __slots__ = ("_busy", "_given", "_released", "_shared", "has_doubles", "states")

    def __init__(self, running: Iterable[JobState]) -> None:
        self.states: dict[JobId, JobState] = {}
        """The jobs that had GPUs before the plan."""
        self._busy: dict[NodeName, set[int]] = {}
        self._shared: set[GpuRef] = set()
        """GPUs that two jobs had, and that one keeps because the plan stops the other."""
        self._released: dict[GpuRef, JobId] = {}
        self._given: dict[GpuRef, JobId] = {}
        held = 0
        # Count GPUs only: an owner is needed just for error messages.
        for state in running:
            if state.placement is not None:
                self.states[state.id] = state
                held += state.placement.shape.gpus
                for node, gpus in state.placement.slices:
                    self._busy.setdefault(node, set()).update(gpus)
        self.has_doubles = held != sum(map(len, self._busy.values()))
        """True while two jobs have the same GPU."""

    def find_doubles(self, stopped: Collection[JobId]) -> Iterator[Breach]:
        """Find GPUs that two jobs have and both would keep."""
        owner: dict[GpuRef, JobId] = {}
        for job, placement in self._iter_held():
            for ref in placement.refs():
                if job in stopped:
                    self._shared.add(ref)
                    continue
                other = owner.setdefault(ref, job)
                if other != job:
                    message = f"holds GPU {ref}, which job {other} holds too"
                    yield Breach(Law.ONE_MASTER, job, message)
        self._shared &= owner.keys()

    def _iter_held(self) -> Iterator[tuple[JobId, Placement]]:
        for state in self.states.values():
            if state.placement is not None:
                yield state.id, state.placement

    def is_busy(self, ref: GpuRef) -> bool:
        return ref.number in self._busy.get(ref.node, ())

    def owner_of(self, ref: GpuRef) -> JobId:
        """The job that has a busy GPU."""
        if ref in self._given:
            return self._given[ref]
        return next(job for job, placement in self._iter_held() if ref in placement.refs())

    def releaser_of(self, ref: GpuRef) -> JobId | None:
        """The job from which a step has taken this GPU."""
        return self._released.get(ref)

    def releasers_of(self, refs: Iterable[GpuRef]) -> set[JobId]:
        return {self._released[ref] for ref in refs if ref in self._released}

    def gainers_of(self, refs: Iterable[GpuRef]) -> set[JobId | None]:
        """Return the jobs that get these GPUs; ``None`` stands for a GPU that no job gets."""
        return {self._given.get(ref) for ref in refs}

    def give(self, job: JobId, ref: GpuRef) -> None:
        self._busy.setdefault(ref.node, set()).add(ref.number)
        self._given[ref] = job

    def release(self, job: JobId, refs: Iterable[GpuRef]) -> None:
        for ref in refs:
            # A GPU that another job keeps or already has does not become free.
            if ref not in self._given and ref not in self._shared:
                self._busy[ref.node].discard(ref.number)
                self._released[ref] = job
