"""
Images for real nodes, built from our Dockerfiles without a registry.

The base images of the Dockerfiles are not fetched from anywhere: a stand-in for
``python:3.11-slim`` is made of Debian's own packages (its Python is 3.11, too), and one for the
image of the tools of its busybox. They are for tests only, and never to be published. Built layers
are kept beside the servers in the cache, so that only changed layers are built again.
"""

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.binaries import Unavailable, locked
from tests.servers.packages import ensure_packages
from tests.servers.rooms import Room
from tests.servers.stocks import Stock
from tests.sidecar.engines import Buildah, Recipe

ROOT = Path(__file__).resolve().parents[2]

VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
BUILD_SECONDS = 2700.0
MOST_LAYERS = 120
LONG_AGO = 1_577_836_800
"""The beginning of 2020."""

SUITE = "bookworm"
"""The release of Debian whose Python is 3.11."""
INCLUDED = "ca-certificates,python3,python3-pip,python3-venv"
EXAMPLES_SUITE = "trixie"
"""The release of Debian on which Dockerfile.examples builds."""

PYTHON = "docker.io/library/python:3.11-slim"
TOOLS = "localhost/dljob-test-tools:1"
PAUSE = "localhost/dljob-test-pause:1"
OPERATOR = "localhost/dljob-operator:test"
PACKAGES = "localhost/dljob-operator-packages:test"
SIDECAR = "localhost/dljob-sidecar:test"
TRAINER = "localhost/dljob-test-trainer:1"
DEBIAN = f"docker.io/library/debian:{EXAMPLES_SUITE}-slim"
EXAMPLES = f"docker.io/library/dljob-examples:{VERSION}"
"""The name that containerd makes of that in the job files of the examples."""
EXAMPLES_PACKAGES = "localhost/dljob-examples-packages:test"

TRAINER_FILE = f"""
FROM {PYTHON}
RUN python -m pip install --no-cache-dir --only-binary :all: numpy
COPY examples /app/examples
COPY profiles/elasticflow/throughput.csv /app/throughput.csv
WORKDIR /app
"""


OPERATOR_RECIPE = Recipe(
    file="Dockerfile.operator", image=OPERATOR, argument="PYTHON", base=PYTHON, driver="overlay"
)
OPERATOR_FILES = (
    "Dockerfile.operator",
    "requirements.operator.lock",
    "requirements.build.lock",
    "pyproject.toml",
    "scripts/man_pages.py",
    "README.md",
    "LICENSE",
    "NOTICE",
    "CHANGELOG.md",
    *("operator", "sidecar", "addons", "profiles", "examples"),
)
SIDECAR_FILES = ("Dockerfile.sidecar", "LICENSE", "NOTICE", "sidecar/sidecar-start")
EXAMPLES_FILES = (
    *("Dockerfile.examples", "requirements.examples.lock", "LICENSE", "NOTICE"),
    *("examples", "profiles/elasticflow/throughput.csv"),
)
TRAINER_FILES = ("examples", "profiles/elasticflow/throughput.csv")


class CommandFailed(Exception):
    """A command of the making of an image has ended with an error; the message is its output."""


