"""Returns the next commands that give every job its decided GPUs: the paper's coordinator.

It reads one :class:`~dljob.control.situation.scene.Scene` and returns the commands that are safe now.
It keeps no state between cycles, so a restart of the controller, a lost command or a replaced
decision needs no code of its own: the next cycle finds the remaining steps. Every command is a
declaration, which is harmless when repeated; a command that waits for its answer is not repeated.
In place, a newcomer's pods start at once, while its victims still train; when the pods are ready,
the controller orders the victims to run on the rest of their GPUs, or to stop. A job that grows
trains on until its new GPUs are free and its pods on new nodes ready. With the mechanism
``recreate`` a change ends the job's pods, and new ones are requested when all their GPUs are free.
A job over several containers changes as one: all get the command to stop, and only when each of
them has released everything do all get the command to run. If only the job's leader saves, the
others train on until it has saved, and then get the command to hurry. If a job has lost some of its
processes or containers, the rest is ended at once, because it only hangs.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from dljob.control.acting.commands import (
    Begin,
    Book,
    Command,
    Forget,
    Halt,
    Launch,
    Remove,
    Stamp,
    Try,
    Unbook,
    addressed,
)
from dljob.control.acting.job_in_scene import JobInScene, JobsInScene
from dljob.control.gpus.visibility import cannot_prove
from dljob.control.judging import trials
from dljob.control.judging.exits import add_ends, ended_with_zero
from dljob.control.judging.silence import must_end
from dljob.control.judging.unchanged_pods import is_coming_up
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import Entry, PodPhase
from dljob.control.situation.quarantine import Quarantine
from dljob.control.situation.scene import Scene
from dljob.core.model import NodeName, Placement
from dljob_wire.messages import Phase as SideCarPhase
from dljob_wire.messages import Run, State, Stop


def next_commands(scene: Scene, quarantine: Quarantine | None = None) -> list[Command]:
    """Return all commands that are safe now."""
    quarantine = quarantine if quarantine is not None else Quarantine()
    jobs = JobsInScene(scene, quarantine)
    commands: list[Command] = []
    for job, entry in scene.entries.items():
        # A cancelled job without GPUs and pods needs no record before it is deleted.
        may_just_go = entry.cancelled and not entry.status.has_anything
        if job in quarantine.untouched and not may_just_go:
            continue
        try:
            if not _is_at_rest(entry) and not is_coming_up(scene, entry):
                commands += list(iter_commands(jobs.case(job)))
        except Exception as error:  # noqa: BLE001 - one job's data never stops the others
            quarantine.add(job, error)
    return commands


def _is_at_rest(entry: Entry) -> bool:
    """Return True for a job that neither has GPUs or pods nor gets any, and is not to be deleted."""
    may_be_forgotten = entry.cancelled or entry.status.is_final
    return not entry.status.has_anything and not may_be_forgotten


def iter_commands(case: JobInScene) -> Iterator[Command]:
    # Nothing judges a good end of a job that is set aside until its spec is mended.
    is_set_aside = bool(case.entry.problem) and not case.entry.cancelled
    ended = tuple(
        node
        for node, job_pod in case.job_pods.items()
        if job_pod.has_ended and not (is_set_aside and ended_with_zero([job_pod]))
    )
    if ended:
        gone = [case.job_pods[node] for node in ended]
        yield Unbook(case.job, ended, ended=add_ends(case.status.ended, gone))
    if not case.job_pods:
        if _is_over(case):
            yield Forget(case.job)
            return
        if case.status.placement is None:
            return
    strangers = [job_pod for job_pod in case.present if not job_pod.is_stamped(case.scene.epoch)]
    spoken_to: set[NodeName] = set()
    for command in chain(_towards_goal(case, strangers), _hurry(case)):
        spoken_to |= addressed(command)
        yield command
    for job_pod in strangers:
        if _wants_stamp(job_pod) and job_pod.key.node not in spoken_to:
            yield Stamp(job_pod.key)
    yield from _remove_stuck(case)
    for job_pod in case.untrusted:
        yield Remove(job_pod.key, f"its SideCar is not trusted: {job_pod.untrusted}")


def _towards_goal(case: JobInScene, strangers: list[JobPod]) -> Iterator[Command]:
    placement = case.status.placement
    if placement is None:
        yield from _go(case)
        return
    wanted = [job_pod for job_pod in case.present if job_pod.key.node in placement.nodes]
    for job_pod in wanted:
        if not job_pod.asked and job_pod.pod.phase is PodPhase.PENDING:
            yield Launch(job_pod.key)
    if case.entry.problem:
        return  # Its new spec is unreadable.
    if all(job_pod.fresh for job_pod in strangers):
        # Commands of a former controller may still take effect, so ours wait until their
        # outcome is known.
        yield from _approach(case, placement)


def _remove_stuck(case: JobInScene) -> Iterator[Command]:
    """End pods whose SideCar is silent for too long or cannot see its GPUs: these stay occupied otherwise."""
    for job_pod in case.present:
        if must_end(job_pod, case.scene):
            silent_for = case.scene.now - job_pod.contact.since
            because = f"its SideCar has not answered for {silent_for:.0f} s"
            yield Remove(job_pod.key, because, is_needed=True)
        if job_pod.pod.phase is PodPhase.UP and job_pod.is_leaving and cannot_prove(job_pod):
            yield Remove(
                job_pod.key,
                "its GPUs have vanished, so only the end of its own processes is a proof",
            )


def _go(case: JobInScene) -> Iterator[Command]:
    """Stop the processes and end the pods of a job that has no GPUs any more."""
    is_to_be_heard = case.in_place and any(
        case.scene.is_awaited(job_pod)
        or (_wants_stamp(job_pod) and not job_pod.is_stamped(case.scene.epoch))
        for job_pod in case.present
    )
    if case.entry.may_come_back and is_to_be_heard:
        return  # The report of a SideCar that is back shows whether the job continues unchanged.
    trains_on = case.is_awaited() and not case.claimants_are_ready()
    yield from _halt(
        case,
        [job_pod for job_pod in case.present if not (trains_on and job_pod.is_living)],
        staying=(),
    )


def _approach(case: JobInScene, placement: Placement) -> Iterator[Command]:
    useless = [job_pod for job_pod in case.present if case.is_useless(job_pod, placement)]
    yield from _halt(case, useless, staying=())
    missing = tuple(node for node in placement.nodes if node not in case.job_pods)
    # Pods that get their GPUs at their start are requested when these are free.
    if missing and (case.in_place or (not useless and case.gains_are_free(placement))):
        yield Book(case.job, missing)
    if case.all_run(placement):
        yield from _try_checkpoint(case)
        return
    old = [job_pod for job_pod in case.present if job_pod.is_living and not case.runs(job_pod)]
    if not old:
        if case.may_begin(placement):
            yield from _begin(case, placement)
    elif case.may_stop(placement):
        # In one container, "run" alone is enough: its SideCar saves, stops, proves and starts.
        is_one = case.in_place and placement.nodes == tuple(pod.key.node for pod in case.present)
        if is_one and len(placement.nodes) == 1 and case.may_begin(placement):
            yield from _begin(case, placement)
        else:
            stopping = [job_pod for job_pod in old if job_pod not in useless]
            yield from _halt(case, stopping, staying=placement.nodes)


def _try_checkpoint(case: JobInScene) -> Iterator[Command]:
    """Try the checkpoint while no change is pending, before the first change needs it."""
    number = trials.find_due(case.scene, case.entry)
    if not number:
        return
    for job_pod in trials.find_asked(case.entry.job, case.job_pods.values()):
        target = job_pod.state.target if job_pod.state is not None else None
        is_told = isinstance(target, Run) and target.trial >= number
        if job_pod.phase is SideCarPhase.RUNNING and job_pod.contact.reachable and not is_told:
            yield Try(job_pod.key, number)


def _begin(case: JobInScene, placement: Placement) -> Iterator[Command]:
    missing: list[NodeName] = []
    for node in placement.nodes:
        told = case.job_pods[node].told
        has_command = isinstance(told, Run) and told.generation == case.status.run_generation
        if not has_command and not case.runs(case.job_pods[node]):
            missing.append(node)
    if missing:
        yield Begin(case.job, tuple(missing))


def _halt(
    case: JobInScene, job_pods: Iterable[JobPod], *, staying: Iterable[NodeName]
) -> Iterator[Command]:
    for job_pod in job_pods:
        leaves = job_pod.key.node not in staying
        if job_pod.pod.phase is PodPhase.PENDING and not job_pod.contact.reachable:
            if leaves:
                yield Remove(job_pod.key, "it is no longer needed")
        elif job_pod.state is None or job_pod.is_leaving:
            continue
        elif leaves or not case.knows_of_the_stop(job_pod):
            yield Halt(job_pod.key, checkpoint=case.may_save(job_pod), leave=leaves)


def _hurry(case: JobInScene) -> Iterator[Command]:
    """Send the hurry command to pods that wait for the leader's checkpoint, once that is over."""
    if case.entry.job.checkpoint.to != "leader" or any(map(_may_be_saving, case.present)):
        return
    for job_pod in case.present:
        stop = _waits_with(job_pod)
        if stop is not None and job_pod.is_stamped(case.scene.epoch):
            yield Halt(job_pod.key, checkpoint=False, leave=stop.leave)


