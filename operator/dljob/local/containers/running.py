"""The container of a job: its image, name, and the folders of the machine that it sees."""

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dljob.core.documents.rules.podrules import TRAINER
from dljob.core.model import Job
from dljob.core.model.jobs import ENGINES
from dljob.local.containers import engines, sidecar_files
from dljob.local.containers.engines import ContainerSpec, Mount
from dljob.local.environments import Origin

KEEPER = "dljob.local.containers.keeper"


def name_of(job: Job, socket: Path) -> str:
    """Return a unique name for the container of the pod with this socket."""
    own = hashlib.sha256(str(socket.absolute()).encode()).hexdigest()[:12]
    return f"dljob-{job.id.replace('/', '_')}-{own}"


def image_of(job: Job) -> str:
    if job.container is not None and job.container.image:
        return job.container.image
    containers = job.template.get("spec", {}).get("containers", ())
    return next((each.get("image", "") for each in containers if each["name"] == TRAINER), "")


def engine_of(job: Job, origin: Origin) -> str:
    """Return the engine for a job's container, even if it is not installed any more."""
    return find_engine(job, origin) or (job.container and job.container.engine) or ENGINES[0]


def find_engine(job: Job, origin: Origin) -> str:
    """Return the installed engine for a job's container; empty if there is none."""
    name = job.container.engine if job.container is not None else ""
    return engines.find(name, origin.variables.get("PATH", ""))


def spec_of(
    job: Job,
    origin: Origin,
    *,
    state: Path,
    mounts: Iterable[Mount] = (),
    folder: str = "/",
    variables: Mapping[str, str] | None = None,
    sees_gpus: bool,
) -> ContainerSpec:
    """Describe the container of a job, with the SideCar in it."""
    submitter = origin.submitter
    sidecar = Mount(
        str(sidecar_files.ensure(state / "sidecar")), engines.SIDECAR, is_writable=False
    )
    assert job.container is not None
    named = (Mount(each, each) for each in job.container.folders)
    return ContainerSpec(
        engine=engine_of(job, origin),
        image=image_of(job),
        user=(submitter.uid, submitter.gid, submitter.groups),
        mounts=(sidecar, *_without_repetitions([*mounts, *named])),
        folder=folder,
        variables=variables or {},
        client=engines.client_of(origin.variables),
        sees_gpus=sees_gpus,
    )


def _without_repetitions(mounts: Sequence[Mount]) -> list[Mount]:
    """Leave out folders below others."""
    targets = {Path(each.target) for each in mounts}
    kept = {
        each.target: each
        for each in mounts
        if not any(parent in targets for parent in Path(each.target).parents)
    }
    return list(kept.values())


def keeper_command(
    container: ContainerSpec, name: str, *, socket: Path, command: Sequence[str]
) -> list[str]:
    """Return the command of the keeper that runs a SideCar in the container."""
    words = container.words(name, [engines.START, "run", *command])
    return [*_keeper("run", container.engine, name=name, socket=socket), *words]


def proof_command(
    engine: str, name: str, *, socket: Path, command: Sequence[str] = ()
) -> list[str]:
    """Return the command that proves that a container is gone, and then becomes ``command``."""
    return [*_keeper("prove", engine, name=name, socket=socket), *command]


def _keeper(mode: str, engine: str, *, name: str, socket: Path) -> list[str]:
    return [sys.executable, "-I", "-m", KEEPER, mode, engine, name, f"--socket={socket}"]