@dataclass(frozen=True)
class Images:
    """A storage of images in a folder of the cache."""

    folder: Path

    @classmethod
    def in_cache(cls) -> "Images":
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(home / "dljob-test-servers" / f"images-{SUITE}")

    @contextmanager
    def all_built(self, room: Room) -> Iterator[Stock]:
        """Build missing or changed images; return a stock of all."""
        with self._opened():
            self._ensure_tools()
            self._build_trainer()
            self._build_operator()
            self._build_sidecar()
            self._forget_old_layers()
            yield self._stocked("all", room, PAUSE, OPERATOR, SIDECAR, TRAINER)

    @contextmanager
    def examples_built(self, room: Room) -> Iterator[Stock]:
        """Build the image of the examples and those of DLJob, and have a stock of them."""
        with self._opened():
            self._ensure_python()
            self._ensure_tools()
            self._ensure_debian()
            self._build_operator()
            self._build_sidecar()
            with _copied(*EXAMPLES_FILES) as context:
                # Under a name of their own its packages are kept for the next build.
                for name, *options in ((EXAMPLES_PACKAGES, "--target=packages"), (EXAMPLES,)):
                    self._build(context, "Dockerfile.examples", name, *options)
            yield self._stocked("examples", room, PAUSE, OPERATOR, SIDECAR, EXAMPLES)

    @contextmanager
    def pause_built(self, room: Room) -> Iterator[Stock]:
        """Build only the pause image."""
        with self._opened():
            self._ensure_tools()
            yield self._stocked("pause", room, PAUSE)

    @contextmanager
    def operator_built(self) -> Iterator[Buildah]:
        """Build the operator's image alone, and have an engine that runs it."""
        ensure_packages()
        with self._opened(), tempfile.TemporaryDirectory() as bundles:
            self._ensure_python()
            self._build_operator()
            yield Buildah(self.folder, OPERATOR_RECIPE, bundles=Path(bundles))

    @contextmanager
    def released(self, room: Room, archives: Mapping[str, Path]) -> Iterator[Stock]:
        """Have a stock of the images of a release, by the names that it gives them, and of a training."""
        with self._opened():
            self._ensure_tools()
            self._build_trainer()
            stock = Stock(self.folder / "stocks" / "released")
            holds = [*self._identify(PAUSE, TRAINER), *archives]
            holds += [hashlib.sha256(each.read_bytes()).hexdigest() for each in archives.values()]

            def write_archive(archive: Path) -> None:
                with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                    layout = Path(folder)
                    for name in (PAUSE, TRAINER):
                        self._buildah("push", "--quiet", name, f"oci:{layout}:{name}")
                    for name, file in archives.items():
                        _add_to_layout(layout, name, file)
                    run(["tar", "--directory", folder, "--create", "--file", str(archive), "."])

            stock.renew(room, "\n".join(holds), write_archive)
            yield stock

    # --- base images

    def _ensure_python(self) -> None:
        if self._has(PYTHON):
            return
        with self._bootstrapped(SUITE, INCLUDED) as root:
            # As in the image that it replaces, pip may install packages next to those of Debian.
            for mark in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
                mark.unlink()
            for name, target in (("python", "python3"), ("pip", "pip3")):
                (root / "usr/local/bin" / name).symlink_to(f"/usr/bin/{target}")
            self._commit(root, PYTHON, "--cmd", '["python3"]')

    def _ensure_debian(self) -> None:
        if not self._has(DEBIAN):
            with self._bootstrapped(EXAMPLES_SUITE, "ca-certificates") as root:
                self._commit(root, DEBIAN)

    @contextmanager
    def _bootstrapped(self, suite: str, included: str) -> Iterator[Path]:
        """Have the smallest system of a release of Debian in a folder."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            root = Path(folder) / "root"
            words = ["debootstrap", "--variant=minbase", f"--include={included}", suite, str(root)]
            try:
                run([*words, *_mirror()])
            except CommandFailed as error:
                # Of all that is done here this alone may be the machine's fault, and not ours.
                raise Unavailable(str(error)) from error
            for archive in (root / "var/cache/apt/archives").glob("*.deb"):
                archive.unlink()
            yield root

    def _ensure_tools(self) -> None:
        if self._has(PAUSE):
            return
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            busybox = Path(folder) / "bin" / "busybox"
            busybox.parent.mkdir()
            shutil.copy(_busybox(), busybox)
            self._commit(Path(folder), TOOLS)
            waits = '["/bin/busybox", "sleep", "infinity"]'
            self._commit(Path(folder), PAUSE, "--entrypoint", waits)

    def _commit(self, root: Path, name: str, *configured: str) -> None:
        container = self._buildah("from", "scratch")
        try:
            archive = root.with_suffix(".tar")
            # By tar, because a copy by buildah would not keep the owners.
            run(["tar", "--directory", str(root), "--create", "--file", str(archive), "."])
            self._buildah("add", "--quiet", container, str(archive), "/")
            archive.unlink()
            if configured:
                self._buildah("config", *configured, container)
            self._buildah("commit", "--quiet", container, name)
        finally:
            self._buildah("rm", container)

    # --- builds and exports

    def _build_trainer(self) -> None:
        self._ensure_python()
        with _copied(*TRAINER_FILES) as context:
            self._build(context, "-", TRAINER, text=TRAINER_FILE)

    def _build_operator(self) -> None:
        with _copied(*OPERATOR_FILES) as context:
            # Under a name of their own its packages are kept for the next build.
            self._build(context, OPERATOR_RECIPE.file, PACKAGES, "--target=packages")
            self._build(context, OPERATOR_RECIPE.file, OPERATOR)

    def _build_sidecar(self) -> None:
        with _sidecar_context() as context:
            self._build(context, "Dockerfile.sidecar", SIDECAR, f"--build-arg=TOOLS={TOOLS}")

    def _build(self, context: Path, file: str, name: str, *options: str, text: str = "") -> None:
        with _pip_settings() as volumes:
            words = ["--layers", "--pull-never", "--isolation=chroot", f"--file={file}"]
            given = [*words, *volumes, *options, f"--tag={name}"]
            self._buildah("build", *given, str(context), stdin=text)

    def _stocked(self, which: str, room: Room, *names: str) -> Stock:
        stock = Stock(self.folder / "stocks" / which)
        stock.renew(
            room,
            "\n".join(self._identify(*names)),
            lambda archive: self._write_archive(archive, which, *names),
        )
        return stock

    def _identify(self, *names: str) -> list[str]:
        words = ("inspect", "--type=image", "--format={{.FromImageID}}")
        return [self._buildah(*words, name) for name in names]

    def _write_archive(self, archive: Path, which: str, *names: str) -> None:
        """Write images into one archive, in which shared layers exist once."""
        # The layout is kept, because its blobs are not written again.
        layout = self.folder / "layouts" / which
        layout.mkdir(parents=True, exist_ok=True)
        for name in names:
            # An image that is imported on the same machine need not be small.
            words = ("push", "--quiet", "--disable-compression", name, f"oci:{layout}:{name}")
            self._buildah(*words)
        _forget_old_blobs(layout)
        run(["tar", "--directory", str(layout), "--create", "--file", str(archive), "."])

    def _forget_old_layers(self) -> None:
        """Remove the images without a name and a child, now and then: later builds may still use them."""
        if len(self._buildah("images", "--all", "--quiet").split()) > MOST_LAYERS:
            self._buildah("rmi", "--prune")

    def _has(self, name: str) -> bool:
        try:
            self._buildah("inspect", "--type=image", name)
        except CommandFailed:
            return False
        return True

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Have the storage to ourselves; nothing of it stays mounted afterwards."""
        with locked(self.folder):
            self._write_settings()
            try:
                yield
            finally:
                # Of stages of a Dockerfile a container stays, and is mounted.
                self._buildah("rm", "--all")
                layers = self.folder / "graph" / "overlay"
                # Buildah mounts it over itself, and leaves that to the next time.
                if layers.is_mount():
                    run(["umount", str(layers)])

    def _write_settings(self) -> None:
        places = f'graphroot = "{self.folder}/graph"\nrunroot = "{self.folder}/run"\n'
        settings = f'[storage]\ndriver = "overlay"\n{places}'
        (self.folder / "storage.conf").write_text(settings, encoding="utf-8")

    @property
    def _variables(self) -> dict[str, str]:
        return {"CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf")}

    def _buildah(self, *words: str, stdin: str = "") -> str:
        return run(["buildah", *words], stdin=stdin, environment=self._variables).strip()


