"""
Pods of one machine: SideCar processes that outlive the controller.

What kubelets are on a cluster. A pod is started in a session of its own, so that a controller that
dies takes nothing with it, and the next one finds it again by its folder:

- its lock is inherited by the SideCar that is started, and given back by the kernel at each
  death. So it is known to live before it has run a single line of its own, and no two are ever
  started for one pod, whoever dies in the middle of that;
- its socket is removed by a SideCar that ended in order, and by nobody else. One that was killed
  leaves it behind.

So a pod that was launched, whose lock is free, has *ended* if there is no socket, and has *died*
if there is one. One that died is started again as a new incarnation, which sweeps away what the
former one left before it says that everything is released. Only that is a proof (law 1), and
this module never claims one of its own.

Where a demonstration or a comparison wants pods that take as long as those of a cluster,
:class:`PodTimes` says how long: a pod is then told to be up, and to have ended, no earlier than that.
"""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlcontrol.acting.sidecar_options import CHECKPOINT_FOLDER
from dlcontrol.situation.ports import (
    Address,
    Entry,
    Pod,
    PodKey,
    PodPhase,
)
from dlcontrol.situation.status import Booking
from dlcore.model import Job, JobId, NodeName
from dlcore.profiles import Costs
from dllocal import environments
from dllocal.environments import Origin, Submitter
from dllocal.folders import Folders
from dllocal.pods.last_words import last_words
from dllocal.pods.launching import POLL_SECONDS, RELEASE_SECONDS, Launching, is_only_swept
from dllocal.pods.pod_folders import PodFolder, find_sidecars
from dllocal.pods.removing import Complain, Remover, to_the_log
from dllocal.pods.trainers import NOTHING, Trainer, folder_problems, trainer_of
from dllocal.pods.watching import Watch, wait_for_end

log = logging.getLogger(__name__)

CANNOT_BEGIN = "SideCarCannotBegin"

Lend = Callable[[], AbstractContextManager[tuple[int, ...]]]
"""Opens descriptors, and closes them when they are inherited."""

