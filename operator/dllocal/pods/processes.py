"""
Pods of one machine: SideCar processes that outlive the controller.

They have the role of kubelets on a cluster. A pod starts in a session of its own, so that a controller that
dies takes nothing with it, and the next one finds it again by its folder:

- its lock is inherited by the SideCar that is started, and given back by the kernel at each death.
  So it is known to live before it has run a single line of its own, and no two are ever started for
  one pod, even if a controller dies in the middle of that;
- its socket is removed only by a SideCar that ended in order. One that was killed leaves it behind.

So a pod that was launched, whose lock is free, has *ended* if there is no socket, and has *died*
if there is one. One that died is started again as a new incarnation, which sweeps away what the
former one left before it says that everything is released. Only that is a proof (law 1), and
this module never claims one of its own.

Where a demonstration or a comparison wants pods that take as long as those of a cluster,
:class:`PodTimes` says how long: a pod is then told to be up, and to have ended, no earlier than that.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import nullcontext

from dlcontrol.situation.ports import Address, Entry, Pod, PodKey
from dlcontrol.situation.status import Booking
from dlcore.model import Job, JobId, NodeName
from dllocal.environments import Origin, own_origin
from dllocal.folders import IN_MEMORY, Folders
from dllocal.pods.launching import LaunchCommands
from dllocal.pods.pod_folders import BookedPod, find_sidecars, pods_of
from dllocal.pods.pod_states import AT_ONCE, PodStates, PodTimes
from dllocal.pods.removing import Complain, Remover, to_the_log
from dllocal.pods.sidecar_processes import Lead, Lend, SideCarProcesses, lend_nothing
from dllocal.pods.watching import PodWatch, wait_for_end


class Pods:
    """All pods of a state folder."""

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
        """SideCars start within ``leading`` alone, and inherit what ``lend`` opens."""
        self._folders = folders
        self._origin = origin
        self._watch = watch
        self._times = times
        self._remover = Remover(complain, mark=folders.mark())
        # The caller holds the lock of the state folder, so that
        # all of these were left by a controller that has ended.
        self._remover.sweep(folders.of_jobs())
        self._remover.sweep_own(IN_MEMORY)
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
        """Name the SideCars that live, and their keepers. All processes of jobs descend from these."""
        return {
            pid
            for entry in entries
            for pod in pods_of(self._folders, entry)
            for pid in _processes_of(entry.job, pod)
        }

    def read(self, entries: Iterable[Entry]) -> dict[PodKey, Pod]:
        """Say what is, and start again what has died."""
        return self._states.read(entries)

    def lives(self, job: JobId, booking: Booking) -> bool:
        """Whether a SideCar of this pod lives, also one that a former controller has started."""
        pod = BookedPod(self._folders, job, booking)
        return pod.was_launched and self._processes.is_alive(pod)

    def address(self, job: JobId, booking: Booking) -> Address:
        """Return where the SideCar of this pod answers, and as which user."""
        socket = BookedPod(self._folders, job, booking).socket
        owner = self._origin(job).submitter.uid if self._folders.shared else None
        return Address(socket=str(socket), owner=owner)

    def launch(self, entry: Entry, booking: Booking) -> None:
        """Start the SideCar of this pod, unless that was done before."""
        pod = BookedPod(self._folders, entry.job.id, booking)
        if not pod.was_launched:
            self._processes.start(entry, pod, seconds=self._times.to_start(entry, booking))

    def kill(self, entry: Entry, booking: Booking) -> None:
        """
        End the SideCar, and so all that it started.

        If it ever came so far that it could receive a command, it is started again for the proof.
        """
        pod = BookedPod(self._folders, entry.job.id, booking)
        try:
            if not pod.was_launched:
                # The controller that booked it died before it could start it; now it never will
                # start, and that is the proof.
                pod.folder.make()
                pod.folder.note_launch(0.0)
            # Noted before the signal: a pod that was never
            # up and ends without this note is started again.
            pod.folder.note_removal()
        finally:
            # A disk that is full keeps no SideCar alive.
            _send(pod.pids(), signal.SIGKILL)
            if entry.job.container is not None and not pod.has_ever_been_up:
                self._processes.prove_removal(entry.job, pod)

    async def end(self, entries: Iterable[Entry], *, patience_s: float = 15.0) -> None:
        """End all SideCars and what they run: in order, or after some time as it comes."""
        pods = [pod for entry in entries for pod in pods_of(self._folders, entry)]
        for signum, seconds in ((signal.SIGTERM, patience_s), (signal.SIGKILL, None)):
            # Read again for each signal. `pids` compares the times of the starts, so that a
            # number which the kernel has given to another process since is not among them.
            pids = [pid for pod in pods for pid in pod.pids()]
            # All get the signal before the wait begins, so that they end at the same time.
            _send(pids, signum)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.gather(*map(wait_for_end, pids))
            self._processes.reap()

    def forget(self, job: JobId, *, keep_checkpoints: bool = False) -> None:
        """Remove what is kept of pods that have ended, so that a namesake begins with nothing."""
        if not keep_checkpoints:
            self._remover.remove(job, self._folders.checkpoints(job))
        if self._folders.shared:
            self._forget_shared(job)
            return
        job_folder = self._folders.job(job)
        for pod in job_folder.glob("[0-9]*-*"):
            serial, _, node = pod.name.partition("-")
            socket = self._folders.pod_socket(PodKey(job, NodeName(node)), int(serial))
            for path in socket.parent.glob(f"{socket.name}*"):
                path.unlink(missing_ok=True)
        # The folder goes last: while it exists, a repeated `forget` finds the sockets of its pods.
        self._remover.remove(job, job_folder)

    def _forget_shared(self, job: JobId) -> None:
        sockets = self._folders.sockets_of(job)
        # The watch first. inotify follows the folder to its
        # other name, and would report each removal in it.
        self._watch.forget(sockets)
        pods = self._folders.pod(PodKey(job, NodeName("")), 0).parent
        for folder in (sockets, pods, self._folders.job(job)):
            self._remover.remove(job, folder)


def _processes_of(job: Job, pod: BookedPod) -> list[int]:
    if not pod.was_launched:
        return []
    if job.container is not None:
        # The processes of a container descend from its PID 1, which is no child of the keeper.
        return find_sidecars(pod.socket)
    return pod.pids()


def _send(pids: Iterable[int], signum: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
