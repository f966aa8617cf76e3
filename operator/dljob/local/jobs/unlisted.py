"""
Finds living pods that the list of jobs lacks.

Each pod has a folder of its own in which its SideCar holds a lock. If the list has lost a job or a decision (the disk has
failed, or a user has removed the list), the folder still shows that the pod lives. The pod is then listed again before
the first decision, with the GPUs that its SideCar reports, or with all GPUs of its node if the SideCar does not answer.
So no other job gets GPUs of the pod, and ``dljob cancel`` ends it with a proof.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dljob.control.situation.ports import Entry, PodKey
from dljob.control.situation.status import Booking, DecisionNumber, StartNumber, Status
from dljob.core.model import JobId, Node, NodeName, Phase, Placement
from dljob.local.folders import Folders, StateError
from dljob.local.pods.pod_folders import PodFolder, find_sidecars
from dljob_wire.messages import Run, State

_POD = re.compile(r"([0-9]{4,9})-([a-z0-9][a-z0-9.-]{0,252})", re.ASCII)
_JOB = re.compile(r"[a-z0-9][a-z0-9.-]*(__[a-z0-9][a-z0-9.-]*)?", re.ASCII)

LOST = "the list of jobs lost it, and it still runs; cancel it, and submit it again"


class Unlisted(NamedTuple):
    """A living pod that is in no status."""

    key: PodKey
    booking: Booking
    processes: tuple[int, ...]

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.processes))
        return f"{self.key} ({f'process {numbers}' if numbers else 'its process has died'})"


def find_unlisted(folders: Folders, entries: Mapping[JobId, Entry]) -> list[Unlisted]:
    known = {
        (job, booking.node, booking.serial)
        for job, entry in entries.items()
        for booking in entry.status.pods
    }
    found = []
    for job, base in list_jobs(folders):
        for name in _list(base):
            match = _POD.fullmatch(name)
            if match is None:
                continue
            booking = Booking(NodeName(match[2]), int(match[1]))
            if (job, *booking[:2]) not in known and may_live(folders, job, booking=booking):
                socket = folders.pod_socket(PodKey(job, booking.node), booking.serial)
                processes = tuple(find_sidecars(socket))
                found.append(Unlisted(PodKey(job, booking.node), booking, processes))
    return sorted(found)


def status_with(
    status: Status | None, pods: Iterable[Unlisted], *, nodes: Iterable[Node], now: float
) -> Status:
    """Add pods to the status of a job, with all GPUs of their nodes."""
    pods = tuple(pods)
    taken = {booking.node: booking.serial for booking in status.pods} if status else {}
    for pod in pods:
        other = taken.get(pod.booking.node)
        if other is not None:
            raise StateError(
                f"{pod} lives, and the list of jobs knows another pod of it there ({other:04d}); end that"
                " process, and start again"
            )
    mine = {pod.booking.node for pod in pods}
    there = [node for node in nodes if node.name in mine]
    numbers = {node.name: [gpu.index for gpu in node.gpus] for node in there}
    everything = Placement.of(numbers, there[0].gpu_type if there else "")
    if status is None:
        begun = Status(phase=Phase.RUNNING, submitted_at=now, started_at=now, message=LOST)
        status = begun.decided(everything, now=now)
    serials = [pod.booking.serial for pod in pods]
    return replace(
        status,
        pods=(*status.pods, *(pod.booking for pod in pods)),
        used=status.used.union(serials),
        booked=max(status.booked, *serials),
        leftover=status.leftover.union(everything.refs()),
    )


def narrowed(status: Status, states: Mapping[NodeName, State], *, nodes: Iterable[Node]) -> Status:
    """Reduce the GPUs of a job to those that its SideCars hold or are about to take, by their latest decision."""
    placement = status.placement
    if placement is None:
        return status
    by_name = {node.name: node for node in nodes}
    numbers: dict[NodeName, tuple[int, ...]] = {part.node: part.gpus for part in placement.slices}
    for name, state in states.items():
        run = state.target if isinstance(state.target, Run) else None
        named = {*state.held, *(run.gpus if run is not None else ())}
        gpus = by_name[name].gpus if name in by_name else ()
        held = tuple(gpu.index for gpu in gpus if named & {str(gpu.index), gpu.uuid})
        # An unknown name may mean any GPU of the node.
        if held and len(held) == len(named):
            numbers[name] = held
    narrow = Placement.of(numbers, placement.gpu_type)
    silent = {ref for ref in status.leftover if ref.node not in states}
    latest = max((state.generation // 2 for state in states.values()), default=0)
    if latest > status.generation:
        status = replace(status, generation=DecisionNumber(latest), adopted=StartNumber(0))
    return replace(status, placement=narrow, leftover=frozenset(silent.union(narrow.refs())))


def list_jobs(folders: Folders) -> Iterator[tuple[JobId, Path]]:
    base = folders.of_pods()
    for name in _list(base):
        # Other folders are being removed, or belong to other servers.
        if _JOB.fullmatch(name):
            yield JobId(name.replace("__", "/")), base / name


def may_live(folders: Folders, job: JobId, *, booking: Booking) -> bool:
    """Return whether the SideCar of a pod lives, or has died without a proof that its processes have ended."""
    key = PodKey(job, booking.node)
    folder = PodFolder(folders.pod(key, booking.serial))
    if not folder.was_launched:
        return False
    with suppress(OSError):
        if folder.is_locked():
            return True
    socket = folders.pod_socket(key, booking.serial)
    return folder.process() is not None or os.path.lexists(socket) or bool(find_sidecars(socket))


def _list(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