RESTART_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""How long is waited before a SideCar that died is started again, the last one for all further."""


DYING_SECONDS = 0.2
"""How soon a pod is looked at again whose last process is ending, and cannot be watched any more."""


@dataclass(frozen=True, slots=True)
class PodTimes:
    """How long pods take at least to start and to end. Seconds."""

    start: float = 0.0
    start_per_gpu: float = 0.0
    end: float = 0.0

    @classmethod
    def of(cls, costs: Costs, *, faster: float = 1.0) -> "PodTimes":
        """As long as pods take by these costs, or in so many times less."""
        return cls(
            costs.pod_initialization / faster,
            costs.pod_initialization_per_gpu / faster,
            costs.pod_termination / faster,
        )


AT_ONCE = PodTimes()


class Pods:
    """All pods of a state folder."""

    def __init__(
        self,
        folders: Folders,
        *,
        virtual_gpus: bool,
        watch: Watch,
        times: PodTimes = AT_ONCE,
        poll_seconds: float = POLL_SECONDS,
        release_seconds: float = RELEASE_SECONDS,
        origin: Callable[[JobId], Origin] = lambda _: Origin.here(),
        complain: Complain = to_the_log,
    ) -> None:
        """``origin`` says whose a job is, and its environment; ``complain`` takes what is not removed."""
        self._leading: Callable[[], AbstractContextManager[None]] = nullcontext
        self._folders = folders
        self._origin = origin
        self._launching = Launching(
            folders,
            virtual_gpus=virtual_gpus,
            poll_seconds=poll_seconds,
            release_seconds=release_seconds,
            origin=origin,
        )
        self._watch = watch
        self._remover = Remover(complain)
        self._remover.sweep(folders.of_jobs())
        self._times = times
        self._children: dict[tuple[PodKey, int], subprocess.Popen[bytes]] = {}
        self._deaths: dict[tuple[PodKey, int], tuple[int, float]] = {}
        self._unread: dict[PodKey, str] = {}
        """Why the folders of pods cannot be read, so that it is logged once."""
        self._living: set[int] = set()
        """The processes of the pods that are looked at."""
        self._lend: Lend = lambda: nullcontext(())
        """Opens what keeps the GPUs locked for as long as a SideCar lives."""
        self._soonest: float | None = None
        """In how many seconds something will be different if nothing happens."""

    def inherit(self, lend: Lend) -> None:
        """Let each SideCar that is started from now on have what this opens, besides its own lock."""
        self._lend = lend

    def fence(self, leading: Callable[[], AbstractContextManager[None]]) -> None:
        """
        Start SideCars from now on only in this, in which no other controller can begin.

        It raises :class:`~dlcontrol.situation.ports.Fenced` if one has.
        """
        self._leading = leading

    def processes(self, entries: Iterable[Entry]) -> set[int]:
        """Name the SideCars that live, and their keepers. All processes of jobs descend from these."""
        return {
            pid
            for entry in entries
            for booking in entry.status.pods
            for pid in self._processes_of(entry.job, PodKey(entry.job.id, booking.node), booking)
        }

    def _processes_of(self, job: Job, key: PodKey, booking: Booking) -> list[int]:
        if not self._was_launched(key, booking):
            return []
        if job.container is not None:
            # The processes of a container descend from its PID 1, which is no child of the keeper.
            return find_sidecars(self._folders.pod_socket(key, booking.serial))
        return self._pids(key, booking)

    def look(self, entries: Iterable[Entry]) -> dict[PodKey, Pod]:
        """Say what is, and start again what has died."""
        self._reap()
        self._living.clear()
        self._soonest = None
        pods: dict[PodKey, Pod] = {}
        booked: set[tuple[PodKey, int]] = set()
        for entry in entries:
            for booking in entry.status.pods:
                key = PodKey(entry.job.id, booking.node)
                booked.add((key, booking.serial))
                pods[key] = self._look_safely(entry, key, booking)
        for pod in self._deaths.keys() - booked:
            del self._deaths[pod]
        for gone in self._unread.keys() - pods.keys():
            del self._unread[gone]
        self._watch.processes(self._living)
        self._watch.after(self._soonest)
        return pods

    def lives(self, job: JobId, booking: Booking) -> bool:
        """Whether a SideCar of this pod lives, whoever has started it."""
        key = PodKey(job, booking.node)
        return self._was_launched(key, booking) and self._is_alive(key, booking)

    def address(self, job: JobId, booking: Booking) -> Address:
        """Return where the SideCar of this pod answers, and as which user."""
        socket = self._folders.pod_socket(PodKey(job, booking.node), booking.serial)
        owner = self._origin(job).submitter.uid if self._folders.shared else None
        return Address(socket=str(socket), owner=owner)

    def launch(self, entry: Entry, booking: Booking) -> None:
        """Start the SideCar of this pod, unless that was done before."""
        key = PodKey(entry.job.id, booking.node)
        if not self._was_launched(key, booking):
            self._start(entry, key, booking)

    def kill(self, entry: Entry, booking: Booking) -> None:
        """
        End the SideCar, and so all that it started.

        If it ever came so far that it could be told anything, it is started again for the proof.
        """
        key = PodKey(entry.job.id, booking.node)
        folder = self._folder(key, booking)
        try:
            if not folder.was_launched:
                # Whoever booked it died before; now it never will be, and that is the proof.
                folder.make()
                folder.note_launch(0.0)
            folder.note_removal()
        finally:
            # A disk that is full keeps no SideCar alive.
            for pid in self._pids(key, booking):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if entry.job.container is not None and not self._has_ever_been_up(key, booking):
                self._prove_removal(entry.job, key, booking)

    def _prove_removal(self, job: Job, key: PodKey, booking: Booking) -> None:
        """Remove a container that may just be beginning, and count its pod as alive until that is done."""
        launch = self._launching.proof(job, booking)
        with self._folders.sidecar_log(key, booking.serial).open("ab") as output:
            self._children[key, booking.serial] = subprocess.Popen(  # noqa: S603 - our own keeper
                launch.command,
                cwd="/",
                env=launch.environment,
                **self._identity(self._origin(job.id).submitter),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    async def end(self, entries: Iterable[Entry], *, patience_s: float = 15.0) -> None:
        """End all SideCars and what they run: in order, or after some time as it comes."""
        pods = [
            (PodKey(entry.job.id, booking.node), booking)
            for entry in entries
            for booking in entry.status.pods
        ]
        for signum, seconds in ((signal.SIGTERM, patience_s), (signal.SIGKILL, None)):
            pids = [pid for pod in pods for pid in self._pids(*pod)]
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.gather(*map(wait_for_end, pids))
            self._reap()

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
        self._remover.remove(job, job_folder)

    def _forget_shared(self, job: JobId) -> None:
        sockets = self._folders.sockets_of(job)
        self._watch.forget(sockets)
        pods = self._folders.pod(PodKey(job, NodeName("")), 0).parent
        for folder in (sockets, pods, self._folders.job(job)):
            self._remover.remove(job, folder)

    # --- what is

    def _look_safely(self, entry: Entry, key: PodKey, booking: Booking) -> Pod:
        """Look at one pod. What is wrong with its files is its own affair: others are decided about."""
        try:
            pod = self._look_at(entry, key, booking)
        except (OSError, ValueError) as error:
            why = f"its folder {self._folder(key, booking).path} cannot be read: {error}"
            if self._unread.get(key) != why:
                log.error("%s: %s", key, why)  # noqa: TRY400 - where in our code says nothing
            self._unread[key] = why
            return Pod(key, PodPhase.LOST, reason="FolderUnreadable", message=why)
        self._unread.pop(key, None)
        return pod

    def _look_at(self, entry: Entry, key: PodKey, booking: Booking) -> Pod:
        self._watch_sockets(key.job)
        socket = self._folders.pod_socket(key, booking.serial)
        address = self.address(key.job, booking)
        if not self._was_launched(key, booking):
            return Pod(key, PodPhase.PENDING)
        if self._is_alive(key, booking):
            pids = self._pids(key, booking)
            self._living.update(pids)
            if not pids:
                self._look_again_in(DYING_SECONDS)
            # Without a socket it is about to end, which its last answers say better than we.
            is_up = self._has_ever_been_up(key, booking) and self._has_started(key, booking)
            phase, start = PodPhase.UP if is_up else PodPhase.PENDING, self._start_of(key, booking)
            return Pod(key, phase, address if is_up else None, start=start)
        # Its user may have put anything in its place, also a link that cannot be followed.
        if os.path.lexists(socket):
            return self._start_again(entry, key, booking)
        if self._folder(key, booking).was_removed or self._has_ever_been_up(key, booking):
            if not self._has_ended(key, booking):
                return Pod(key, PodPhase.UP, address)
            words = last_words(self._folders.sidecar_log(key, booking.serial))
            reason = CANNOT_BEGIN if words else ""
            return Pod(key, PodPhase.ENDED, reason=reason, message=words, stuck=bool(words))
        return self._start_again(entry, key, booking)

    def _has_started(self, key: PodKey, booking: Booking) -> bool:
        """Whether so much time is over since it was asked for as is asked for at least."""
        return self._is_over(self._folder(key, booking).seconds_to_start())

    def _has_ended(self, key: PodKey, booking: Booking) -> bool:
        """Whether so much time is over since its end was first seen as is asked for at least."""
        if self._times.end <= 0.0:
            return True
        return self._is_over(self._folder(key, booking).seconds_to_end(self._times.end))

    def _is_over(self, left: float) -> bool:
        if left > 0.0:
            self._look_again_in(left)
        return left <= 0.0

    def _look_again_in(self, seconds: float) -> None:
        self._soonest = seconds if self._soonest is None else min(seconds, self._soonest)

    def _start_again(self, entry: Entry, key: PodKey, booking: Booking) -> Pod:
        missing = self._missing_folder(entry)
        if missing and not self._has_ever_been_up(key, booking):
            # Nothing of it has ever run, and it would be so on every try: its job has failed to start.
            return Pod(key, PodPhase.ENDED, reason=CANNOT_BEGIN, message=missing, fault=True)
        deaths, last = self._deaths.get((key, booking.serial), (0, 0.0))
        pause = RESTART_SECONDS[min(deaths, len(RESTART_SECONDS) - 1)]
        left = last + pause - time.monotonic()
        if left > 0.0:
            self._look_again_in(left)
            words = last_words(self._folders.sidecar_log(key, booking.serial))
            why = f" ({words})" if words else ""
            reason = f"its SideCar died{why}, and is started again soon"
            return Pod(key, PodPhase.PENDING, reason="CrashLoopBackOff", message=reason)
        self._deaths[key, booking.serial] = (deaths + 1, time.monotonic())
        log.warning("the SideCar of %s is started again", key)
        try:
            self._start(entry, key, booking)
        except (OSError, ValueError) as error:
            # What is wrong with one job, such as that its folder is gone, keeps nobody else waiting.
            why = f"its SideCar died, and cannot be started again: {error}"
            return Pod(key, PodPhase.PENDING, reason="CannotStart", message=why)
        return Pod(key, PodPhase.PENDING, reason="Restarting")

    def _missing_folder(self, entry: Entry) -> str:
        """Say which folder is gone that its program is to run in, if one is to run."""
        if is_only_swept(entry):
            return ""
        return next((each.message for each in folder_problems(entry.job, entry.document)), "")

    def _was_launched(self, key: PodKey, booking: Booking) -> bool:
        return self._folder(key, booking).was_launched

    def _folder(self, key: PodKey, booking: Booking) -> PodFolder:
        return PodFolder(self._folders.pod(key, booking.serial))

    def _start_of(self, key: PodKey, booking: Booking) -> str:
        """Which process its SideCar is; another one was started after the end of the former."""
        return self._folder(key, booking).noted_process()

    def _has_ever_been_up(self, key: PodKey, booking: Booking) -> bool:
        """Whether it came so far as to hold its lock; before that it can have been told nothing."""
        return os.path.lexists(f"{self._folders.pod_socket(key, booking.serial)}.lock")

    def _is_alive(self, key: PodKey, booking: Booking) -> bool:
        child = self._children.get((key, booking.serial))
        if child is not None and child.poll() is None:
            return True
        folder = self._folder(key, booking)
        try:
            return folder.is_locked() or folder.process() is not None
        except OSError:
            # The lock is gone, or something else is in its place: the kernel's list of processes tells as well.
            return bool(self._pids(key, booking))

    # --- what is done

    def _start(self, entry: Entry, key: PodKey, booking: Booking) -> None:
        with self._leading():
            self._start_as_leader(entry, key, booking)

    def _start_as_leader(self, entry: Entry, key: PodKey, booking: Booking) -> None:
        folder = self._folder(key, booking)
        folder.make()
        owner = self._origin(entry.job.id).submitter
        for own in {self._folders.job(key.job), self._folders.sockets_of(key.job)}:
            self._give(own, owner)
        self._watch_sockets(key.job)
        trainer = self._trainer(entry)
        # Known before it is started: what was never told of may have been started.
        folder.note_launch(self._start_seconds(entry, booking))
        held = folder.lock()
        if held is None:
            return
        with (
            os.fdopen(held),
            self._lend() as lent,
            self._folders.sidecar_log(key, booking.serial).open("ab") as output,
        ):
            launch = self._launching.launch(entry, booking, trainer)
            child = subprocess.Popen(  # noqa: S603 - the user's own command
                [*self._entered(trainer.folder), *launch.command],
                cwd="/" if self._folders.shared else trainer.folder,
                env=launch.environment,
                **self._identity(owner),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[held, *lent],
            )
        self._children[key, booking.serial] = child
        folder.note_process(child.pid)

    def _trainer(self, entry: Entry) -> Trainer:
        """Say what is run, and make the folder for its checkpoints."""
        # Where nothing will ever be run, the SideCar only proves that nothing is left of the job.
        if is_only_swept(entry):
            return NOTHING
        checkpoints = self._folders.checkpoints(entry.job.id)
        variables = environments.of_job(entry.job, self._origin(entry.job.id))
        trainer = trainer_of(entry.job, entry.document, checkpoints, variables=variables)
        if trainer.environment[CHECKPOINT_FOLDER] == str(checkpoints):
            checkpoints.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            checkpoints.mkdir(mode=0o700, exist_ok=True)
            self._give(checkpoints, self._origin(entry.job.id).submitter)
        return trainer

    def _give(self, folder: Path, owner: Submitter) -> None:
        """
        Make a folder that is the user's own, where users share this server.

        What is around it is root's, so that its name always means this very folder.
        """
        if self._folders.shared:
            folder.mkdir(mode=0o700, exist_ok=True)
            os.chown(folder, owner.uid, owner.gid, follow_symlinks=False)

    def _entered(self, folder: str) -> tuple[str, ...]:
        """Enter a folder as the user of the job, who may have no right to it."""
        return ("/usr/bin/env", "-C", folder) if self._folders.shared else ()

    def _identity(self, owner: Submitter) -> dict[str, Any]:
        """Say as whom a SideCar runs: as the kernel identified the user at the submission."""
        if not self._folders.shared:
            return {}
        groups = list(owner.groups)
        return {"user": owner.uid, "group": owner.gid, "extra_groups": groups, "umask": 0o022}

    def _watch_sockets(self, job: JobId) -> None:
        folder = self._folders.sockets_of(job)
        if self._folders.shared and folder.is_dir():
            self._watch.sockets(folder)

    def _start_seconds(self, entry: Entry, booking: Booking) -> float:
        placement = entry.status.placement
        slices = placement.slices if placement is not None else ()
        gpus = sum(len(part.gpus) for part in slices if part.node == booking.node)
        return self._times.start + self._times.start_per_gpu * gpus

    def _pids(self, key: PodKey, booking: Booking) -> list[int]:
        """The process that was started, if it still is that one."""
        noted = self._folder(key, booking).process()
        # Whoever started it may have been killed before it could write that down.
        return [noted] if noted else find_sidecars(self._folders.pod_socket(key, booking.serial))

    def _reap(self) -> None:
        for name, child in list(self._children.items()):
            if child.poll() is not None:
                del self._children[name]