def _busybox() -> Path:
    return Path(shutil.which("busybox") or "/bin/busybox")


def _forget_old_blobs(layout: Path) -> None:
    """Remove unused blobs from a layout."""

    def read(digest: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            (layout / "blobs" / digest.replace(":", "/")).read_text()
        )
        return found

    used = set()
    for image in json.loads((layout / "index.json").read_text())["manifests"]:
        manifest = read(image["digest"])
        parts = (image, manifest["config"], *manifest["layers"])
        used |= {part["digest"].rpartition(":")[2] for part in parts}
    for blob in layout.glob("blobs/*/*"):
        if blob.name not in used:
            blob.unlink()


def _add_to_layout(layout: Path, name: str, archive: Path) -> None:
    """Add the one image of an archive to a layout, under a name of the nodes."""
    index = layout / "index.json"
    kept = json.loads(index.read_text())
    with tarfile.open(archive) as opened:
        opened.extractall(layout, filter="data")
    [image] = json.loads(index.read_text())["manifests"]
    image["annotations"] = {"io.containerd.image.name": name}
    kept["manifests"].append(image)
    index.write_text(json.dumps(kept))


@contextmanager
def _copied(*names: str) -> Iterator[Path]:
    """Nothing but these files and folders of ours, the same whenever and wherever they were checked out."""
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        for name in names:
            target = context / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(
                    ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__", ".*")
                )
            else:
                shutil.copyfile(ROOT / name, target)
        _make_timeless(context)
        yield context


