"""
Checks at the submission whether a job can run in its container.

Engine, image, interpreter and access to GPUs are tried together, with the command that will run the job: a container in
which the SideCar starts and ends at once. The problem quotes the engine's last line, and names the remedy.
"""

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dljob.control.acting.sidecar_options import CHECKPOINT_REFERENCE
from dljob.core.model import Job
from dljob.core.model.jobs import ENGINES
from dljob.local.containers import engines, running
from dljob.local.containers.engines import ContainerSpec
from dljob.local.environments import Origin, Submitter
from dljob_wire.problems import Problem

TRIAL_SECONDS = 20.0
"""The time limit for all trials of a request: ``dljob submit`` waits 30 s for an answer."""
REMOVAL_SECONDS = 60.0
REMEMBERED_SECONDS = 60.0
"""How long a successful trial is cached for the same image, engine and user."""
MOST_REMEMBERED = 1_000
USAGE = 2
"""The exit status of a SideCar without options, which shows that interpreter and archive work."""
LONGEST = 300

PATH = "spec.environment.container"

Run = Callable[[list[str], Mapping[str, str], float], "subprocess.CompletedProcess[str]"]


class Remedy(NamedTuple):
    """The field and the remedy for an error that contains one of these phrases."""

    says: tuple[str, ...]
    field: str
    text: str


REMEDIES = (
    Remedy(
        ("unresolvable cdi", "nvidia.com/gpu"),
        "engine",
        "describe the GPUs to podman once, as root: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    Remedy(
        ("could not select device driver",),
        "engine",
        "install the NVIDIA Container Toolkit, and run: nvidia-ctk runtime configure --runtime=docker",
    ),
    Remedy(
        ("cannot connect to the docker daemon", "permission denied while trying to connect"),
        "engine",
        "start docker, and let the user reach it (group docker), or write engine: podman",
    ),
    Remedy(
        ("interpretermissing", "sidecar-start"),
        "image",
        "install Python 3.9 or newer and a shell in the image; the SideCar runs in it",
    ),
    Remedy(
        ("no such file or directory", "statfs", "bind source path"),
        "folders",
        "make the folder, or name another one",
    ),
)


