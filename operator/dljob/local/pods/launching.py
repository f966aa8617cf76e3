"""
The command line of a pod: a SideCar, or the keeper of a container with the SideCar in it.

:mod:`dljob.local.pods.sidecar_processes` starts the process.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from dljob.control.acting.sidecar_options import (
    CHECKPOINT_FOLDER,
    describe_training,
    training_option,
    with_folder,
)
from dljob.control.situation.ports import Entry, PodKey
from dljob.control.situation.status import Booking
from dljob.core.model import Job, JobId
from dljob.local.containers import engines, running
from dljob.local.containers.engines import Mount
from dljob.local.containers.running import find_sidecar
from dljob.local.environments import Origin, own_origin
from dljob.local.folders import Folders
from dljob.local.pods.trainers import Trainer

POLL_SECONDS = 5.0
"""How often a SideCar reads facts that it is not notified of, such as the progress of the training."""

RELEASE_SECONDS = 60.0
"""How long a SideCar keeps a GPU only because its memory is in use, on a machine that others use as well."""


class Launch(NamedTuple):
    command: list[str]
    environment: dict[str, str]


class LaunchCommands:
    """The command lines of all pods of a state folder."""

    def __init__(
        self,
        folders: Folders,
        *,
        virtual_gpus: bool,
        poll_seconds: float = POLL_SECONDS,
        release_seconds: float = RELEASE_SECONDS,
        origin: Callable[[JobId], Origin] = own_origin,
    ) -> None:
        self._folders = folders
        self._virtual = virtual_gpus
        self._poll_seconds = poll_seconds
        self._release_seconds = release_seconds
        self._origin = origin

    def launch(self, entry: Entry, booking: Booking, trainer: Trainer) -> Launch:
        job, origin, key = entry.job, self._origin(entry.job.id), PodKey(entry.job.id, booking.node)
        options = [
            *self._options(job, key, booking=booking, trainer=trainer),
            "--",
            *trainer.command,
        ]
        # Pass -I, so that the SideCar loads nothing from the training's folder or environment.
        sidecar = [sys.executable, "-I", str(find_sidecar()), "run", *options]
        if job.container is None:
            return Launch(sidecar, dict(trainer.environment))
        if is_only_swept(entry):
            return self.proof(job, booking, *sidecar)
        container = running.spec_of(
            job,
            origin,
            state=self._folders.root,
            mounts=self._mounts(key, trainer.folder),
            folder=trainer.folder,
            variables=trainer.environment,
            sees_gpus=not self._virtual,
        )
        socket = self._folders.pod_socket(key, booking.serial)
        name = running.name_of(job, socket)
        words = container.words(name, [engines.START, "run", *options])
        command = running.keeper_command(
            "run", container.engine, name=name, socket=socket, words=words
        )
        return Launch(command, container.environment())

    def proof(self, job: Job, booking: Booking, *command: str) -> Launch:
        """Return the process that removes the container of this pod, and then becomes ``command``."""
        origin = self._origin(job.id)
        socket = self._folders.pod_socket(PodKey(job.id, booking.node), booking.serial)
        engine, name = running.engine_of(job, origin), running.name_of(job, socket)
        proof = running.keeper_command("prove", engine, name=name, socket=socket, words=command)
        return Launch(proof, engines.client_of(origin.variables))

    def _mounts(self, key: PodKey, folder: str) -> Iterator[Mount]:
        """Yield the folders in which the SideCar or the training writes."""
        own = (
            self._folders.job(key.job),
            self._folders.sockets_of(key.job),
            self._folders.checkpoints(key.job),
        )
        paths = [*(str(path.absolute()) for path in own if path.is_dir()), folder]
        yield from (Mount(path, path) for path in paths if path != "/")

    def _options(self, job: Job, key: PodKey, *, booking: Booking, trainer: Trainer) -> list[str]:
        own = str(self._folders.checkpoints(job.id))
        job = with_folder(job, trainer.environment.get(CHECKPOINT_FOLDER, own))
        # In a container this folder is another one, and small.
        memory = "" if job.container else str(self._folders.memory(key, booking.serial))
        progress = self._folders.progress_socket(key, booking.serial) if job.progress.http else ""
        training = replace(
            describe_training(job, memory_folder=memory),
            log_file=str(self._folders.training_log(key)),
            poll_seconds=self._poll_seconds,
            release_seconds=self._release_seconds,
            expects_gpus=not self._virtual,
            progress_socket=str(progress),
        )
        socket = self._folders.pod_socket(key, booking.serial)
        return [f"--socket={socket}", training_option(training)]


def is_only_swept(entry: Entry) -> bool:
    """Return whether the SideCars of a job run nothing and only prove that no process is left."""
    return bool(entry.problem) or entry.cancelled or entry.status.is_final