@contextmanager
def _sidecar_context() -> Iterator[Path]:
    """The files that Dockerfile.sidecar names, with the archive that ``make sidecar`` makes."""
    with _copied(*SIDECAR_FILES) as context:
        (context / "dist").mkdir()
        built = context / "dist" / "dljob-sidecar.pyz"
        run([sys.executable, str(ROOT / "scripts" / "build-sidecar"), "--output", str(built)])
        _make_timeless(context)
        yield context


def _make_timeless(context: Path) -> None:
    """Give all files the same time, because layers differ by the times of their files, too."""
    for path in context.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))


@contextmanager
def _pip_settings() -> Iterator[list[str]]:
    """Give builds the pip settings of this machine; none of them stays in an image."""
    settings = read_pip_settings()
    certificates = settings.get("cert", "")
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        lines = [f"{name} = {value}" for name, value in settings.items()]
        file.write("\n".join(["[global]", *lines, ""]))
        file.flush()
        volumes = [f"--volume={file.name}:/etc/pip.conf:ro"]
        volumes += [f"--volume={certificates}:{certificates}:ro"] if certificates else []
        yield volumes


def read_pip_settings() -> dict[str, str]:
    """Read how pip is set here, but for folders that a build does not see."""
    said = run([sys.executable, "-m", "pip", "config", "list"])
    lines = (line.partition("=") for line in said.splitlines() if "=" in line)
    settings = {name.rpartition(".")[2]: ast.literal_eval(value) for name, _, value in lines}
    return {name: value for name, value in settings.items() if name != "find-links"}


def _mirror() -> Sequence[str]:
    """From where this machine has its own packages of Debian, or nothing for the usual place."""
    sources = Path("/etc/apt/sources.list.d/debian.sources")
    text = sources.read_text(encoding="utf-8") if sources.exists() else ""
    found = [line.split()[1] for line in text.splitlines() if line.startswith("URIs:")]
    return [url for url in found if url.rstrip("/").endswith("/debian")][:1]


def run(
    command: Sequence[str], *, stdin: str = "", environment: dict[str, str] | None = None
) -> str:
    """Run a command of a build; return its output."""
    ran = subprocess.run(
        command,
        input=stdin,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_SECONDS,
    )
    if ran.returncode != 0:
        said = (ran.stdout + ran.stderr).strip()[-2000:]
        raise CommandFailed(f"{' '.join(command[:3])} failed: {said}")
    return ran.stdout
