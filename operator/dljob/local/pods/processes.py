"""
The pods of one machine: SideCar processes that outlive the controller.

This package has the role of kubelets on a cluster. A pod starts in a session of its own, so that it survives the
controller, and the next controller finds it by its folder:

- the SideCar inherits the lock of the pod, which the kernel releases at any death. So a pod is known to live before its
  first line has run, and never has two SideCars, even if a controller dies during the start;
- only a SideCar that ends in order removes its socket.

So a launched pod whose lock is free has *ended* if it has no socket, and *died* if it has one. A SideCar that died is
started again, and its new incarnation ends all processes of the former one before it reports that everything is released.
Only that report is a proof (law 1).

With :class:`PodTimes` pods seem to take as long as those of a cluster, for demonstrations and comparisons.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import nullcontext

from dljob.control.situation.ports import Address, Entry, Pod, PodKey
from dljob.control.situation.status import Booking
from dljob.core.model import Job, JobId, NodeName
from dljob.local.environments import Origin, own_origin
from dljob.local.folders import IN_MEMORY, Folders
from dljob.local.pods.launching import LaunchCommands
from dljob.local.pods.pod_folders import BookedPod, find_sidecars, pods_of
from dljob.local.pods.pod_states import AT_ONCE, PodStates, PodTimes
from dljob.local.pods.removing import Complain, Remover, to_the_log
from dljob.local.pods.sidecar_processes import Lead, Lend, SideCarProcesses, lend_nothing
from dljob.local.pods.watching import PodWatch, wait_for_end


class Pods:
    def __init__(
        self,
        folders: Folders,
        commands: LaunchCommands,
        *,
        watch: PodWatch,
        times: PodTimes = AT_ONCE,
        origin: Callable[[JobId], Origin] = own_origin,
        complain: Complain = to_the_log,
        leading: Lead = nullcontext,
        lend: Lend = lend_nothing,
    ) -> None:
        """SideCars start only within ``leading``, and inherit what ``lend`` opens."""
        self._folders = folders
        self._origin = origin
        self._watch = watch
        self._times = times
        self._remover = Remover(complain, mark=folders.mark())
        # The caller holds the lock of the state folder, so an earlier controller left these files.
        self._remover.sweep(folders.of_jobs())
        self._remover.sweep([IN_MEMORY], are_shared=True)
        self._processes = SideCarProcesses(
            folders, commands, watch=watch, origin=origin, leading=leading, lend=lend
        )
        self._states = PodStates(
            folders,
            self._processes,
            watch=watch,
            times=times,
            remover=self._remover,
            address=self.address,
        )

    def processes(self, entries: Iterable[Entry]) -> set[int]:
        """Return the living SideCars and keepers, the ancestors of all processes of jobs."""
        return {
            pid
            for entry in entries
            for pod in pods_of(self._folders, entry)
            for pid in _processes_of(entry.job, pod)
        }

    def read(self, entries: Iterable[Entry]) -> dict[PodKey, Pod]:
        """Read all pods, and restart SideCars that have died."""
        return self._states.read(entries)

    def lives(self, job: JobId, booking: Booking) -> bool:
        pod = BookedPod(self._folders, job, booking)
        return pod.was_launched and self._processes.is_alive(pod)

    def address(self, job: JobId, booking: Booking) -> Address:
        socket = BookedPod(self._folders, job, booking).socket
        owner = self._origin(job).submitter.uid if self._folders.shared else None
        return Address(socket=str(socket), owner=owner)

    def launch(self, entry: Entry, booking: Booking) -> None:
        """Start the SideCar of this pod, unless it was started before."""
        pod = BookedPod(self._folders, entry.job.id, booking)
        if not pod.was_launched:
            self._processes.start(entry, pod, seconds=self._times.to_start(entry, booking))

    def kill(self, entry: Entry, booking: Booking) -> None:
        """Kill the SideCar. If it may have received a command, restart it to get the proof."""
        pod = BookedPod(self._folders, entry.job.id, booking)
        try:
            if not pod.was_launched:
                # The controller that booked the pod died before the start. The pod never starts
                # now, which is the proof.
                pod.folder.make()
                pod.folder.note_launch(0.0)
            # Write this before the signal: a pod that was never up and ends without this note is
            # restarted.
            pod.folder.note_removal()
        finally:
            # Also on a full disk. A SideCar that was never up has no training, and may stand still
            # when its keeper dies.
            never_up = () if pod.has_ever_been_up else find_sidecars(pod.socket)
            _send({*pod.pids(), *never_up}, signal.SIGKILL)
            if entry.job.container is not None and not pod.has_ever_been_up:
                self._processes.prove_removal(entry.job, pod)

    async def end(self, entries: Iterable[Entry], *, patience_s: float = 15.0) -> None:
        """End all SideCars and trainings in order; kill them after ``patience_s``."""
        pods = [pod for entry in entries for pod in pods_of(self._folders, entry)]
        for signum, seconds in ((signal.SIGTERM, patience_s), (signal.SIGKILL, None)):
            # Read again for each signal, because the kernel reuses numbers.
            pids = [pid for pod in pods for pid in pod.pids()]
            _send(pids, signum)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.gather(*map(wait_for_end, pids))
            self._processes.reap()

    def forget(self, job: JobId, *, keep_checkpoints: bool = False) -> None:
        """Remove the files of a job, so that a new job of the same name starts clean."""
        if not keep_checkpoints:
            self._remover.remove(job, self._folders.checkpoints(job))
        if self._folders.shared:
            sockets = self._folders.sockets_of(job)
            # Before the removal, which inotify would report.
            self._watch.forget(sockets)
            for folder in (sockets, self._folders.pods_of(job), self._folders.job(job)):
                self._remover.remove(job, folder)
            return
        job_folder = self._folders.job(job)
        for pod in job_folder.glob("[0-9]*-*"):
            serial, _, node = pod.name.partition("-")
            socket = self._folders.pod_socket(PodKey(job, NodeName(node)), int(serial))
            for path in socket.parent.glob(f"{socket.name}*"):
                path.unlink(missing_ok=True)
        # Remove this last: a repeated `forget` finds the sockets by this folder.
        self._remover.remove(job, job_folder)


def _processes_of(job: Job, pod: BookedPod) -> list[int]:
    if not pod.was_launched:
        return []
    if job.container is not None:
        # PID 1 of a container is no child of the keeper.
        return find_sidecars(pod.socket)
    return pod.pids()


def _send(pids: Iterable[int], signum: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
