"""The next record of each job, and the duty of each of its pods: the paper's coordinator.

:func:`desired` is a function of one :class:`~dljob.control.situation.scene.Scene`, which has the record, what is
observed, and the claims on GPUs. :mod:`dljob.control.acting.applying` sends the difference from the last declaration and
from the pods that exist. Neither keeps the way to a goal between cycles, so a restart of the controller, a lost
declaration or a replaced decision needs no code of its own: the next cycle finds what still differs.

In place, a newcomer's pods start at once, while its victims still train; when the pods are ready,
the victims are to run on the rest of their GPUs, or to stop. A job that grows trains on until its new GPUs
are free and its pods on new nodes ready. With the mechanism ``recreate`` a change ends the job's pods, and
new ones are requested when all their GPUs are free. A job over several containers changes as one: all are
to stop, and only when each of them has released everything are all to run. If only the job's leader saves, the
others train on until it has saved, and then have to hurry. If a job has lost some of its
processes or containers, the rest is ended at once, because it only hangs.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from dljob.control.acting.job_in_scene import JobInScene
from dljob.control.acting.starts import (
    LONGEST_REASON,
    count_processes,
    find_live_run,
    find_staying,
    make_start,
)
from dljob.control.gpus.visibility import cannot_prove
from dljob.control.judging import live_changes, trials
from dljob.control.judging.exits import add_ends, ended_with_zero
from dljob.control.judging.silence import must_end
from dljob.control.judging.unchanged_pods import is_coming_up
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import Places, PodPhase
from dljob.control.situation.process_sets import is_told_to_run
from dljob.control.situation.quarantine import Quarantine
from dljob.control.situation.scene import Scene
from dljob.control.situation.sent import Begun
from dljob.control.situation.status import Status
from dljob.core.model import JobId, NodeName, Placement
from dljob_wire.messages import Phase as SideCarPhase
from dljob_wire.messages import Run, State, Stop, Target


@dataclass(frozen=True, slots=True)
class Present:
    """The pod exists, and its SideCar has no target yet."""


@dataclass(frozen=True, slots=True)
class Absent:
    """The pod ends with all its processes, because its SideCar follows no target."""

    because: str
    is_needed: bool = False
    """The job needs another pod in its place."""


Doing = Target | Present | Absent
Pods = Mapping[NodeName, Doing]


@dataclass(frozen=True, slots=True)
class Desired:
    """One job as it shall be now."""

    record: Status | None
    """Its next record; None: nothing is kept of the job any more."""
    pods: Pods = field(default_factory=dict)
    """The duty of each pod; the very target that it has if nothing differs. A pod that is missing here
    stays as it is until its SideCar answers or its end is recorded.
    """
    begun: Begun | None = None
    """The start that is to begin in some of the pods."""


def desired(scene: Scene, places: Places, quarantine: Quarantine) -> dict[JobId, Desired]:
    """Return what is safe now, for each job that is not at rest."""
    untouched = quarantine.untouched
    found: dict[JobId, Desired] = {}
    for job, entry in scene.entries.items():
        try:
            # A cancelled or finished job without GPUs and pods may have to be forgotten.
            has_anything = entry.status.has_anything
            if not has_anything and not entry.is_over:
                continue
            if job in untouched and (has_anything or not entry.cancelled):
                continue
            if not is_coming_up(scene, entry):
                found[job] = desired_of(JobInScene(scene, entry), places)
        except Exception as error:  # noqa: BLE001 - one job's data never stops the others
            quarantine.add(job, error)
    return found


def changed_records(wanted: Mapping[JobId, Desired], scene: Scene) -> dict[JobId, Status]:
    """Return the records to write before the pods are brought to their duties."""
    return {
        job: each.record
        for job, each in wanted.items()
        if each.record is not None and each.record is not scene.entries[job].status
    }


def desired_of(case: JobInScene, places: Places) -> Desired:
    scene, status, placement = case.scene, case.status, case.status.placement
    # Nothing judges a good end of a job that is set aside until its spec is mended.
    is_set_aside = bool(case.entry.problem) and not case.entry.cancelled
    ended = {
        node: job_pod
        for node, job_pod in case.job_pods.items()
        if job_pod.has_ended and not (is_set_aside and ended_with_zero([job_pod]))
    }
    if not case.job_pods and _is_over(case):
        return Desired(None)
    if not case.job_pods and placement is None:
        return Desired(status)
    if ended:
        ends = add_ends(status.ended, list(ended.values()))
        status = status.without_pods(ended, ended=ends)
    then = Desired(status)
    if placement is None:
        then = Desired(status, _leave(case))
    elif not case.entry.problem and all(
        # Commands of a former controller may still take effect, so ours wait until their outcome
        # is known.
        job_pod.fresh or job_pod.is_stamped(scene.epoch)
        for job_pod in case.present
    ):
        then = _approach(case, status, placement=placement, places=places)
    pods: dict[NodeName, Doing] = {**dict(_iter_unchanged(case)), **then.pods}
    if case.entry.job.checkpoint.to == "leader" and not any(map(_may_be_saving, case.present)):
        pods.update(_iter_hurried(case, pods))
    pods.update(_iter_stuck(case, pods))
    return Desired(then.record, pods, then.begun)


def _is_over(case: JobInScene) -> bool:
    if case.entry.cancelled:
        return True
    own, finished_at = case.entry.job.limits.ttl_seconds_after_finished, case.status.finished_at
    ttl = own if own is not None else case.scene.ttl_seconds or None
    is_old = ttl is not None and finished_at is not None and case.scene.now >= finished_at + ttl
    return case.status.is_final and is_old


def _iter_unchanged(case: JobInScene) -> Iterator[tuple[NodeName, Target | Present]]:
    """Yield the last target of each pod, under the epoch of this controller, so that it obeys no former one."""
    placement = case.status.placement
    for job_pod in case.present:
        node, state, told = job_pod.key.node, job_pod.state, job_pod.told
        if state is None:
            if placement is not None and node in placement.nodes:
                yield node, Present()
        elif _wants_stamp(case, job_pod):
            epoch, incarnation = case.scene.epoch, state.incarnation
            if state.target is not None:
                yield node, replace(state.target, epoch=epoch, incarnation=incarnation)
            else:
                yield node, Stop(epoch, state.generation, incarnation, reason="a new controller")
        elif told is not None:
            yield node, told


def _wants_stamp(case: JobInScene, job_pod: JobPod) -> bool:
    state = job_pod.state
    return (
        state is not None
        and state.epoch != case.scene.epoch
        and job_pod.contact.reachable
        and not job_pod.is_waited_for
        and not state.leaving
    )


def _leave(case: JobInScene) -> Pods:
    """Stop the processes and end the pods of a job that has no GPUs any more."""
    is_to_be_heard = case.in_place and any(
        case.scene.is_awaited(job_pod) or _wants_stamp(case, job_pod) for job_pod in case.present
    )
    if case.entry.may_come_back and is_to_be_heard:
        return {}  # The report of a SideCar that is back shows whether the job continues unchanged.
    trains_on = case.is_awaited() and not case.claimants_are_ready()
    return _stop(
        case, [job_pod for job_pod in case.present if not (trains_on and job_pod.is_living)]
    )


def _approach(case: JobInScene, status: Status, *, placement: Placement, places: Places) -> Desired:
    """Return what brings the job nearer to its GPUs; ``status`` is its next record so far."""
    useless = [job_pod for job_pod in case.present if case.is_useless(job_pod, placement)]
    pods = _stop(case, useless)
    missing = [node for node in placement.nodes if node not in case.job_pods]
    # Pods that get their GPUs at their start are requested when these are free.
    if missing and (case.in_place or (not useless and case.gains_are_free(placement))):
        status = status.with_pods(missing, case.scene.now)
        pods.update(dict.fromkeys(missing, Present()))
    if case.all_run(placement):
        pods.update(_iter_tried(case))
        return Desired(status, pods)
    old = [job_pod for job_pod in case.present if job_pod.is_living and not case.runs(job_pod)]
    then = Desired(status, pods)
    kept = _keep_processes(case, then, placement, old=old, places=places) if old else None
    if kept is not None:
        return kept
    may_begin = case.may_begin(placement)
    # In one container, "run" alone is enough: its SideCar saves, stops, proves and starts.
    is_one = len(placement.nodes) == 1 and placement.nodes == tuple(
        job_pod.key.node for job_pod in case.present
    )
    if old and not (may_begin and is_one and case.in_place):
        stopping = [job_pod for job_pod in old if job_pod.key.node not in pods]
        pods.update(_stop(case, stopping, staying=placement.nodes))
        return Desired(status, pods)
    generation = case.status.run_generation
    waiting = [
        node
        for node in placement.nodes
        if may_begin
        and not case.runs(case.job_pods[node])
        and not is_told_to_run(case.job_pods[node], generation)
    ]
    if not waiting:
        return Desired(status, pods)
    begun = make_start(case.scene, case.entry, placement, places)
    pods.update({node: begun.runs[node] for node in waiting})
    return Desired(status.with_used(waiting), pods, begun)


def _keep_processes(
    case: JobInScene, then: Desired, placement: Placement, *, old: list[JobPod], places: Places
) -> Desired | None:
    """Return the next step that keeps the present processes, ``then`` included; None if they have to end now."""
    if not case.may_stop(placement):
        return then
    # No SideCar can restart a job of several containers alone.
    only = case.loses_work or case.goes_back(placement) or len(placement.nodes) > 1
    live = find_staying(case.scene, case.entry, placement, only=only)
    if any(job_pod.phase is SideCarPhase.CHANGING for job_pod in old):
        # In several containers the processes that are to stay are known when the change under way is over.
        # Newcomers wait in vain for processes that have ended.
        if live is None:
            return None if case.is_broken else then
    elif not case.may_change_live and not case.goes_back(placement):
        return None
    elif live is None or not live_changes.are_capable(old):
        # A restart would lose such work; if the processes do not agree in time, the job gives the decision back.
        return then if case.loses_work else None
    if not case.may_begin(placement):
        return then
    begun = make_start(case.scene, case.entry, placement, places, live=live)
    pods: dict[NodeName, Doing] = {**then.pods, **begun.runs}
    for job_pod in old:
        node, state = job_pod.key.node, job_pod.state
        if node not in begun.runs and state is not None:
            stop = _make_stop(case, job_pod, state, saves=False, leaves=True)
            pods[node] = _leave_live(stop, begun.runs[placement.nodes[0]])
    record = then.record.with_used(begun.runs) if then.record is not None else None
    return Desired(record, pods, begun)


def _leave_live(stop: Stop, run: Run) -> Stop:
    """Let a container that loses all its processes know of the change, because these leave at the same step."""
    assert run.live is not None
    met = replace(run.live, host=run.peers[0].host, port=run.rendezvous_port, only=False)
    return replace(stop, checkpoint=False, live=met)


def _iter_tried(case: JobInScene) -> Iterator[tuple[NodeName, Run]]:
    """Try the checkpoint, and then a live change, while no change is pending, before the first one needs it."""
    scene, entry = case.scene, case.entry
    number, live_number = trials.find_due(scene, entry), live_changes.find_due(scene, entry)
    asked = trials.find_asked(entry.job, case.present) if number else case.present
    for job_pod in asked if number or live_number else ():
        target = job_pod.state.target if job_pod.state is not None else None
        is_listening = job_pod.phase is SideCarPhase.RUNNING and job_pod.contact.reachable
        if not is_listening or not isinstance(target, Run):
            continue
        if target.trial < number or target.live_trial < live_number:
            trial, live_trial = max(target.trial, number), max(target.live_trial, live_number)
            yield (
                job_pod.key.node,
                replace(target, epoch=scene.epoch, trial=trial, live_trial=live_trial),
            )


def _stop(
    case: JobInScene, job_pods: Iterable[JobPod], *, staying: Iterable[NodeName] = ()
) -> dict[NodeName, Doing]:
    pods: dict[NodeName, Doing] = {}
    for job_pod in job_pods:
        node = job_pod.key.node
        leaves = node not in staying
        if job_pod.pod.phase is PodPhase.PENDING and not job_pod.contact.reachable:
            if leaves:
                pods[node] = Absent("it is no longer needed")
        elif job_pod.state is None or job_pod.is_leaving:
            continue
        elif leaves or not case.knows_of_the_stop(job_pod):
            stop = _make_stop(
                case, job_pod, job_pod.state, saves=case.may_save(job_pod), leaves=leaves
            )
            # A former controller may have declared the change to some of the containers only.
            change = find_live_run(case.present, case.status.run_generation) if leaves else None
            is_former = change is not None and change.live and change.live.since == job_pod.start
            pods[node] = _leave_live(stop, change) if change and is_former else stop
    return pods


def _make_stop(
    case: JobInScene, job_pod: JobPod, state: State, *, saves: bool, leaves: bool
) -> Stop:
    known = job_pod.told.generation if job_pod.told is not None else state.generation
    placement, coming = case.status.placement, 0
    if placement is not None and not leaves:
        # The processes that start next, so that spares are ready in time.
        coming = count_processes(case.entry.job, placement).get(job_pod.key.node, 0)
    return Stop(
        case.scene.epoch,
        # A SideCar that has to leave may have received another command in this generation.
        max(case.status.stop_generation, known + leaves),
        state.incarnation,
        checkpoint=saves,
        leave=leaves,
        coming=coming,
        reason=case.status.message[:LONGEST_REASON],
    )


def _iter_hurried(case: JobInScene, pods: Pods) -> Iterator[tuple[NodeName, Stop]]:
    """Hurry the pods that wait for the leader's checkpoint, once that is over."""
    for job_pod in case.present:
        state, declared = job_pod.state, job_pod.contact.declared
        doing = pods.get(job_pod.key.node)
        if state is None or not isinstance(doing, Stop) or not isinstance(state.target, Stop):
            continue
        # The hurried stop has the same term as the first, so the term does not show whether it was
        # sent.
        is_said = isinstance(declared, Stop) and not declared.checkpoint
        is_waiting = state.phase is SideCarPhase.CHECKPOINTING and not _leads(state)
        # A SideCar that was interrupted accepts no orders.
        is_ours = state.leaving == state.target.leave and job_pod.is_stamped(case.scene.epoch)
        if is_waiting and is_ours and not is_said and job_pod.contact.reachable:
            yield (
                job_pod.key.node,
                _make_stop(case, job_pod, state, saves=False, leaves=doing.leave),
            )


