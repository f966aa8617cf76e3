"""Describes a job to its SideCar, the same on every platform.

The platform adds its own fields and options (addresses, certificates, the log).
"""

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from dljob.core.documents.rules.podrules import TRAINER
from dljob.core.model import Job
from dljob_wire.training import GpuIds, Split, Training, write_training

CHECKPOINT_FOLDER: Final = "DLJOB_CHECKPOINT_DIR"
"""The variable by which the training finds the folder of its job's checkpoints."""
CHECKPOINT_REFERENCE: Final = f"$({CHECKPOINT_FOLDER})"
"""How ``checkpoint.path`` and ``progress.file`` name that folder."""


def refers_to_its_folder(job: Job) -> bool:
    """Return True if a path of the job depends on the folder of its checkpoints."""
    return any(CHECKPOINT_REFERENCE in path for path in (job.checkpoint.path, job.progress.file))


def with_folder(job: Job, folder: str) -> Job:
    """Write the folder of the job's checkpoints into the paths that refer to it."""
    path = job.checkpoint.path.replace(CHECKPOINT_REFERENCE, folder)
    file = job.progress.file.replace(CHECKPOINT_REFERENCE, folder)
    return replace(
        job,
        checkpoint=replace(job.checkpoint, path=path),
        progress=replace(job.progress, file=file),
    )


def on_cluster(job: Job) -> Job:
    """Return the job with the kind of volume of its checkpoints, if that ends with its pod; then the file cannot say otherwise."""
    pod = job.template["spec"]
    trainer = next(each for each in pod["containers"] if each["name"] == TRAINER)
    named = [each for each in trainer.get("env") or () if each.get("name") == CHECKPOINT_FOLDER]
    folder = str(named[-1].get("value") or CHECKPOINT_REFERENCE) if named else CHECKPOINT_REFERENCE
    path = with_folder(job, folder).checkpoint.path
    if not path.startswith("/"):  # It has none, or its folder is known in the container only.
        return job
    place = _find_perishable(posixpath.normpath(path), trainer, volumes=pod.get("volumes"))
    if not place:
        return job
    kept = replace(job.checkpoint, ends_with_pod=place, shared=False, trusted=False)
    return replace(job, checkpoint=kept)


def _find_perishable(path: str, trainer: Mapping[str, Any], *, volumes: Any) -> str:
    mounts = {
        posixpath.normpath(posixpath.join("/", str(each.get("mountPath")))): each.get("name")
        for each in _iter_mappings(trainer.get("volumeMounts"))
    }
    above = [mount for mount in mounts if posixpath.commonpath((path, mount)) == mount]
    if not above:
        return "the container's own file system"
    name = mounts[max(above, key=len)]
    volume = next((each for each in _iter_mappings(volumes) if each.get("name") == name), {})
    if "emptyDir" in volume:
        return f"the emptyDir volume {name}"
    return f"the generic ephemeral volume {name}" if "ephemeral" in volume else ""


def _iter_mappings(items: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the mappings in a list of the template, which only Kubernetes checks."""
    if isinstance(items, list | tuple):
        yield from (each for each in items if isinstance(each, Mapping))


def describe_training(job: Job, *, memory_folder: str = "") -> Training:
    """Describe a job to its SideCar, without its command and the platform's additions.

    ``memory_folder`` is where the platform lets the job hold checkpoints in memory; empty if it
    cannot.
    """
    has_memory = job.checkpoint.is_possible and job.checkpoint.memory_mebibytes
    return Training(
        framework=job.framework,
        processes=Split(job.processes),
        gpu_ids=GpuIds(job.gpus.ids),
        checkpoint=replace(job.checkpoint, memory_path=memory_folder if has_memory else ""),
        progress=job.progress,
        live_seconds=job.live_seconds,
        preload=job.preload,
        # The SideCar sees all GPUs of the machine, and the job may never have that many.
        most_spares=max(job.gpus.options) if job.preload else 0,
        iterations=job.training.iterations or 0,
        # Of a job of unknown length, an epoch counts as an iteration.
        iterations_per_epoch=job.training.iterations_per_epoch
        or (0 if job.training.iterations else 1),
    )


def training_option(training: Training) -> str:
    """Return the option of the SideCar's command line that carries the description."""
    return f"--training={write_training(training)}"
