"""
A job, as the command line of its SideCar: the same on every platform.

The platform adds the options of the place (doors, certificates, the log).
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from dlcore.model import Checkpoint, Job, Progress

CHECKPOINT_FOLDER: Final = "DLJOB_CHECKPOINT_DIR"
"""The variable by which the training finds the folder of its job's checkpoints."""
CHECKPOINT_REFERENCE: Final = f"$({CHECKPOINT_FOLDER})"
"""How ``checkpoint.path`` and ``progress.file`` name that folder."""
DEFAULT_HOOK_PORT = 8080
"""Where the checkpoint hook listens if the job names a path only."""


def refers_to_its_folder(job: Job) -> bool:
    """Whether a path of the job can only be known where the folder of its checkpoints is known."""
    return any(CHECKPOINT_REFERENCE in path for path in (job.checkpoint.path, job.progress.file))


def has_own_folder(job: Job) -> bool:
    """Whether the job leaves it to the platform where its checkpoints are."""
    return not job.checkpoint.path or job.checkpoint.path.startswith(CHECKPOINT_REFERENCE)


def with_folder(job: Job, folder: str) -> Job:
    """Write the folder of the job's checkpoints into the paths that refer to it."""
    path = job.checkpoint.path.replace(CHECKPOINT_REFERENCE, folder)
    file = job.progress.file.replace(CHECKPOINT_REFERENCE, folder)
    return replace(
        job,
        checkpoint=replace(job.checkpoint, path=path),
        progress=replace(job.progress, file=file),
    )


def sidecar_options(job: Job, memory_folder: str = "") -> tuple[str, ...]:
    """
    Everything that the SideCar has to know of the job, but for what it runs.

    ``memory_folder`` is where the platform lets it hold checkpoints in memory; empty where it cannot.
    """
    options = [
        f"--framework={job.framework.value}",
        f"--processes={job.processes}",
        f"--gpu-ids={job.gpus.ids}",
        f"--grace-seconds={job.checkpoint.grace_seconds:g}",
        *_checkpoint(job.checkpoint),
        *_memory(job.checkpoint, memory_folder),
        *_progress(job.progress),
    ]
    if job.preload:
        options.append(f"--preload={','.join(job.preload)}")
        # The SideCar sees all GPUs of the machine, and the job may never have that many.
        options.append(f"--most-spares={max(job.gpus.options)}")
    return tuple(options)


def _checkpoint(checkpoint: Checkpoint) -> Iterator[str]:
    if checkpoint.path:
        # Also of a job that is never asked: before each start, torn checkpoints are set aside.
        yield from _files(checkpoint)
    if checkpoint.signal:
        yield f"--checkpoint-signal={checkpoint.signal}"
    elif checkpoint.command:
        yield f"--checkpoint-command={json.dumps(list(checkpoint.command))}"
    elif checkpoint.http:
        yield f"--checkpoint-http={_hook(checkpoint.http)}"
    else:
        return
    yield f"--checkpoint-to={checkpoint.to}"
    yield f"--checkpoint-confirm={checkpoint.confirm}"
    yield f"--checkpoint-seconds={checkpoint.timeout_seconds:g}"
    if checkpoint.confirm_log:
        yield f"--checkpoint-log={checkpoint.confirm_log}"


def _memory(checkpoint: Checkpoint, folder: str) -> Iterator[str]:
    if checkpoint.memory_mebibytes and folder:
        yield f"--checkpoint-memory={checkpoint.memory_mebibytes}"
        yield f"--checkpoint-memory-path={folder}"


def _files(checkpoint: Checkpoint) -> Iterator[str]:
    yield f"--checkpoint-path={checkpoint.path}"
    yield f"--checkpoint-complete={checkpoint.complete}"
    if checkpoint.files:
        yield f"--checkpoint-files={checkpoint.files}"
    if checkpoint.marker:
        yield f"--checkpoint-marker={checkpoint.marker}"
    if checkpoint.settle_seconds is not None:
        yield f"--checkpoint-settle-seconds={checkpoint.settle_seconds:g}"


def _hook(text: str) -> str:
    """``PORT/PATH``, as the SideCar wants it."""
    text = text.removeprefix(":")
    return f"{DEFAULT_HOOK_PORT}{text}" if text.startswith("/") else text


def _progress(progress: Progress) -> Iterator[str]:
    yield f"--stall-seconds={progress.stall_seconds:g}"
    if progress.samples_per_iteration is not None:
        yield f"--samples-per-iteration={progress.samples_per_iteration}"
    if progress.log:
        yield f"--progress-log={progress.log}"
    elif progress.file:
        yield f"--progress-file={progress.file}"
    elif progress.http:
        yield "--progress-http"