class Trials:
    def __init__(
        self,
        state: Path,
        *,
        sees_gpus: bool,
        seconds: float = TRIAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = seconds
        self._state = state
        self._sees_gpus = sees_gpus
        self._clock = clock
        self._good: dict[tuple[object, ...], float] = {}
        """The times of successful trials."""

    def deadline(self) -> float:
        return self._clock() + self._seconds

    def problems(self, job: Job, origin: Origin, folder: str, *, until: float) -> Iterator[Problem]:
        """
        Yield the problems of a job's container; ``folder`` is where the job runs.

        A trial that takes too long is no problem: engines are slow on a busy machine, and the job reports the same fault
        at its start.
        """
        if job.container is None:
            return
        engine = running.find_engine(job, origin)
        image = running.image_of(job)
        if not engine:
            yield _no_engine(job.container.engine)
        elif not image:
            remedy = "name one that is on this machine"
            yield Problem(f"{PATH}.image", None, "the job names no image", remedy)
        else:
            yield from _unseen(job, folder)
            yield from self._try(job, origin, until=until)

    def _try(self, job: Job, origin: Origin, *, until: float) -> Iterator[Problem]:
        container = running.spec_of(job, origin, state=self._state, sees_gpus=self._sees_gpus)
        kind = (container.engine, container.image, container.user, container.mounts)
        # Several threads read requests: a lost entry costs one more trial.
        now = self._clock()
        if now - self._good.get(kind, -REMEMBERED_SECONDS) < REMEMBERED_SECONDS:
            return
        try:
            problem = _first_problem(container, _runner(origin.submitter), seconds=until - now)
        except subprocess.TimeoutExpired:
            return
        if problem is not None:
            yield problem
        elif len(self._good) < MOST_REMEMBERED:
            self._good[kind] = now
        else:
            self._good = {kind: now}


def _no_engine(name: str) -> Problem:
    what = (
        f"{name} is not installed here" if name else "neither podman nor docker is installed here"
    )
    other = [each for each in ENGINES if each != name]
    remedy = f"install it, or write engine: {other[0]}" if name else "install one of them"
    return Problem(f"{PATH}.engine", name or None, what, f"{remedy}, or leave container out")


def _unseen(job: Job, folder: str) -> Iterator[Problem]:
    """Yield the shared paths that the container does not see."""
    assert job.container is not None
    # The root folder of a container is that of its image.
    seen = {Path(folder), *map(Path, job.container.folders)} - {Path("/")}
    paths = {"spec.checkpoint.path": job.checkpoint.path, "spec.progress.file": job.progress.file}
    for field, path in paths.items():
        if not path or path.startswith(CHECKPOINT_REFERENCE):
            continue
        around = {Path(path), *Path(path).parents}
        if not around.intersection(seen):
            what = f"{path} is not seen in the container"
            remedy = (
                f"name its folder in environment.container.folders, or write {CHECKPOINT_REFERENCE}"
            )
            yield Problem(field, path, what, remedy)


def _first_problem(container: ContainerSpec, run: Run, *, seconds: float) -> Problem | None:
    """Try a container, in the order in which a user would solve the problems."""
    client = dict(container.client)
    begun = time.monotonic()
    looked = run([container.engine, "image", "inspect", container.image], client, seconds)
    said = looked.stderr.lower()
    if looked.returncode != 0 and ("no such image" in said or "image not known" in said):
        what = f"{container.engine} has no image {container.image} on this machine"
        # A pull during a start would keep GPUs idle.
        remedy = f"get it first: {container.engine} pull {container.image}"
        return Problem(f"{PATH}.image", container.image, what, remedy)
    if looked.returncode != 0:
        return _problem(container, looked.stderr)
    # Random, because several trials run at once.
    name = f"dljob-trial-{os.urandom(6).hex()}"
    left = seconds - (time.monotonic() - begun)
    try:
        tried = run(container.words(name, [engines.START, "run"]), client, left)
    except subprocess.TimeoutExpired:
        # The client was killed, and the container may still start.
        removal = ([container.engine, "rm", "--force", name], client, REMOVAL_SECONDS)
        threading.Thread(target=_run_in_time, args=(run, *removal), daemon=True).start()
        raise
    if tried.returncode == USAGE:
        return None
    return _problem(container, tried.stderr or tried.stdout)


def _run_in_time(run: Run, command: list[str], client: Mapping[str, str], seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        run(command, client, seconds)


def _problem(container: ContainerSpec, said: str) -> Problem:
    """Quote an engine's error, for the field that solves the problem."""
    lines = [line for line in said.strip().splitlines() if line.strip()] or ["it says nothing"]
    words = "".join(each if each.isprintable() else "?" for each in lines[-1])[:LONGEST]
    text = said.lower()
    fits = (each for each in REMEDIES if any(word in text for word in each.says))
    remedy = next(fits, Remedy((), "image", "see whether the engine can run it without DLJob"))
    what = f"{container.engine} cannot run {container.image} here: {words}"
    value = {"image": container.image, "engine": container.engine}.get(remedy.field)
    return Problem(f"{PATH}.{remedy.field}", value, what, remedy.text)


def _runner(submitter: Submitter) -> Run:
    """Return a function that runs an engine as the user of the job."""
    other: dict[str, Any] = {}
    if submitter.uid != os.getuid():
        other = {"user": submitter.uid, "group": submitter.gid}
        other["extra_groups"] = list(submitter.groups)

    def run(
        command: list[str], environment: Mapping[str, str], seconds: float
    ) -> "subprocess.CompletedProcess[str]":
        try:
            # Not `preexec_fn`, which can deadlock in a program with threads.
            return subprocess.run(  # noqa: S603 - composed by dljob.local.containers.engines
                command,
                env=dict(environment),
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=max(0.0, seconds),
                check=False,
                **other,
            )
        except OSError as error:
            return subprocess.CompletedProcess(command, 1, "", str(error))

    return run
