"""
The laws of a plan. Every plan of every policy passes through here, simulated or real.

The check knows nothing of how a plan was made: it replays the steps over the snapshot and refuses
the first thing that must never happen. A plan that breaks a law is a bug of ours or of a policy,
never of the user, so it ends the cycle with :class:`BrokenLaw` and nothing is carried out.

A baseline whose point is to show what happens without a law declares it in its ``breaks``.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any

from dlcore.model import (
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
from dlcore.placement.amounts import lacking, total
from dlcore.placement.limits import namespace_of
from dlcore.placement.needs import Needs
from dlcore.planning import Move, Plan, Reshape, Start, Step, Stop, Wait


class Law(StrEnum):
    """What a plan must never do."""

    ONE_MASTER = "one-master"
    """A GPU belongs to one job."""
    REAL_GPUS = "real-gpus"
    """Only GPUs that exist, are healthy and of the told type are given."""
    ALLOWED_SHAPE = "allowed-shape"
    """A job gets a number, a type and a spread of GPUs that it said it can run on."""
    ALLOWED_BATCH = "allowed-batch"
    """Only a job with an elastic batch gets another batch, and none above its limit."""
    WHOLE_GANG = "whole-gang"
    """A job gets all the GPUs it needs to make progress, or none."""
    RELEASED_FIRST = "released-first"
    """A GPU that a job holds is given away only after a step that takes it from that job and is named."""
    CHECKPOINT_IN_REACH = "checkpoint-in-reach"
    """A job whose checkpoints only one node can read stays on that node."""
    ROOM_FOR_PODS = "room-for-pods"
    """A new pod comes only to a node that takes it and has room for what it asks."""
    NAMESPACE_LIMIT = "namespace-limit"
    """Where a namespace has more GPUs than it may, none of its jobs gets more."""
    WORK_KEPT = "work-kept"
    """A job whose work no checkpoint saves keeps its GPUs, but for a law or a higher priority."""
    PURPOSE = "purpose"
    """Every step changes something and is the only one of its job; GPUs are taken for a job that gets them."""


# Reasons to give a job other GPUs that are no better for itself.
_TIDYING = frozenset({CauseCode.PACKING, CauseCode.EXPLORING, CauseCode.MAKES_ROOM})


class BrokenLaw(Exception):
    """
    A plan that must not be carried out.

    ``str()`` names the policy, the law, the time, the job and what to read. ``message`` is what job
    ``job`` does, or what is done to it: it follows the name of the job in a sentence.
    """

    def __init__(self, law: Law, job: JobId, message: str, *, policy: str, at_s: float) -> None:
        super().__init__(
            f'Policy {policy!r} broke the law "{law}" at t={at_s:.12g} s: job {job} {message}. '
            'See "Laws" in docs/policies.md.'
        )
        self.law = law
        self.job = job
        self.message = message
        self.policy = policy
        self.at_s = at_s

    def __reduce__(self) -> tuple[Any, ...]:
        # Without it the error of a worker process could not reach the process that waits for it.
        return _remake, (self.law, self.job, self.message, self.policy, self.at_s)


def _remake(law: Law, job: JobId, message: str, policy: str, at_s: float) -> BrokenLaw:
    return BrokenLaw(law, job, message, policy=policy, at_s=at_s)


def check(
    plan: Plan, snapshot: Snapshot, *, policy: str, breaks: frozenset[Law] = frozenset()
) -> None:
    """
    Raise :class:`BrokenLaw` at the first law that the plan breaks and ``breaks`` does not allow.

    ``policy`` is the name of the policy that made it, for the error.
    """
    if plan.steps:
        _Replay(plan.steps, snapshot, policy, breaks).run()


class _Replay:
    """One pass over the steps, keeping book of which GPUs jobs hold."""

    def __init__(
        self, steps: Sequence[Step], snapshot: Snapshot, policy: str, breaks: frozenset[Law]
    ) -> None:
        self.steps = steps
        self.snapshot = snapshot
        self.policy = policy
        self.cluster = snapshot.cluster
        self.breaks = breaks
        self.pending = snapshot.queue.select({step.job for step in steps})
        self.running: dict[JobId, JobState] = {}
        self.busy: dict[NodeName, set[int]] = {}
        self.shared: set[GpuRef] = set()
        """GPUs that somebody keeps although another who had them too is stopped."""
        self.released: dict[GpuRef, JobId] = {}
        self.given: dict[GpuRef, JobId] = {}
        self.asked: dict[NodeName, list[Needs]] = {}
        """What new pods ask, by their node."""
        self.losses: list[Reshape | Move | Stop] = []
        self.seen: set[JobId] = set()

    def run(self) -> None:
        if not all(isinstance(step, Wait) for step in self.steps):
            self._occupy()
        for step in self.steps:
            if step.job in self.seen:
                self._refuse(Law.PURPOSE, step.job, "has more than one step")
            self.seen.add(step.job)
            if isinstance(step, Wait):
                self._check_wait(step)
            elif isinstance(step, Start):
                self._start(step)
            else:
                self._take(step)
        for loss in self.losses:
            self._check_loss(loss)
        for step in self.steps:
            if not isinstance(step, Wait | Start):
                self._check_work(step)
        if self.snapshot.limits.max_gpus:
            self._check_limits()

    def _check_limits(self) -> None:
        """Add up what the jobs of each namespace have when all is done."""
        limits = self.snapshot.limits
        before = {state.id: _gpus_of(state) for state in self.snapshot.running}
        after = dict(before)
        for step in self.steps:
            if isinstance(step, Stop):
                after.pop(step.job, None)
            elif not isinstance(step, Wait):
                whole = step.placement if isinstance(step, Start) else step.new
                after[step.job] = max(whole.gpus, step.gang)
        totals: dict[str, int] = {}
        for job, gpus in after.items():
            namespace = namespace_of(job)
            totals[namespace] = totals.get(namespace, 0) + gpus
        for job, gpus in after.items():
            namespace = namespace_of(job)
            limit, has = limits.gpus_of(namespace), totals[namespace]
            if limit is not None and has > limit and gpus > before.get(job, 0):
                which = f"namespace {namespace or '(none)'} may have {limit}"
                self._refuse(Law.NAMESPACE_LIMIT, job, f"gets more GPUs, but {which} and has {has}")

    def _refuse(self, law: Law, job: JobId, message: str) -> None:
        if law not in self.breaks:
            raise BrokenLaw(law, job, message, policy=self.policy, at_s=self.snapshot.now)

    def _occupy(self) -> None:
        """Note which GPUs are in somebody's hands; whose they are is asked only in an error."""
        held = 0
        for state in self.snapshot.running:
            if state.placement is not None:
                self.running[state.id] = state
                held += state.placement.shape.gpus
                for node, gpus in state.placement.slices:
                    self.busy.setdefault(node, set()).update(gpus)
        if held != sum(map(len, self.busy.values())):
            self._find_double()

    def _find_double(self) -> None:
        """Two on one GPU are let pass only where the plan ends all but one of them."""
        stopped = {step.job for step in self.steps if isinstance(step, Stop)}
        owner: dict[GpuRef, JobId] = {}
        for job, placement in self._iter_held():
            for ref in placement.refs():
                if job in stopped:
                    self.shared.add(ref)
                    continue
                other = owner.setdefault(ref, job)
                if other != job:
                    self._refuse(
                        Law.ONE_MASTER, job, f"holds GPU {ref}, which job {other} holds too"
                    )
        self.shared &= owner.keys()

    def _iter_held(self) -> Iterator[tuple[JobId, Placement]]:
        for state in self.running.values():
            if state.placement is not None:
                yield state.id, state.placement

    # --- the steps

    def _check_wait(self, step: Wait) -> None:
        state = self.pending.get(step.job)
        if state is None:
            self._refuse(Law.PURPOSE, step.job, "has a step Wait but is not pending")
        elif state.waiting == step.cause:
            self._refuse(
                Law.PURPOSE, step.job, "has a step Wait with the reason that it has already"
            )

    def _start(self, step: Start) -> None:
        state = self.pending.get(step.job)
        if state is None:
            self._refuse(Law.PURPOSE, step.job, "is started but is not pending")
            return
        self._give(step, set(step.placement.refs()), step.placement)
        self._check_shape(step, state, step.placement)

    def _take(self, step: Reshape | Move | Stop) -> None:
        state = self.running.get(step.job)
        if state is None or state.placement != step.old:
            self._refuse(Law.PURPOSE, step.job, "does not hold what the step takes from it")
        elif isinstance(step, Stop):
            self._release(step.job, step.old.refs())
            self.losses.append(step)
        else:
            self._change(step, state)

    def _change(self, step: Reshape | Move, state: JobState) -> None:
        old, new = set(step.old.refs()), set(step.new.refs())
        same_batch = step.batch_size is None or step.batch_size == state.batch_size
        if old == new and same_batch:
            self._refuse(Law.PURPOSE, step.job, "gets exactly the GPUs and the batch that it has")
        elif same_batch and _is_as_good(step.old, step.new) and step.cause.code not in _TIDYING:
            self._refuse(
                Law.PURPOSE, step.job, "is changed, and what it gets is no better than what it has"
            )
        stays = not set(step.old.nodes).isdisjoint(step.new.nodes)
        if stays != isinstance(step, Reshape):
            self._refuse(
                Law.PURPOSE,
                step.job,
                "has a step Move that keeps a node, or a step Reshape that keeps none",
            )
        # What it gives up is free for later steps only: a job cannot wait for itself.
        self._give(step, new - old, step.new)
        self._check_shape(step, state, step.new)
        self._release(step.job, old - new)
        if old - new and len(new) < len(old):
            self.losses.append(step)

    # --- the GPUs

    def _give(self, step: Start | Reshape | Move, refs: set[GpuRef], whole: Placement) -> None:
        kinds = whole.gpu_type.split("+")
        if len(set(whole.refs())) != whole.shape.gpus:
            self._refuse(Law.REAL_GPUS, step.job, "is given the same GPU twice")
        expected = {self.released[ref] for ref in refs if ref in self.released}
        for idle in sorted(set(step.after) - expected):
            self._refuse(
                Law.RELEASED_FIRST, step.job, f"waits for job {idle}, which releases nothing to it"
            )
        for ref in sorted(refs):
            if ref.number not in self.cluster.usable.get(ref.node, ()):
                self._refuse(
                    Law.REAL_GPUS,
                    step.job,
                    f"gets GPU {ref}, which does not exist or is out of use",
                )
            elif self.cluster.by_name[ref.node].gpu_type not in kinds:
                self._refuse(
                    Law.REAL_GPUS, step.job, f"gets GPU {ref}, which is not a {whole.gpu_type}"
                )
            self._check_released(step, ref)
            self.busy.setdefault(ref.node, set()).add(ref.number)
            self.given[ref] = step.job

    def _check_released(self, step: Start | Reshape | Move, ref: GpuRef) -> None:
        if ref.number in self.busy.get(ref.node, ()):
            owner = self._find_owner(ref)
            law = Law.RELEASED_FIRST if self._gives_up(owner, ref) else Law.ONE_MASTER
            self._refuse(law, step.job, f"gets GPU {ref}, which job {owner} still holds")
        former = self.released.get(ref)
        if former is not None and former not in step.after:
            self._refuse(
                Law.RELEASED_FIRST,
                step.job,
                f"gets GPU {ref} without waiting for job {former}, which releases it",
            )

    def _find_owner(self, ref: GpuRef) -> JobId:
        if ref in self.given:
            return self.given[ref]
        return next(job for job, placement in self._iter_held() if ref in placement.refs())

    def _gives_up(self, owner: JobId, ref: GpuRef) -> bool:
        """Whether the GPU is taken from its owner by a step that comes later."""
        return any(
            isinstance(step, Stop)
            or (isinstance(step, Reshape | Move) and ref not in step.new.refs())
            for step in self.steps
            if step.job == owner
        )

    def _release(self, job: JobId, refs: Iterable[GpuRef]) -> None:
        for ref in refs:
            if ref not in self.given and ref not in self.shared:
                self.busy[ref.node].discard(ref.number)
                self.released[ref] = job

    # --- the job

    def _check_shape(self, step: Start | Reshape | Move, state: JobState, whole: Placement) -> None:
        options, gpus, job = state.job.gpus.options, whole.shape.gpus, step.job
        if step.gang > gpus:
            self._refuse(Law.WHOLE_GANG, job, f"needs {step.gang} GPUs and is given {gpus}")
            if step.gang not in options:
                self._refuse(Law.ALLOWED_SHAPE, job, f"cannot run on {step.gang} GPUs")
        elif gpus not in options or step.gang not in (0, gpus):
            self._refuse(Law.ALLOWED_SHAPE, job, f"cannot run on {gpus} GPUs")
        if state.job.gpus.whole_nodes and step.gang <= gpus and not state.gang:
            self._check_whole_nodes(job, whole)
        self._check_batch(step, state)
        self._check_kind(job, state, whole)

    def _check_whole_nodes(self, job: JobId, whole: Placement) -> None:
        """
        A job that shares no node has every GPU of each of its nodes, unless it is on one only.

        A baseline that gives a gang its pods one by one cannot see to it, and is not held to it.
        """
        for node, gpus in whole.slices:
            if len(gpus) < len(self.cluster.usable.get(node, ())) and len(whole.slices) > 1:
                self._refuse(
                    Law.ALLOWED_SHAPE, job, f"is on several nodes and has a part of {node}"
                )

    def _check_batch(self, step: Start | Reshape | Move, state: JobState) -> None:
        batch, wanted = state.job.batch, step.batch_size
        if wanted is None or wanted == state.batch_size:
            return
        if not batch.elastic:
            self._refuse(Law.ALLOWED_BATCH, step.job, "may not change its batch")
        elif batch.maximum and wanted > batch.maximum:
            self._refuse(Law.ALLOWED_BATCH, step.job, f"may not train a batch of {wanted}")

    def _check_kind(self, job: JobId, state: JobState, whole: Placement) -> None:
        demand, nodes = state.job.gpus, whole.shape.nodes
        kinds = set(whole.gpu_type.split("+"))
        there = [self.cluster.by_name[n] for n in whole.nodes if n in self.cluster.by_name]
        if there and {node.gpu_type for node in there} != kinds:
            self._refuse(Law.REAL_GPUS, job, f"gets GPUs that are not all {whole.gpu_type}")
        if state.job.suspend:
            self._refuse(Law.PURPOSE, job, "is suspended and gets GPUs")
        if len(kinds) > 1 and not demand.mixed:
            self._refuse(Law.ALLOWED_SHAPE, job, f"may not mix {whole.gpu_type}")
        if demand.types and not kinds <= set(demand.types):
            self._refuse(Law.ALLOWED_SHAPE, job, f"cannot run on {whole.gpu_type}")
        if demand.max_nodes is not None and nodes > demand.max_nodes:
            self._refuse(Law.ALLOWED_SHAPE, job, f"may not spread over {nodes} nodes")
        if state.bound_to and not set(whole.nodes) <= set(state.bound_to):
            self._refuse(
                Law.CHECKPOINT_IN_REACH, job, "leaves the node that alone has its checkpoint"
            )
        if state.needs is not None:
            for node in whole.nodes:
                if not state.has_pod_on(node):
                    self._lodge(job, state.needs, node)

    def _lodge(self, job: JobId, needs: Needs, node: NodeName) -> None:
        """Count a new pod on its node. Those that are to go have what they asked for until then."""
        if needs.nodes is not None and node not in needs.nodes:
            self._refuse(
                Law.ROOM_FOR_PODS, job, f"gets a pod on {node}, which does not take its pods"
            )
        there = self.asked.setdefault(node, [])
        there.append(needs)
        free = self.cluster.free.get(node)
        asked = total(dict(each.amounts) for each in there)
        if free is not None and (short := lacking(asked, free)):
            what = " and ".join(short)
            self._refuse(
                Law.ROOM_FOR_PODS, job, f"gets a pod on {node}, which has too little {what} for it"
            )

    def _check_loss(self, step: Reshape | Move | Stop) -> None:
        if step.cause.code in OWN_REASONS:
            return
        if step.old.gpus not in self.running[step.job].job.gpus.options:
            return  # Its user has changed what it may have.
        kept = set() if isinstance(step, Stop) else set(step.new.refs())
        gainers = {self.given.get(ref) for ref in step.old.refs() if ref not in kept}
        if step.cause.job is None or step.cause.job not in gainers:
            lost = len(step.old.refs()) - len(kept)
            named = step.cause.job
            who = "no other job gains them"
            if named is not None and gainers - {None}:
                who = f"job {named}, for which it loses them, gains none of them"
            self._refuse(Law.PURPOSE, step.job, f"loses {lost} GPU{'s'[: lost != 1]} and {who}")

    def _check_work(self, step: Reshape | Move | Stop) -> None:
        """Only a law or a higher priority may cost a job its work; no gain pays for it."""
        state = self.running.get(step.job)
        if state is None or state.unsaved_from is None or step.cause.code in DEMANDS:
            return
        if not state.has_allowed_size:
            return  # Its user has changed what it may have.
        gainer = self.pending.get(step.cause.job) if step.cause.job is not None else None
        is_outranked = gainer is not None and gainer.job.priority > state.job.priority
        if not (isinstance(step, Stop) and is_outranked):
            self._refuse(Law.WORK_KEPT, step.job, "would lose work that no checkpoint saves")


def _gpus_of(state: JobState) -> int:
    return max(state.gang, state.placement.gpus) if state.placement is not None else 0


def _is_as_good(old: Placement, new: Placement) -> bool:
    """Whether a job has nothing of the new placement that it had not of the old one."""
    same = (old.gpus, old.gpu_type) == (new.gpus, new.gpu_type)
    return same and new.shape.nodes >= old.shape.nodes