def _is_over(case: JobInScene) -> bool:
    if case.entry.cancelled:
        return True
    own, finished_at = case.entry.job.limits.ttl_seconds_after_finished, case.status.finished_at
    ttl = own if own is not None else case.scene.ttl_seconds or None
    is_old = ttl is not None and finished_at is not None and case.scene.now >= finished_at + ttl
    return case.status.is_final and is_old


def _wants_stamp(job_pod: JobPod) -> bool:
    state = job_pod.state
    return (
        state is not None
        and job_pod.contact.reachable
        and not job_pod.is_waited_for
        and not state.leaving
    )


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


def _waits_with(job_pod: JobPod) -> Stop | None:
    """Return the stop with which a SideCar waits for a leader elsewhere, if it can be hurried."""
    state, declared = job_pod.state, job_pod.contact.declared
    if state is None or not isinstance(state.target, Stop) or not job_pod.contact.reachable:
        return None
    # The hurried stop has the same term as the first, so the term does not show whether it was
    # sent.
    is_said = isinstance(declared, Stop) and not declared.checkpoint
    is_waiting = state.phase is SideCarPhase.CHECKPOINTING and not _leads(state)
    # A SideCar that was interrupted accepts no orders.
    is_ours = state.leaving == state.target.leave and not is_said
    return state.target if is_waiting and is_ours else None


_MAY_SAVE = frozenset({SideCarPhase.STARTING, SideCarPhase.RUNNING, SideCarPhase.CHECKPOINTING})
