"""The container of a job: its image, name, and the folders of the machine that it sees."""

import hashlib
import importlib.util
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from dljob.core.documents.rules.podrules import TRAINER
from dljob.core.model import Job
from dljob.core.model.jobs import ENGINES
from dljob.local.containers import engines
from dljob.local.containers.engines import ContainerSpec, Mount
from dljob.local.environments import Origin

KEEPER = "dljob.local.containers.keeper"
PACKAGES = ("dljob_sidecar", "dljob_wire", "tornado", "pynvml")
"""The packages of the SideCar for containers."""
ARCHIVE, SCRIPT = "dljob-sidecar.pyz", "sidecar-start"
LEFT_OUT = "tornado/test/"


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
    sidecar = Mount(str(_make_sidecar(state / "sidecar")), engines.SIDECAR, is_writable=False)
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
    mode: str, engine: str, *, name: str, socket: Path, words: Sequence[str]
) -> list[str]:
    """
    Return the command of the keeper, which runs a container with these words, or proves that it is gone and then becomes them.
    """
    keeper = [sys.executable, "-I", "-m", KEEPER, mode, engine, name, f"--socket={socket}"]
    return [*keeper, *words]


# --- the SideCar for containers


def _make_sidecar(base: Path) -> Path:
    """
    Return the folder with the SideCar for containers below ``base``: the archive, and the script that finds an interpreter.

    The folder is made from the installed packages, once for each version of the sources.
    """
    files = dict(_iter_files())
    script = (find_sidecar() / SCRIPT).read_bytes()
    folder = base / _digest(files, script)
    if not folder.is_dir():
        _make(folder, files, script=script)
    return folder


def _iter_files() -> Iterator[tuple[str, bytes]]:
    # Python finds a package without an __init__.py in an archive only by the entry of its folder.
    yield "dljob_sidecar/importable/dljob/", b""
    yield "__main__.py", (find_sidecar() / "__main__.py").read_bytes()
    for name in PACKAGES:
        origin = _find(name)
        if origin.name != "__init__.py":
            yield origin.name, origin.read_bytes()
            continue
        for file in sorted(origin.parent.rglob("*.py")):
            inner = str(file.relative_to(origin.parent.parent))
            if not inner.startswith(LEFT_OUT):
                yield inner, file.read_bytes()


def _find(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def find_sidecar() -> Path:
    """Return the folder of this installation that Python runs as the SideCar."""
    return _find("dljob_sidecar").parents[1]


def _digest(files: dict[str, bytes], script: bytes) -> str:
    digest = hashlib.sha256(script)
    for name, content in files.items():
        digest.update(b"%s %d " % (name.encode(), len(content)))
        digest.update(content)
    return digest.hexdigest()[:16]


def _make(folder: Path, files: dict[str, bytes], *, script: bytes) -> None:
    """Make the folder under another name first, so that no container sees half of it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The engine of each user reads it.
    folder.parent.chmod(0o755)
    part = Path(tempfile.mkdtemp(dir=folder.parent))
    with zipfile.ZipFile(part / ARCHIVE, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    (part / SCRIPT).write_bytes(script)
    (part / SCRIPT).chmod(0o755)
    (part / ARCHIVE).chmod(0o644)
    part.chmod(0o755)
    # Another controller may have made it meanwhile.
    try:
        os.rename(part, folder)  # noqa: PTH104 - Path.rename says the same
    except OSError:
        if not folder.is_dir():
            raise
