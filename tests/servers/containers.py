"""
The engine that runs containers on this machine for a test: podman, or a docker that answers, with
an image made here.

The image is this interpreter with its libraries and a busybox, so that it takes a few seconds and no registry. Podman
keeps it in a folder of the test, and gets the limits and the runtime that work where root may raise no
limits and control groups are those of two versions at once.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.binaries import Unavailable

IMAGE = "localhost/dljob-test-python:1"
BARE = "localhost/dljob-test-busybox:1"
"""An image without Python."""
SECONDS = 300.0
OF_NO_USE = shutil.ignore_patterns(
    *("__pycache__", "site-packages", "test", "tests", "idlelib", "tkinter", "ensurepip"),
    *("config-*", "lib2to3", "turtledemo"),
)
SETTINGS = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
"""


@dataclass(frozen=True)
class Containers:
    """An engine with both images."""

    engine: str
    variables: dict[str, str]
    """The variables that its client needs in its environment."""

    def __call__(self, *words: str) -> str:
        """Run a command; raise :class:`Unavailable` with its output if it fails."""
        done = self.try_to(*words)
        if done.returncode != 0:
            raise Unavailable(f"{self.engine} {words[0]}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def try_to(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self.engine, *words],
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )

    def is_there(self, name: str) -> bool:
        return self.try_to("container", "inspect", name).returncode == 0


@contextmanager
def containers(folder: Path) -> Iterator[Containers]:
    """Have an engine, with its images in this folder where it can keep them there."""
    engine = _find(folder)
    for image, root in ((IMAGE, folder / "python"), (BARE, folder / "busybox")):
        furnish(root, with_python=image == IMAGE)
        archive = shutil.make_archive(str(root), "tar", root)
        engine("import", archive, image)
    # An engine that cannot run this container runs none of ours.
    engine("run", "--rm", "--network=host", IMAGE, "python3", "-c", "")
    try:
        yield engine
    finally:
        engine.try_to("rmi", "--force", IMAGE, BARE)


def _find(folder: Path) -> Containers:
    docker = Containers("docker", {})
    if shutil.which("docker") and docker.try_to("info").returncode == 0:
        return docker
    if shutil.which("podman") is None:
        raise Unavailable("neither podman nor a docker that answers")
    settings, storage = folder / "containers.conf", folder / "storage.conf"
    settings.write_text(SETTINGS, encoding="utf-8")
    places = f'graphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    storage.write_text(f'[storage]\ndriver = "vfs"\n{places}', encoding="utf-8")
    found = {"CONTAINERS_CONF": str(settings), "CONTAINERS_STORAGE_CONF": str(storage)}
    return Containers("podman", found)


def furnish(root: Path, *, with_python: bool) -> None:
    busybox = shutil.which("busybox")
    if busybox is None or b"/ld-" in Path(busybox).read_bytes()[:4096]:
        raise Unavailable("no static busybox (on Debian the package busybox-static)")
    for name in ("bin", "usr/bin", "tmp", "etc"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin" / "busybox")
    for name in ("sh", "sleep", "env", "cat"):
        (root / "bin" / name).symlink_to("busybox")
    if with_python:
        _copy_python(root)


def _copy_python(root: Path) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    program = Path(sys.base_prefix) / "bin" / version
    library = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(library, _inside(root, library), ignore=OF_NO_USE, symlinks=True)
    extensions = [*library.glob("lib-dynload/*.so")]
    for file in {program, *_libraries([program, *extensions])}:
        place = _inside(root, file)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            shutil.copy(file, place)
    (root / "bin" / "python3").symlink_to(program)


def _inside(root: Path, path: Path) -> Path:
    return root / str(path).lstrip("/")


def _libraries(files: list[Path]) -> set[Path]:
    """Name the shared libraries that programs need here."""
    listed = subprocess.run(
        ["ldd", *map(str, files)], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    words = (word for line in listed.stdout.splitlines() for word in line.split()[:3])
    return {Path(word) for word in words if word.startswith("/") and not word.endswith(":")}
