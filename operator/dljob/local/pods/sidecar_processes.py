"""Starts the processes of pods: SideCars and keepers of containers.

On a shared server each process runs as the submitter of its job, whom the kernel identified.
"""

import os
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from dljob.control.acting.sidecar_options import CHECKPOINT_FOLDER
from dljob.control.situation.ports import Entry, PodKey
from dljob.core.model import Job, JobId
from dljob.local import environments
from dljob.local.environments import Origin, Submitter
from dljob.local.files import bounded_checks
from dljob.local.folders import Folders
from dljob.local.pods.launching import LaunchCommands, is_only_swept
from dljob.local.pods.pod_folders import BookedPod
from dljob.local.pods.trainers import NOTHING, Trainer, trainer_of
from dljob.local.pods.watching import PodWatch

Lead = Callable[[], AbstractContextManager[None]]
"""A context in which no other controller can begin; raises :class:`~dljob.control.situation.ports.Fenced` if one has."""
Lend = Callable[[], AbstractContextManager[tuple[int, ...]]]
"""A context with open descriptors that a SideCar inherits, such as the locks of GPUs."""


def lend_nothing() -> AbstractContextManager[tuple[int, ...]]:
    return nullcontext(())


class SideCarProcesses:
    def __init__(
        self,
        folders: Folders,
        launching: LaunchCommands,
        *,
        watch: PodWatch,
        origin: Callable[[JobId], Origin],
        leading: Lead,
        lend: Lend,
    ) -> None:
        self._folders = folders
        self._launching = launching
        self._watch = watch
        self._origin = origin
        self._children: dict[tuple[PodKey, int], subprocess.Popen[bytes]] = {}
        self._leading = leading
        self._lend = lend

    def is_alive(self, pod: BookedPod) -> bool:
        """Return whether a SideCar of this pod lives, including one of an earlier controller."""
        child = self._children.get(pod.name)
        if child is not None and child.poll() is None:
            return True
        try:
            return pod.folder.is_locked() or pod.folder.process() is not None
        except OSError:
            # Without a lock, look for its processes in /proc.
            return bool(pod.pids())

    def reap(self) -> None:
        for name, child in list(self._children.items()):
            if child.poll() is not None:
                del self._children[name]

    def start(self, entry: Entry, pod: BookedPod, *, seconds: float) -> None:
        """
        Start the SideCar of a pod, which seems to take at least ``seconds``.

        Raises :class:`~dljob.local.files.bounded_checks.NoAnswerError` before the start if the job's files do not answer.
        """
        with self._leading():
            self._start_as_leader(entry, pod, seconds=seconds)

    def _start_as_leader(self, entry: Entry, pod: BookedPod, *, seconds: float) -> None:
        pod.folder.make()
        owner = self._origin(entry.job.id).submitter
        job = entry.job.id
        for own in {self._folders.job(job), self._folders.sockets_of(job)}:
            self._give(own, owner)
        self.watch_sockets(job)
        trainer = self._prepare_trainer(entry, owner)
        # Write the note before the start, so that a pod without a note has not started.
        pod.folder.note_launch(seconds)
        held = pod.folder.lock()
        if held is None:
            return
        with os.fdopen(held), self._lend() as lent, pod.log.open("ab") as output:
            launch = self._launching.launch(entry, pod.booking, trainer)
            # The process enters the folder with the rights of the job's user.
            enters = ("/usr/bin/env", "-C", trainer.folder) if self._folders.shared else ()
            child = subprocess.Popen(  # noqa: S603 - the user's own command
                [*enters, *launch.command],
                cwd="/" if self._folders.shared else trainer.folder,
                env=launch.environment,
                **self._identity(owner),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[held, *lent],
            )
        self._children[pod.name] = child
        pod.folder.note_process(child.pid)

    def prove_removal(self, job: Job, pod: BookedPod) -> None:
        """Remove a container that may just be starting. Its pod counts as alive until that is done."""
        launch = self._launching.proof(job, pod.booking)
        with pod.log.open("ab") as output:
            self._children[pod.name] = subprocess.Popen(  # noqa: S603 - our own keeper
                launch.command,
                cwd="/",
                env=launch.environment,
                **self._identity(self._origin(job.id).submitter),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def watch_sockets(self, job: JobId) -> None:
        folder = self._folders.sockets_of(job)
        if self._folders.shared and folder.is_dir():
            self._watch.sockets(folder)

    def _prepare_trainer(self, entry: Entry, owner: Submitter) -> Trainer:
        """Return the command of the training, and make its folder of checkpoints."""
        if is_only_swept(entry):
            return NOTHING
        checkpoints = self._folders.checkpoints(entry.job.id)
        variables = environments.of_job(entry.job, self._origin(entry.job.id))
        trainer = trainer_of(
            entry.job, entry.document, checkpoints=checkpoints, variables=variables
        )
        if not self._folders.shared:
            # Popen waits until its child has entered the folder.
            bounded_checks.ask(trainer.folder, os.path.isdir)
        if trainer.environment[CHECKPOINT_FOLDER] == str(checkpoints):
            checkpoints.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            checkpoints.mkdir(mode=0o700, exist_ok=True)
            self._give(checkpoints, owner)
        return trainer

    def _give(self, folder: Path, owner: Submitter) -> None:
        """Make a folder that belongs to the user, on a shared server.

        Root owns its parent folders, so that no user can replace it.
        """
        if self._folders.shared:
            folder.mkdir(mode=0o700, exist_ok=True)
            os.chown(folder, owner.uid, owner.gid, follow_symlinks=False)

    def _identity(self, owner: Submitter) -> dict[str, Any]:
        if not self._folders.shared:
            return {}
        groups = list(owner.groups)
        return {"user": owner.uid, "group": owner.gid, "extra_groups": groups, "umask": 0o022}
