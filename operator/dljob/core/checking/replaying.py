"""
The replay of a plan: its steps are taken one after the other, and each is held against the laws.

:func:`dljob.core.cycle.schedule` calls :func:`check`. The order of the checks decides which law an error
names where a plan breaks several.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from dljob.core.checking import grants
from dljob.core.checking.grants import NewPods, find_excess
from dljob.core.checking.laws import Breach, BrokenLaw, Law
from dljob.core.model import (
    DEMANDS,
    OWN_REASONS,
    CauseCode,
    GpuRef,
    JobId,
    JobState,
    NodeName,
    Placement,
    Snapshot,
)
from dljob.core.planning import Move, Plan, Reshape, Start, Step, Stop, Wait

# Reasons for a change that does not improve the placement of the job itself.
_TIDYING = frozenset({CauseCode.PACKING, CauseCode.EXPLORING, CauseCode.MAKES_ROOM})


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
                self._refuse_all(_find_idle_wait(step, self.pending.get(step.job)))
            elif isinstance(step, Start):
                self._start(step)
            else:
                self._take(step)
        # Check this last: the gainers of a lost GPU are known only after all steps.
        for loss in self.losses:
            kept = () if isinstance(loss, Stop) else set(loss.new.refs())
            gainers = {self.holders.given.get(ref) for ref in loss.old.refs() if ref not in kept}
            state = self.holders.states[loss.job]
            self._refuse_all(_find_vain_loss(loss, state, gainers=gainers))
        for step in self.steps:
            if isinstance(step, Wait | Start) or step.job not in self.holders.states:
                continue
            gainer = self.pending.get(step.cause.job) if step.cause.job is not None else None
            state = self.holders.states[step.job]
            self._refuse_all(_find_lost_work(step, state, gainer=gainer))
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
        self._refuse_all(_find_idle_change(step, state))
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
        released = self.holders.released
        if step.after:
            releasers = {released[ref] for ref in refs if ref in released}
            for idle in sorted(set(step.after) - releasers):
                message = f"waits for job {idle}, which releases nothing to it"
                self._refuse(Law.RELEASED_FIRST, step.job, message)
        kinds = whole.gpu_type.split("+")
        for ref in sorted(refs):
            self._refuse_all(grants.find_unreal(step.job, ref, kinds=kinds, cluster=self.cluster))
            self._check_released(step, ref)
            self.holders.give(step.job, ref)

    def _check_released(self, step: Start | Reshape | Move, ref: GpuRef) -> None:
        if self.holders.is_busy(ref):
            owner = self.holders.owner_of(ref)
            law = Law.RELEASED_FIRST if self._gives_up(owner, ref) else Law.ONE_MASTER
            self._refuse(law, step.job, f"gets GPU {ref}, which job {owner} still holds")
        former = self.holders.released.get(ref)
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


class Holders:
    """The busy, released and newly given GPUs."""

    __slots__ = ("_busy", "_shared", "given", "has_doubles", "released", "states")

    def __init__(self, running: Iterable[JobState]) -> None:
        self.states: dict[JobId, JobState] = {}
        """The jobs that had GPUs before the plan."""
        self._busy: dict[NodeName, set[int]] = {}
        self._shared: set[GpuRef] = set()
        """GPUs that two jobs had, and that one keeps because the plan stops the other."""
        self.released: dict[GpuRef, JobId] = {}
        """The job from which a step has taken each of these GPUs."""
        self.given: dict[GpuRef, JobId] = {}
        """The job that newly gets each of these GPUs."""
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
        if ref in self.given:
            return self.given[ref]
        return next(job for job, placement in self._iter_held() if ref in placement.refs())

    def give(self, job: JobId, ref: GpuRef) -> None:
        self._busy.setdefault(ref.node, set()).add(ref.number)
        self.given[ref] = job

    def release(self, job: JobId, refs: Iterable[GpuRef]) -> None:
        for ref in refs:
            # A GPU that another job keeps or already has does not become free.
            if ref not in self.given and ref not in self._shared:
                self._busy[ref.node].discard(ref.number)
                self.released[ref] = job


# --- the reason of a step: it changes something, and another job gains the GPUs that one loses ---


def _find_idle_wait(step: Wait, state: JobState | None) -> Iterator[Breach]:
    """Find a breach: the job is not pending, or already has this reason to wait."""
    if state is None:
        yield Breach(Law.PURPOSE, step.job, "has a step Wait but is not pending")
    elif state.waiting == step.cause:
        message = "has a step Wait with the reason that it has already"
        yield Breach(Law.PURPOSE, step.job, message)


def _find_idle_change(step: Reshape | Move, state: JobState) -> Iterator[Breach]:
    """Find a breach: the change improves nothing or has the wrong type."""
    same_batch = step.batch_size is None or step.batch_size == state.batch_size
    if same_batch and set(step.old.refs()) == set(step.new.refs()):
        message = "gets exactly the GPUs and the batch that it has"
        yield Breach(Law.PURPOSE, step.job, message)
    elif (
        same_batch
        and (step.old.gpus, step.old.gpu_type) == (step.new.gpus, step.new.gpu_type)
        and step.new.shape.nodes >= step.old.shape.nodes
        and step.cause.code not in _TIDYING
    ):
        message = "is changed, and its new GPUs are no better than its present ones"
        yield Breach(Law.PURPOSE, step.job, message)
    stays = not set(step.old.nodes).isdisjoint(step.new.nodes)
    if stays != isinstance(step, Reshape):
        message = "has a step Move that keeps a node, or a step Reshape that keeps none"
        yield Breach(Law.PURPOSE, step.job, message)


def _find_vain_loss(
    step: Reshape | Move | Stop, state: JobState, *, gainers: Collection[JobId | None]
) -> Iterator[Breach]:
    """Find a breach: the named job gains none of the GPUs that this job loses."""
    if step.cause.code in OWN_REASONS:
        return
    if step.old.gpus not in state.job.gpus.options:
        return  # The user changed the job's allowed numbers of GPUs.
    named = step.cause.job
    if named is not None and named in gainers:
        return
    kept = 0 if isinstance(step, Stop) else len(set(step.new.refs()))
    lost = len(step.old.refs()) - kept
    gain = "no other job gains them"
    if named is not None and any(each is not None for each in gainers):
        gain = f"job {named}, for which it loses them, gains none of them"
    yield Breach(Law.PURPOSE, step.job, f"loses {lost} GPU{'s'[: lost != 1]} and {gain}")


def _find_lost_work(
    step: Reshape | Move | Stop, state: JobState, *, gainer: JobState | None
) -> Iterator[Breach]:
    """Find a breach: the step loses work for neither a law nor a higher priority."""
    if isinstance(step, Stop):
        loses = state.unsaved_from is not None or state.lost_if_stopped
    else:
        loses = state.unsaved_from is not None and not state.keeps_work_on(step.new)
    if not loses or step.cause.code in DEMANDS:
        return
    if not state.has_allowed_size:
        return  # The user changed the job's allowed numbers of GPUs.
    is_outranked = gainer is not None and gainer.job.priority > state.job.priority
    if not (isinstance(step, Stop) and is_outranked):
        yield Breach(Law.WORK_KEPT, step.job, "would lose work that no checkpoint saves")