def _iter_stuck(case: JobInScene, pods: Pods) -> Iterator[tuple[NodeName, Absent]]:
    """End pods whose SideCar is silent for too long or cannot see its GPUs: these stay occupied otherwise."""
    for job_pod in case.present:
        doing = pods.get(job_pod.key.node)
        if must_end(job_pod, case.scene):
            silent_for = case.scene.now - job_pod.contact.since
            because = f"its SideCar has not answered for {silent_for:.0f} s"
            is_needed = not (isinstance(doing, Stop) and doing.leave)
            yield job_pod.key.node, Absent(because, is_needed)
        elif job_pod.pod.phase is PodPhase.UP and job_pod.is_leaving and cannot_prove(job_pod):
            yield (
                job_pod.key.node,
                Absent("its GPUs have vanished, so only the end of its own processes is a proof"),
            )
    for job_pod in case.untrusted:
        yield job_pod.key.node, Absent(f"its SideCar is not trusted: {job_pod.untrusted}")


def _leads(state: State) -> bool:
    return any(process.rank == 0 for process in state.processes)


def _may_be_saving(job_pod: JobPod) -> bool:
    """Return True if the job's leader may live in this pod and still has to save."""
    state = job_pod.state
    if not job_pod.is_living:
        return False
    if state is None or any(run.rank_offset == 0 for run in job_pod.contact.coming):
        return True  # The leader may have started there without a report yet.
    return _leads(state) and state.phase in _MAY_SAVE


_MAY_SAVE = frozenset(
    {
        *(SideCarPhase.STARTING, SideCarPhase.RUNNING, SideCarPhase.CHANGING),
        SideCarPhase.CHECKPOINTING,
    }
)
